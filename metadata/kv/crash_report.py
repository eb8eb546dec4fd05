"""What a process tells if a damaged LMDB page ends it: one line, an exit code, and a mark.

The C extension `metadata._crash_report` catches the signals. Where it is not built, such a process
ends by the signal, and leaves no mark.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

try:
    from metadata import _crash_report as extension
except ImportError:  # it is not built: see setup.py
    extension = None  # type: ignore[assignment]

EXIT_CODE: Final = 7
"""The exit code of `dlcmd` for damaged data."""
_MARK: Final = "crashed"
"""The file in the folder of an index that says: a process died in LMDB."""


class CrashReport:
    """A context for calls of LMDB on the file in `folder`, for any number of threads.

    A thread enters one at a time. Costs 0.3 µs.
    """

    def __init__(self, folder: Path) -> None:
        self._mark = folder / _MARK
        self._path = os.fsencode(self._mark)
        self._line = (
            f"dlcmd: index {folder}: its LMDB database is damaged: `dlcmd recover DATASET` moves "
            "it away and rebuilds it from the store\n"
        ).encode(errors="backslashreplace")
        install()

    def __enter__(self) -> None:
        if extension is not None:
            extension.enter(self._line, self._path)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if extension is not None:
            extension.leave()

    def is_left_behind(self) -> bool:
        """Return whether a process died in LMDB, and nobody has looked into it since."""
        return os.path.exists(self._path)

    def clear(self) -> None:
        """Remove the mark: the file has been found sound, or is moved away."""
        with suppress(OSError):
            os.unlink(self._path)


def install() -> None:
    """Handle the signals in this process; again after another handler has taken its place."""
    if extension is not None:
        extension.install(EXIT_CODE)
