"""The progress of a long operation on stderr: a bar on a terminal, otherwise a line every 10 s."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from chunkstore.progress import NO_PROGRESS, Progress
from dieselfs.cli.values.durations import human_duration
from dieselfs.cli.values.sizes import human_size

if TYPE_CHECKING:
    import rich.progress

LINE_INTERVAL_S: Final = 10.0
_DRAW_INTERVAL_S: Final = 0.1
"""The least time between two updates: one costs 30 µs, too much for every file."""


class Lines:
    """A display for logs: a line every `LINE_INTERVAL_S`, or JSON objects with --json."""

    def __init__(
        self,
        action: str,
        as_json: bool = False,
        clock: Callable[[], float] = time.monotonic,
        what: str = "files",
    ) -> None:
        self._action, self._what = action, what
        self._json = as_json
        self._clock = clock
        self._started = self._last_line_at = clock()
        self._files = self._bytes = self._files_expected = self._bytes_expected = 0
        self._lock = threading.Lock()

    def advance(self, files: int, size_bytes: int) -> None:
        with self._lock:
            self._files += files
            self._bytes += size_bytes
            now = self._clock()
            if now - self._last_line_at >= LINE_INTERVAL_S:
                self._last_line_at = now
                print(self._line(now - self._started), file=sys.stderr, flush=True)

    def expect(self, files: int, size_bytes: int) -> None:
        with self._lock:
            self._files_expected, self._bytes_expected = files, size_bytes

    def _line(self, elapsed_s: float) -> str:
        if self._json:
            return json.dumps(
                {
                    "event": "progress",
                    "action": self._action,
                    self._what: self._files,
                    "bytes": self._bytes,
                    f"{self._what}_expected": self._files_expected or None,
                    "bytes_expected": self._bytes_expected or None,
                    "elapsed_s": round(elapsed_s, 1),
                }
            )
        of = f" of {self._files_expected:,}" if self._files_expected else ""
        rate = (
            f"{self._files / elapsed_s:,.0f} {self._what}/s, "
            f"{human_size(self._bytes / elapsed_s)}/s"
        )
        left_bytes = self._bytes_expected - self._bytes
        left = (
            f", {human_duration(left_bytes * elapsed_s / self._bytes)} left"
            if self._bytes and left_bytes > 0
            else ""
        )
        return (
            f"{self._action}: {self._files:,}{of} {self._what}, {human_size(self._bytes)}, "
            f"{rate}{left}"
        )


class Bar:
    """A bar over bytes, or over files if the bytes are not known beforehand; rich draws it."""

    def __init__(
        self,
        bars: rich.progress.Progress,
        action: str,
        clock: Callable[[], float] = time.monotonic,
        what: str = "files",
    ) -> None:
        self._bars, self._what = bars, what
        self._task = bars.add_task(action, total=None, done="")
        self._files = self._bytes = self._files_expected = 0
        self._over_bytes = True
        self._lock = threading.Lock()
        self._clock = clock
        self._started = clock()
        self._drawn = 0.0

    def advance(self, files: int, size_bytes: int) -> None:
        with self._lock:
            self._files += files
            self._bytes += size_bytes
            if (now := self._clock()) - self._drawn > _DRAW_INTERVAL_S:
                self._drawn = now
                self.show()

    def expect(self, files: int, size_bytes: int) -> None:
        with self._lock:
            self._files_expected, self._over_bytes = files, size_bytes > 0
        self._bars.update(self._task, total=size_bytes or files)

    def show(self) -> None:
        """Draw what has been done so far."""
        elapsed_s = max(self._clock() - self._started, 1e-9)
        of = f" of {self._files_expected:,}" if self._files_expected else ""
        done = f"{self._files:,}{of} {self._what}, {self._files / elapsed_s:,.0f}/s"
        if self._bytes:
            done += f", {human_size(self._bytes)}, {human_size(self._bytes / elapsed_s)}/s"
        completed = self._bytes if self._over_bytes else self._files
        self._bars.update(self._task, completed=completed, done=done)


class Reached:
    """Turns what is reached so far into the steps of a display."""

    def __init__(self, display: Progress) -> None:
        self._display = display
        self._files = self._bytes = 0

    def files(self, files: int, size_bytes: int = 0) -> None:
        """Advance to so many files and bytes in all."""
        self._display.advance(files - self._files, size_bytes - self._bytes)
        self._files, self._bytes = files, size_bytes


@contextmanager
def drawn_bar(action: str, what: str = "files") -> Iterator[Bar]:
    """Yield a bar that leaves its last state on the terminal."""
    import rich.console
    import rich.progress as parts

    columns = (
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.TextColumn("{task.fields[done]}"),
        parts.TimeRemainingColumn(),
    )
    with parts.Progress(*columns, console=rich.console.Console(stderr=True)) as bars:
        bar = Bar(bars, action, what=what)
        try:
            yield bar
        finally:
            bar.show()


@contextmanager
def progress_of(
    action: str, *, silent: bool = False, as_json: bool = False, what: str = "files"
) -> Iterator[Progress]:
    """Yield the display that fits stderr: a bar, lines or nothing. `what` names the items."""
    if silent:
        yield NO_PROGRESS
    elif sys.stderr.isatty() and not as_json:
        with drawn_bar(action, what) as bar:
            yield bar
    else:
        yield Lines(action, as_json, what=what)
