"""A plan that its reader tells through the mount (docs/decisions/0023).

The reader writes the bytes of a plan file into a file of the mount's control directory, or hands
them over by an ioctl where its view of the mount is read-only. It keeps the file open: the mount
drops the plan when the last descriptor is closed.

A server that was replaced knows nothing of the plan. The reader notices when it tells its position
again, and then tells the whole plan.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from dieselfs.prefetch.plan_file import (
    POSITION_AT,
    WITHDRAWN,
    ReadingPlan,
    encoded_plan,
    new_plan_id,
)
from dieselfs.prefetch.plan_ioctl import write_by_ioctl

_POSITION: Final = struct.Struct("=Q")
TOLD_EVERY: Final = 1000
"""Files between two requests that tell the position."""
_READ_ONLY: Final = (errno.EROFS, errno.EACCES)
_REASONS: Final = {
    errno.EACCES: "it takes no plans of other programs (--no-foreign-plans)",
    errno.EROFS: "its release takes none through the mount",
    errno.ENOENT: "its release takes none through the mount",
    errno.ENOTTY: "its release takes none through the mount",
    errno.ESTALE: "the plan is of another snapshot: start again with the mounted one",
    errno.EINVAL: "it takes the plan for damaged, see its log",
    errno.EFBIG: "the plan is too large",
    errno.EDQUOT: "this user has told too many plans: try again later",
}

_Write: TypeAlias = Callable[[int, bytes | memoryview, int], int]
"""Writes the first of some bytes at an offset of a descriptor; returns how many."""


def reason_of(error: OSError) -> str:
    """Return why a mount did not accept a plan."""
    return _REASONS.get(error.errno or 0) or str(error)


class ForeignPlanFile:
    """The plan of this process at a mount; its owner moves `position`. See `PlanFile`.

    A forked child keeps the plan alive as long as it runs, or until `remove`.
    """

    def __init__(
        self, folder: Path, plan: ReadingPlan, after: str, is_taken: Callable[[str], bool]
    ) -> None:
        """Create it without telling it.

        `folder` is the mount's folder of plans. `is_taken` looks up the name of a plan that was
        told again, and returns whether the mount prefetches it.
        """
        self._folder, self._plan, self._after, self._is_taken = folder, plan, after, is_taken
        self.id = new_plan_id()
        self.name = f"{self.id}.plan"
        """The name of its file. Once the plan is told, the file answers whether it is followed."""
        self._fd = -1
        self._write: _Write = os.pwrite
        self._position = self._told_position = 0
        self._is_lost = False
        """The plan is not told again: the mount has refused it, or it was removed."""
        self._telling: threading.Thread | None = None

    def tell(self, position: int) -> None:
        """Tell the whole plan. Raises `OSError`, for which `reason_of` has a reason."""
        self._position = self._told_position = position
        fd, write = _open(self._folder / self.name)
        try:
            start = 0
            for part in encoded_plan(self._plan, position=position, after=self._after):
                start = _write_all(write, fd, part, start)
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._write = fd, write

    @property
    def position(self) -> int:
        """The number of files that have been read. Every thousandth is told: one request."""
        return self._position

    @position.setter
    def position(self, files: int) -> None:
        self._position = files
        is_due = files >= self._told_position + TOLD_EVERY or files >= len(self._plan)
        if not is_due or self._is_lost or self._is_telling:
            return
        self._told_position = files
        try:
            self._write(self._fd, _POSITION.pack(files), POSITION_AT)
        except OSError:
            self._telling = threading.Thread(target=self._tell_again, daemon=True)
            self._telling.start()

    @property
    def _is_telling(self) -> bool:
        return self._telling is not None and self._telling.is_alive()

    def _tell_again(self) -> None:
        """Tell the plan to the next server, which does not know it."""
        self._close()
        try:
            self.tell(self._position)
            self._is_lost = not self._is_taken(self.name)
        except OSError:
            self._is_lost = True

    def remove(self) -> None:
        """Withdraw the plan, also while forked children have the file open."""
        if self._telling is not None:
            self._telling.join()
        self._is_lost = True
        if self._fd >= 0:
            try:
                self._write(self._fd, _POSITION.pack(WITHDRAWN), POSITION_AT)
            except OSError:
                pass  # the server has gone, and the plan with it
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self._close()


def _open(path: Path) -> tuple[int, _Write]:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), os.pwrite
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), write_by_ioctl


def _write_all(write: _Write, fd: int, data: bytes | memoryview, start: int) -> int:
    """Write bytes at an offset; return the offset behind them."""
    left = memoryview(data)
    while left:
        written = write(fd, left, start)
        left, start = left[written:], start + written
    return start
