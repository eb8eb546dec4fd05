"""A file that is read through a memory map: whether it was changed since it was opened.

A change of its bytes or its length through the file system gives the file new times, which one
`fstat` shows. The C extension `metadata._mapped_file` asks once in a tick of the kernel's clock
(1 to 10 ms), which is the grain of most file systems' times too, and else takes 0.05 µs. It turns
the SIGBUS of a truncated map into zeros. Where it is not built, Python asks in 1 µs each time, and
SIGBUS ends the process.
"""

from __future__ import annotations

import mmap
import os
from typing import Protocol

try:
    from metadata import _mapped_file as extension
except ImportError:  # it is not built: see setup.py
    extension = None  # type: ignore[assignment]


class MappedFile(Protocol):
    """A file and its map, which lives as long as this does."""

    def is_unchanged(self) -> bool:
        """Return False if the file was written or truncated a tick ago, or its map was lost.

        False too for a change that leaves the content alone, such as of its mode or its links.
        """
        ...

    def renew(self) -> bool:
        """Take the file as it is now for unchanged; False if it was truncated or its map was lost.

        The caller checks the content afterwards. Raises `OSError`.
        """
        ...

    def refuse(self) -> None:
        """Have `is_unchanged` return False from now on."""
        ...


class StatedFile:
    """A `MappedFile` in Python."""

    def __init__(self, content: mmap.mmap, descriptor: int) -> None:
        """`descriptor` is duplicated."""
        self._bytes = len(content)
        self._descriptor = os.dup(descriptor)
        self._known = self._times()
        self._is_refused = False

    def __del__(self) -> None:
        os.close(self._descriptor)

    def is_unchanged(self) -> bool:
        """See `MappedFile`."""
        return not self._is_refused and self._times() == self._known

    def renew(self) -> bool:
        """See `MappedFile`."""
        self._known = self._times()
        return self._known[0] == self._bytes

    def refuse(self) -> None:
        """See `MappedFile`."""
        self._is_refused = True

    def _times(self) -> tuple[int, int, int]:
        now = os.fstat(self._descriptor)
        return now.st_size, now.st_mtime_ns, now.st_ctime_ns


def guarded(content: mmap.mmap, descriptor: int) -> MappedFile:
    """Return the guard of a whole map of the file `descriptor`. Raises `OSError`."""
    kind = StatedFile if extension is None else extension.MappedFile
    return kind(content, descriptor)
