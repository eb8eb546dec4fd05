"""An unsound database file of an index is moved away, so that the next process makes a new one."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from metadata.kv.crash_report import CrashReport

_LOCK: Final = "lock.mdb"
_DATA: Final = "data.mdb"


def set_aside(folder: Path, now: datetime) -> Path:
    """Move the LMDB file in `folder` to a new name beside it; return that path.

    The lock file goes first: a process that opens the folder in between makes a new one, and finds
    the damaged file once more. A process that has the old files open keeps them, and what it
    applies to them is lost, as the damaged index is; the store has it.
    """
    suffix = f".damaged-{now.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"
    with suppress(FileNotFoundError):
        os.rename(folder / _LOCK, folder / f"{_LOCK}{suffix}")
    kept = folder / f"{_DATA}{suffix}"
    os.rename(folder / _DATA, kept)
    CrashReport(folder).clear()
    return kept
