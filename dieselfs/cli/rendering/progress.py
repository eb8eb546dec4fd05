"""The progress of a long operation on stderr: a bar on a terminal, otherwise a line every 10 s."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from chunkstore.progress import NO_PROGRESS, Progress
from dieselfs.cli.rendering.standard_streams import say
from dieselfs.cli.values.durations import human_duration
from dieselfs.cli.values.sizes import human_size

if TYPE_CHECKING:
    import rich.progress

LINE_INTERVAL_S: Final = 10.0
_DRAW_INTERVAL_S: Final = 0.1
"""The least time between two updates: one costs 30 µs, too much for every file."""


class _Display:
    """The work done so far; `show` is called once in `interval_s` at most."""

    def __init__(
        self, what: str, clock: Callable[[], float], interval_s: float, shown_at: float
    ) -> None:
        self._what, self._clock, self._interval_s = what, clock, interval_s
        self._started, self._shown_at = clock(), shown_at
        self._files = self._bytes = self._files_expected = self._bytes_expected = 0
        self._lock = threading.Lock()

    def advance(self, files: int, size_bytes: int) -> None:
        with self._lock:
            self._files += files
            self._bytes += size_bytes
            if (now := self._clock()) - self._shown_at >= self._interval_s:
                self._shown_at = now
                self.show()

    def expect(self, files: int, size_bytes: int) -> None:
        with self._lock:
            self._files_expected, self._bytes_expected = files, size_bytes

    def show(self) -> None:
        """Show what has been done."""
        raise NotImplementedError

    @property
    def _elapsed_s(self) -> float:
        return max(self._clock() - self._started, 1e-9)

    @property
    def _done(self) -> str:
        of = f" of {self._files_expected:,}" if self._files_expected else ""
        is_one = (self._files_expected or self._files) == 1
        return f"{self._files:,}{of} {self._what.removesuffix('s') if is_one else self._what}"


class Lines(_Display):
    """A display for logs: a line every `LINE_INTERVAL_S`, or JSON objects with --json."""

    def __init__(
        self,
        action: str,
        as_json: bool = False,
        clock: Callable[[], float] = time.monotonic,
        what: str = "files",
    ) -> None:
        super().__init__(what, clock, LINE_INTERVAL_S, clock())
        self._action, self._json = action, as_json

    def show(self) -> None:
        """Print a line."""
        say(self._line(self._elapsed_s))

    def _line(self, elapsed_s: float) -> str:
        if self._json:
            import json

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
        rate = f"{self._files / elapsed_s:,.0f} {self._what}/s"
        line = f"{self._action}: {self._done}, {human_size(self._bytes)}, {rate}, "
        line += f"{human_size(self._bytes / elapsed_s)}/s"
        left_bytes = self._bytes_expected - self._bytes
        if self._bytes and left_bytes > 0:
            line += f", {human_duration(left_bytes * elapsed_s / self._bytes)} left"
        return line


class Bar(_Display):
    """A bar over bytes, or over files if the bytes are not known beforehand; rich draws it."""

    def __init__(
        self,
        bars: rich.progress.Progress,
        action: str,
        clock: Callable[[], float] = time.monotonic,
        what: str = "files",
    ) -> None:
        super().__init__(what, clock, _DRAW_INTERVAL_S, 0.0)
        self._bars, self._task = bars, bars.add_task(action, total=None, done="")
        self._over_bytes = True

    def expect(self, files: int, size_bytes: int) -> None:
        super().expect(files, size_bytes)
        self._over_bytes = size_bytes > 0
        self._bars.update(self._task, total=size_bytes or files)

    def show(self) -> None:
        """Draw what has been done so far."""
        done = f"{self._done}, {self._files / self._elapsed_s:,.0f}/s"
        if self._bytes:
            done += f", {human_size(self._bytes)}, {human_size(self._bytes / self._elapsed_s)}/s"
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
