"""Any bytes as the conversation log, and any cells in its table: exchanges of the right types, or LogError."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from luce_shell import log
from luce_shell.environment import log_path
from tests.fuzz.choices import Choices

USUAL: dict[str, Any] = {
    "conversation": "c1", "at": 1.5, "model": "m", "system": None, "question": "q", "answer": "a", "finish": "stop",
    "options": "{}", "seed": "7", "n_prompt": 1, "n_cached": 0, "n_generated": 1, "total_s": 0.5,
}  # fmt: skip


def fuzz_log(data: bytes) -> None:
    """The first byte says whether the rest is the file, or decides what is in its rows."""
    choices = Choices(data)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", folder)
        patch.setattr(log, "MAX_STEPS", 1 << 22)
        path = log_path()
        path.parent.mkdir()
        if choices.flag():
            path.write_bytes(choices.rest())
        else:
            _write_rows(path, choices)
        with suppress(log.LogError):
            for exchange in log.last_exchanges(5):
                _check(exchange)
        for prefix in (None, "c"):
            with suppress(log.LogError):
                for exchange in log.conversation(prefix):
                    _check(exchange)
        with suppress(log.LogError):
            for one in log.conversations(5):
                assert [type(v) for v in vars(one).values()] == [str, float, str, int, str]


def _check(exchange: log.Exchange) -> None:
    for name, value in vars(exchange).items():
        usual = {**USUAL, "options": {}, "seed": 7}[name]
        assert type(value) is type(usual) or (name == "system" and type(value) is str), (name, value)


def _write_rows(path: Path, choices: Choices) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(f"{log.SCHEMA} PRAGMA user_version = {choices.pick((1, 1, 1, 0, 2, -1))};")
        for _ in range(choices.below(4)):
            row = dict(USUAL)
            for _ in range(choices.below(4)):
                row[choices.pick(list(USUAL))] = _cell(choices)
            marks = ", ".join("?" * len(row))
            with suppress(sqlite3.IntegrityError, OverflowError):  # SQLite itself refuses it
                database.execute(f"INSERT INTO exchanges ({', '.join(row)}) VALUES ({marks})", list(row.values()))


def _cell(choices: Choices) -> Any:
    value = choices.value(0)
    return choices.pick(("[]", "[" * 5000, '{"a": 1}', "1" * 5000, "-1", "1e400")) if value is None else value
