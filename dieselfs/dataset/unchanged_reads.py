"""Reads of source files that other programs may change meanwhile: one content, never half of two.

A file is compared before and after its read by size, mtime and ctime. The kernel stamps a change
with a coarse clock, so two changes within one tick look like one. A file whose ctime is that young
is therefore looked at a second time, after the tick, and read then: from that moment on every
change gives the file another ctime. This costs one `fstat` for each file, and a wait of 20 ms for
a file that has just changed. So a later put also notices a change that follows the read at once.

Not noticed are changes through a shared map, which the kernel stamps once for many stores, a single
write call that lasts longer than the tick, and changes that a network file system has not told yet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from chunkstore.errors import BadSource

READS: Final = 3
"""The number of times that a file is read before it is left out."""
_TICK_NS: Final = 20_000_000
"""Twice the longest tick of the clock that stamps files: 10 ms (CONFIG_HZ=100, exFAT)."""
_WHOLE_SECOND_NS: Final = 1_000_000_000
_COARSE_NS: Final = 2 * _WHOLE_SECOND_NS
"""The tick of file systems that keep whole seconds; FAT keeps every other one."""
_LONGEST_PAUSE_S: Final = 0.1
"""The time between two questions whether the put has been interrupted."""


class SourceChanged(Exception):
    """A file changed while it was read, or shortly before: read it again."""


def surely_settled_ns() -> int:
    """Return the ctime before which a file that is read from now on is settled on any system."""
    return time.time_ns() - _COARSE_NS


def settle(fd: int, status: os.stat_result, check_stopped: Callable[[], None]) -> None:
    """Wait until a change of the file would give it a ctime other than that of `status`.

    Raises `SourceChanged` if it has changed meanwhile. A ctime in the future, by the clock of
    another machine, is waited for like one of this moment.
    """
    tick_ns = _tick_ns(status.st_ctime_ns)
    left_ns = min(status.st_ctime_ns + tick_ns - time.time_ns(), tick_ns)
    if left_ns <= 0:
        return
    ends_ns = time.monotonic_ns() + left_ns
    while left_ns > 0:
        check_stopped()
        time.sleep(min(left_ns / 1e9, _LONGEST_PAUSE_S))
        left_ns = ends_ns - time.monotonic_ns()
    check_unchanged(fd, status)


def check_unchanged(fd: int, before: os.stat_result) -> None:
    """Raise `SourceChanged` unless the open file is stamped as it was."""
    after = os.fstat(fd)
    if (
        after.st_ctime_ns != before.st_ctime_ns
        or after.st_mtime_ns != before.st_mtime_ns
        or after.st_size != before.st_size
    ):
        raise SourceChanged


def kept_changing(disk_path: str | bytes) -> BadSource:
    """Return the error for a file that changed during each of its reads."""
    return BadSource(
        f"{os.fsdecode(disk_path)} changed each of the {READS} times that it was read: run the "
        "same command again when no program writes to it"
    )


def read_unchanged(disk_path: str | os.PathLike[str]) -> tuple[bytes, os.stat_result]:
    """Return the content of a file and its attributes, which belong together.

    Raises `BadSource` if it changed during each of three reads, and `OSError`.
    """
    with open(disk_path, "rb") as file:
        for _ in range(READS):
            status = os.fstat(file.fileno())
            try:
                settle(file.fileno(), status, lambda: None)
                file.seek(0)
                data = file.read()
                check_unchanged(file.fileno(), status)
            except SourceChanged:
                continue
            return data, status
    raise kept_changing(os.fspath(disk_path))


def _tick_ns(ctime_ns: int) -> int:
    return _TICK_NS if ctime_ns % _WHOLE_SECOND_NS else _COARSE_NS
