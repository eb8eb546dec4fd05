"""A plan as a file, shared by its owner and the prefetcher: the order, and a position that moves.

The design is in docs/decisions/0007-plan.md. One file is one rank's order in one epoch. It lies in
a tmpfs and is written under another name and renamed. After that only its position changes: 8 bytes
in a shared map, which its owner alone stores. It is in the machine's byte order, since it never
leaves the machine.

Its owner holds a shared `flock` on it as long as it has it open. So the prefetcher notices that a
reader was killed, though its file stays. Forked children hold the lock too: DataLoader workers end
with their parent.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from dieselfs.errors import UsageError

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
_MAGIC: Final = b"dslplan1"
_SNAPSHOT_ID_BYTES: Final = 64
_PLAN_ID_BYTES: Final = 32
_HEADER: Final = struct.Struct(f"=8s Q Q Q Q {_SNAPSHOT_ID_BYTES}s {_PLAN_ID_BYTES}s")
"""The header of the file.

Its fields are: magic, position, files, groups, bytes of the snapshot's path, snapshot id, id of the
plan that comes before.
"""
HEADER_BYTES: Final = _HEADER.size
_POSITION_WORD: Final = 1
WITHDRAWN: Final = (1 << 64) - 1
"""The position that ends a foreign plan though descriptors of its file are still open."""
POSITION_AT: Final = 8 * _POSITION_WORD
"""The offset of the position in a plan's bytes: 8 bytes in the machine's order."""
FOLDER: Final = "plans"
"""The name of the folder of plans in the task's folder."""


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """The files that one rank reads in one epoch, in order."""

    snapshot_id: str
    """The snapshot of the inodes."""
    inodes: npt.NDArray[np.uint32]
    """The inodes of the files in the snapshot."""
    group_start: npt.NDArray[np.int64]
    """The starts of the groups: group g is inodes[group_start[g] : group_start[g + 1]].

    It starts with 0, ends with the number of files, and has one more item than there are groups.
    """
    snapshot_path: str = ""
    """The file of the snapshot, for a prefetcher that does not have it open as a mount does."""

    def __len__(self) -> int:
        return len(self.inodes)


@dataclass(frozen=True, slots=True)
class PlanHeader:
    """The header of a plan's bytes. Its numbers are what the writer claims, until `plan_in`."""

    position: int
    files: int
    groups: int
    path_bytes: int
    snapshot_id: str
    after: str

    @classmethod
    def of(cls, start: Buffer) -> Self:
        """Return the header at the start of a plan. Raises `UsageError` if there is none."""
        if memoryview(start).nbytes < HEADER_BYTES:
            raise UsageError("it is too short")
        magic, position, files, groups, path_bytes, snapshot_id, after = _HEADER.unpack_from(start)
        if magic != _MAGIC:
            raise UsageError("it does not begin as one")
        return cls(position, files, groups, path_bytes, _text(snapshot_id), _text(after))

    @property
    def total_bytes(self) -> int:
        """The bytes of the whole plan, with the header."""
        return HEADER_BYTES + 8 * (self.groups + 1) + 4 * self.files + self.path_bytes

    def plan_in(self, whole: Buffer) -> ReadingPlan:
        """Return the plan, whose columns are views of `whole`.

        Raises `UsageError` if the bytes are not what the header says.
        """
        view = memoryview(whole)
        if view.nbytes != self.total_bytes:
            raise UsageError(f"it has {view.nbytes} bytes instead of {self.total_bytes}")
        inodes_at = HEADER_BYTES + 8 * (self.groups + 1)
        group_start = np.frombuffer(view, np.int64, self.groups + 1, HEADER_BYTES)
        inodes = np.frombuffer(view, np.uint32, self.files, inodes_at)
        # Compared, not subtracted: a difference of hostile numbers can overflow.
        is_falling = group_start[1:] < group_start[:-1]
        if group_start[0] != 0 or group_start[-1] != self.files or is_falling.any():
            raise UsageError("its groups do not cover its files in order")
        snapshot_path = os.fsdecode(bytes(view[view.nbytes - self.path_bytes :]))
        return ReadingPlan(self.snapshot_id, inodes, group_start, snapshot_path)


