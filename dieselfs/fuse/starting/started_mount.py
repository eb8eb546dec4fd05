"""The facts of a mount that has been started, for a program and for its user."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StartedMount:
    """A mount that answers."""

    mountpoint: Path
    snapshot: str
    """`DATASET@ID` of the snapshot that is shown."""
    files: int
    front: str | None
    """The front, which answers names: `erofs`, `erofs-loop`, `fuse` or `local`."""
    pid: int | None
    """The process that serves it; None for a local mount, which the kernel alone serves."""
    log: Path | None = None
    notes: tuple[str, ...] = ()
    """Lines for a user."""
    refreshed: bool | None = None
    """True if a local mount changed its snapshot; None if it was not asked to."""

    def __fspath__(self) -> str:
        return os.fspath(self.mountpoint)
