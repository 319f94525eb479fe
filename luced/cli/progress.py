"""What is seen of a long task: a bar on a terminal, lines in a pipe, or one JSON object for each event."""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

import click

LINE_S = 5.0  # between two lines of one file
EVENT_S = 0.5  # between two JSON objects of one file
WORDS = {"check": "checking", "fetch": "fetching"}


class Reporter(Protocol):
    """`event` is check or fetch (file, done, total: in bytes), or something that only JSON tells."""

    def __call__(self, event: str, **fields: Any) -> None: ...


def reporter(as_json: bool) -> AbstractContextManager[Reporter]:
    if as_json:
        return Events()
    return Bars() if sys.stderr.isatty() else Lines()


class _Paced:
    """Calls `show` with the first and the last step of each file, and no more often than every `interval_s` between."""

    interval_s = 0.0

    def __init__(self) -> None:
        self._shown_s: dict[tuple[str, str], float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, event: str, **fields: Any) -> None:
        key, now = (event, fields.get("file", "")), time.monotonic()
        is_last = fields.get("done") == fields.get("total")
        if is_last or now - self._shown_s.get(key, -self.interval_s) >= self.interval_s:
            self._shown_s[key] = now
            self.show(event, fields)

    def show(self, event: str, fields: dict[str, Any]) -> None:
        raise NotImplementedError


class Events(_Paced):
    interval_s = EVENT_S

    def show(self, event: str, fields: dict[str, Any]) -> None:
        click.echo(json.dumps({"event": event, **fields}, ensure_ascii=False))


class Lines(_Paced):
    interval_s = LINE_S

    def show(self, event: str, fields: dict[str, Any]) -> None:
        if event in WORDS:
            done, total = fields["done"], fields["total"]
            share = f"{100 * done // total if total else 100} %"
            click.echo(f"{WORDS[event]} {fields['file']}: {done / 1e6:.1f} of {total / 1e6:.1f} MB, {share}", err=True)


class Bars:
    def __enter__(self) -> Self:
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        columns = (
            progress.TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
            progress.BarColumn(bar_width=16),
            progress.DownloadColumn(table_column=Column(no_wrap=True)),
            progress.TransferSpeedColumn(table_column=Column(no_wrap=True)),
            progress.TimeRemainingColumn(table_column=Column(no_wrap=True)),
        )
        self._progress = progress.Progress(*columns, console=Console(stderr=True), expand=True)
        self._progress.start()
        self._tasks: dict[tuple[str, str], progress.TaskID] = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: str, **fields: Any) -> None:
        if event not in WORDS:
            return
        key = (event, fields["file"])
        if key not in self._tasks:
            text = f"{WORDS[event]} {fields['file']}"
            self._tasks[key] = self._progress.add_task(text, total=fields["total"], completed=fields["done"])
        self._progress.update(self._tasks[key], completed=fields["done"])