class PlanFile:
    """A plan file that is open. Its owner stores into `position`; all others only read it."""

    is_foreign = False

    def __init__(self, path: Path, plan: ReadingPlan, after: str, view: mmap.mmap) -> None:
        self.path = path
        self.plan = plan
        self.after = after
        """The id of the plan whose end leads into this one; empty if there is none."""
        self._words = memoryview(view)[: _HEADER.size].cast("Q")

    @property
    def id(self) -> str:
        """The name of the file."""
        return self.path.name

    @property
    def position(self) -> int:
        """The number of files that have been read, or need not be (when a run is resumed)."""
        return self._words[_POSITION_WORD]

    @position.setter
    def position(self, files: int) -> None:
        self._words[_POSITION_WORD] = files

    @property
    def is_read(self) -> bool:
        """True if the owner still exists and has not removed the file. Four system calls."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Remove the file: the prefetcher goes on to the plan that comes after it, or stops."""
        self.path.unlink(missing_ok=True)


def new_plan_id() -> str:
    """Return the name of a new plan: 16 hexadecimal digits."""
    return os.urandom(8).hex()


def encoded_plan(
    plan: ReadingPlan, *, position: int = 0, after: str = ""
) -> list[bytes | memoryview]:
    """Return the bytes of a plan, in parts that lie one behind the other; 4 bytes a file."""
    snapshot_path = os.fsencode(plan.snapshot_path)
    if len(plan.snapshot_id) > _SNAPSHOT_ID_BYTES or len(after) > _PLAN_ID_BYTES:
        raise ValueError(f"the id {plan.snapshot_id!r} or {after!r} is too long")
    header = _HEADER.pack(
        _MAGIC,
        position,
        len(plan.inodes),
        len(plan.group_start) - 1,
        len(snapshot_path),
        plan.snapshot_id.encode(),
        after.encode(),
    )
    group_start = np.ascontiguousarray(plan.group_start, np.int64)
    inodes = np.ascontiguousarray(plan.inodes, np.uint32)
    columns = [column.view(np.uint8).data for column in (group_start, inodes)]
    return [header, *columns, snapshot_path]


def write_plan(
    task_folder: Path, plan: ReadingPlan, *, position: int = 0, after: str = ""
) -> PlanFile:
    """Write a plan file, 4 bytes a file; raise `OSError` if the tmpfs is full.

    The caller is its owner and keeps the returned object. Once that is dropped, the reader counts
    as gone, as if the file had been removed.
    """
    folder = task_folder / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / new_plan_id()
    temporary = folder / f".{path.name}"
    try:
        with open(temporary, "xb+") as file:
            file.writelines(encoded_plan(plan, position=position, after=after))
            file.flush()
            fcntl.flock(file, fcntl.LOCK_SH)
            written = _map(path, file.fileno())
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return written


def open_plan(path: Path) -> PlanFile:
    """Map a plan file. Raises `FileNotFoundError`, or `UsageError` if it is not a plan."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return _map(path, fd)
    finally:
        os.close(fd)


def _map(path: Path, fd: int) -> PlanFile:
    """Map a plan file. The map keeps a duplicate of `fd`, and with it a lock."""
    size = os.fstat(fd).st_size
    if size < _HEADER.size:
        raise UsageError(f"{path} is not a plan")
    view = mmap.mmap(fd, size)
    try:
        header = PlanHeader.of(view)
        plan = header.plan_in(view)
    except UsageError as error:
        raise UsageError(f"{path} is not a plan: {error}") from None
    return PlanFile(path, plan, header.after, view)


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode("ascii", "replace")
