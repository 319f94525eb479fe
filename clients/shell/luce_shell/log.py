"""The conversation log: what was asked and answered, in SQLite, for its owner alone.

Nothing of it is worth an answer: whoever writes it catches LogError and goes on.
"""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from luce_shell.environment import log_path

VERSION = 1  # of the schema, kept as user_version
BUSY_S = 1.0  # that another process may hold it
MAX_STEPS = 1 << 30  # of SQLite's machine, seconds of its time: a damaged file, or a view in it, may have no end
STEPS = 1 << 16  # between two looks at them
SCHEMA = """\
CREATE TABLE exchanges (
  id INTEGER PRIMARY KEY,
  conversation TEXT NOT NULL,
  at REAL NOT NULL,             -- Unix time of the answer
  model TEXT NOT NULL,
  system TEXT,                  -- NULL: none
  question TEXT NOT NULL,
  answer TEXT NOT NULL,
  finish TEXT NOT NULL,
  options TEXT NOT NULL,        -- the sampling parameters that were given, as JSON
  seed TEXT NOT NULL,           -- 64 bits without a sign
  n_prompt INTEGER NOT NULL,
  n_cached INTEGER NOT NULL,
  n_generated INTEGER NOT NULL,
  total_s REAL NOT NULL
);
CREATE INDEX exchanges_by_conversation ON exchanges (conversation, id);
"""
COLUMNS = (
    "conversation, at, model, system, question, answer, finish, options, seed, n_prompt, n_cached, n_generated, total_s"
)

_TYPES: dict[str, type | tuple[type, ...]] = {  # by annotation
    "str": str, "str | None": (str, type(None)), "int": int, "float": float, "dict[str, Any]": dict
}  # fmt: skip
_END = 253402300800.0  # of the year 9999


class LogError(Exception):
    """The log cannot be read or written; the message says why."""


@dataclass(frozen=True)
class Exchange:
    """A question and its answer."""

    conversation: str
    at: float
    model: str
    system: str | None
    question: str
    answer: str
    finish: str
    options: dict[str, Any]
    seed: int
    n_prompt: int
    n_cached: int
    n_generated: int
    total_s: float


@dataclass(frozen=True)
class Conversation:
    """id, time of its last answer, its last model, number of exchanges, first question."""

    id: str
    at: float
    model: str
    n_exchanges: int
    question: str


def new_conversation() -> str:
    """An id that sorts by time and that two processes do not share."""
    return f"{time.time_ns() // 1_000_000:011x}{os.urandom(3).hex()}"


def write(exchange: Exchange) -> None:
    values = {**exchange.__dict__, "options": json.dumps(exchange.options), "seed": str(exchange.seed)}
    names = COLUMNS.split(", ")
    with _open(for_writing=True) as database, database:
        marks = ", ".join("?" * len(names))
        database.execute(f"INSERT INTO exchanges ({COLUMNS}) VALUES ({marks})", [values[name] for name in names])


def last_exchanges(n: int) -> list[Exchange]:
    """The last n, oldest first."""
    return _read(f"SELECT * FROM (SELECT id, {COLUMNS} FROM exchanges ORDER BY id DESC LIMIT ?) ORDER BY id", [n])


def conversation(prefix: str | None) -> list[Exchange]:
    """All of the conversation whose id begins so (None: of the last one), oldest first; empty: there is none.

    LogError: more than one begins so.
    """
    if prefix is None:
        where, values = "conversation = (SELECT conversation FROM exchanges ORDER BY id DESC LIMIT 1)", []
    else:
        where, values = "substr(conversation, 1, length(?1)) = ?1", [prefix]
    found = _read(f"SELECT id, {COLUMNS} FROM exchanges WHERE {where} ORDER BY id", values)
    ids = sorted({exchange.conversation for exchange in found})
    if len(ids) > 1:
        raise LogError(f"{prefix!r} is the beginning of {len(ids)} conversations: {', '.join(ids[:3])}, ...")
    return found


def conversations(n: int) -> list[Conversation]:
    """The last n, newest first."""
    with _open() as database:
        rows = database.execute(
            "SELECT conversation, max(id), max(at), count(*), min(id) FROM exchanges"
            " GROUP BY conversation ORDER BY 2 DESC LIMIT ?",
            [n],
        ).fetchall()
        found = []
        for name, last, at, n_exchanges, first in rows:
            (model,) = database.execute("SELECT model FROM exchanges WHERE id = ?", [last]).fetchone()
            (question,) = database.execute("SELECT question FROM exchanges WHERE id = ?", [first]).fetchone()
            found.append(Conversation(name, at, model, n_exchanges, question))
            if not _is_typed(found[-1]):
                raise sqlite3.DataError(f"exchange {last} is damaged")
        return found


def _read(query: str, values: Sequence[object]) -> list[Exchange]:
    with _open() as database:
        rows = database.execute(query, values).fetchall()
    return [_exchange(number, dict(zip(COLUMNS.split(", "), cells, strict=True))) for number, *cells in rows]


def _exchange(number: int, cells: dict[str, Any]) -> Exchange:
    """LogError: SQLite lets any cell hold anything, and these are not what we write."""
    with suppress(ValueError, TypeError, RecursionError):
        exchange = Exchange(**{**cells, "options": json.loads(cells["options"]), "seed": int(cells["seed"])})
        if _is_typed(exchange):
            return exchange
    raise LogError(f"{log_path()}: exchange {number} is damaged")


def _is_typed(record: Exchange | Conversation) -> bool:
    return (
        all(isinstance(getattr(record, f.name), _TYPES[str(f.type)]) for f in fields(record)) and 0 <= record.at < _END
    )


@contextmanager
def _open(*, for_writing: bool = False) -> Iterator[sqlite3.Connection]:
    """LogError: whatever went wrong within. To a reader a log that is not there is empty."""
    try:
        path = log_path()
        if for_writing:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(path)
        target = str(path) if for_writing or path.exists() else ":memory:"
        database = sqlite3.connect(target, timeout=BUSY_S)
        looks = itertools.count()
        database.set_progress_handler(lambda: next(looks) * STEPS >= MAX_STEPS, STEPS)
        try:
            _prepare(database)
            yield database
        finally:
            database.close()
    except (OSError, RuntimeError, sqlite3.Error, UnicodeError) as error:  # SQLite quotes a damaged schema as it is
        reason = error.strerror or error if isinstance(error, OSError) else error
        if str(reason) == "interrupted":
            reason = "it cannot be read in a reasonable time, it may be damaged"
        with suppress(RuntimeError):
            raise LogError(f"{log_path()}: {reason}") from None
        raise LogError(str(reason)) from None


def _make_private(path: Path) -> None:
    """SQLite gives the files beside it, -wal and -shm, the mode of the database."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(fd).st_mode & 0o077:
            os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def _prepare(database: sqlite3.Connection) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise sqlite3.DatabaseError(f"it was written by a newer luce (version {version}, this one knows {VERSION})")
    if version == 0:
        database.execute("PRAGMA journal_mode = WAL")
        try:
            database.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        except sqlite3.OperationalError:
            database.rollback()
            if database.execute("PRAGMA user_version").fetchone() == (0,):  # else another process was first
                raise
