"""The table of mounts: the kernel's own table, and each mount's answers about itself.

There are no state files. A mount whose daemon is gone or stopped must not hang the process that
lists mounts. So each is asked through a process of its own that is killed when the time is over.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from chunkstore.chunk_id import print_id
from dieselfs.fuse.mounts.control_names import CONTROL_FOLDER, DATASET_NAME
from dieselfs.fuse.mounts.loop_devices import backing_file
from metadata.kernel_image_name import image_name_parts

FUSE_TYPE: Final = "fuse.dieselfs"
EROFS_TYPE: Final = "erofs"
_MOUNT_TABLE: Final = Path("/proc/self/mountinfo")
_AGAIN_S: Final = 0.1
_KILLED_S: Final = 0.5
_TAKING_S: Final = 0.1
"""The time to take an answer that has arrived, though another silent mount has used up the time."""
_MAX_DOCUMENT_BYTES: Final = 64 << 10
_READING: Final = ("head", "-c", str(_MAX_DOCUMENT_BYTES + 1), "--")
"""The command of the processes that ask mounts."""
_FIELDS: Final = {"dataset": str, "generation": int, "snapshot": str, "mounted": str, "pid": int}
_LOOP: Final = "/dev/loop"
LOCAL_KIND: Final = "local"
"""The kind of front in a local mount's `dataset.json`."""
_OCTAL = re.compile(rb"\\([0-7]{3})")


class MountState(StrEnum):
    """The state of a mount, by its answer."""

    SERVING = "serving"
    DEAD = "dead"
    """The daemon is gone; unmount it, or mount over it with `dlcmd mount`."""
    HUNG = "hung"
    """There is no answer in time, or none that makes sense."""
    PRIVATE = "private"
    """The mount is another user's, mounted without `allow_other`."""
    LOCAL = "local"
    """The kernel serves it from a local file (`local_front`): no daemon, and no statistics."""


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of the kernel's mount table."""

    mountpoint: Path
    file_system_type: str
    source: str
    mount_id: int = 0
    """The number of the mount, unique among the mounts at one time."""
    device: tuple[int, int] = (0, 0)
    """The major and minor number of the file system: its `st_dev`, without a request to it."""

    @property
    def is_dieselfs(self) -> bool:
        """True if it shows a dataset.

        A control directory, which is a mount of its own before EROFS, shows none.
        """
        return (self.file_system_type == FUSE_TYPE and not self.is_control) or (
            self.file_system_type == EROFS_TYPE and self.image is not None
        )

    @property
    def is_control(self) -> bool:
        """True if it is the control directory of the mount that it lies in."""
        return self.file_system_type == FUSE_TYPE and self.mountpoint.name == CONTROL_FOLDER

    @property
    def image(self) -> Path | None:
        """The kernel image of a mount with EROFS in front."""
        path = backing_file(*self.device) if self.source.startswith(_LOOP) else Path(self.source)
        return path if path is not None and image_name_parts(path.name) else None

    @property
    def shown(self) -> str:
        """`<dataset>@<snapshot id>`: what the mount has shown from the beginning."""
        if self.file_system_type == EROFS_TYPE and self.image is not None:
            return "@".join(image_name_parts(self.image.name) or ())
        return self.source.partition(":")[2]


@dataclass(frozen=True, slots=True)
class MountInfo:
    """A DieselFS mount. Fields that only its daemon knows are None unless it is serving."""

    mountpoint: Path
    source: str
    """`dieselfs:<dataset>@<snapshot id>`, from the kernel."""
    state: MountState
    is_erofs: bool
    """The kernel reports EROFS as the front."""
    details: Mapping[str, Any]
    """All of `.dieselfs/dataset.json`; empty unless it is serving."""
    dataset: str | None = None
    generation: int | None = None
    snapshot: str | None = None
    mounted: str | None = None
    """The time of the mount; ISO 8601, UTC."""
    pid: int | None = None
    device: tuple[int, int] = (0, 0)
    """See `MountEntry`."""

    def is_of(self, dataset_id: bytes) -> bool:
        """Return True if the mount reports this dataset, not another one of the same name.

        A mount that a former version serves reports the id in hexadecimal.
        """
        return self.details.get("dataset_id") in (print_id(dataset_id), dataset_id.hex())


def mount_entries() -> list[MountEntry]:
    """Return everything mounted that this process can see.

    The last of the mounts that are stacked on one point is on top.
    """
    return [_parse(line) for line in _MOUNT_TABLE.read_bytes().splitlines()]


def _parse(line: bytes) -> MountEntry:
    # id, parent, device, root, mountpoint, options, optional fields, "-", type, source: proc(5)
    before, _, after = line.partition(b" - ")
    number, _, device, _, mountpoint = before.split(b" ")[:5]
    kind, source = after.split(b" ")[:2]
    major, _, minor = device.partition(b":")
    return MountEntry(
        Path(os.fsdecode(_unescaped(mountpoint))),
        kind.decode(),
        os.fsdecode(_unescaped(source)),
        int(number),
        (int(major), int(minor)),
    )


def _unescaped(field: bytes) -> bytes:
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field)


def mount_id(descriptor: int) -> int:
    """Return the number of the mount through which a file was opened; ask no file system."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


def entry_at(mountpoint: Path) -> MountEntry | None:
    """Return the top mount at exactly `mountpoint` (absolute, without links), if there is one."""
    found = [entry for entry in mount_entries() if entry.mountpoint == mountpoint]
    return found[-1] if found else None


def entries_of_device(device: tuple[int, int]) -> list[MountEntry]:
    """Return the mounts of a file system, by its `st_dev`; the last one is on top."""
    return [entry for entry in mount_entries() if entry.device == device]


def mounts(timeout_s: float = 2.0) -> list[MountInfo]:
    """Return all DieselFS mounts, in the order in which they were made.

    Takes at most about `timeout_s`.
    """
    answers = ask([entry for entry in mount_entries() if entry.is_dieselfs], timeout_s)
    still_there = {entry.mountpoint for entry in mount_entries() if entry.is_dieselfs}
    return [info for info in answers if info.mountpoint in still_there]


def ask(entries: Sequence[MountEntry], timeout_s: float) -> list[MountInfo]:
    """Ask all mounts at the same time what they are.

    Before EROFS a dead control directory says little: another server may just now replace its
    server. So it is asked again.
    """
    again_until = monotonic() + timeout_s / 2
    while True:
        answers = _ask_once(entries, monotonic() + timeout_s)
        is_dead = any(info.is_erofs and info.state is MountState.DEAD for info in answers)
        if not is_dead or monotonic() >= again_until:
            return answers
        sleep(_AGAIN_S)


def _ask_once(entries: Sequence[MountEntry], deadline: float) -> list[MountInfo]:
    asked = [(entry, _start_reading(entry.mountpoint, DATASET_NAME)) for entry in entries]
    return [_info(entry, *_answer(reading, deadline)) for entry, reading in asked]


def read_document(
    mountpoint: Path, name: bytes, timeout_s: float
) -> tuple[MountState, Mapping[str, Any] | None]:
    """Return a document of the control directory; None unless the mount is serving."""
    return _answer(_start_reading(mountpoint, name), monotonic() + timeout_s)


def is_asking(process: Path) -> bool:
    """Return whether a process, a folder of /proc, asks a mount for a document, or has ended.

    One that asks ends at once, or is killed.
    """
    try:
        command = (process / "cmdline").read_bytes()
    except OSError:
        return True
    words = command.split(b"\0")  # of a zombie there is none
    return not command or words[: len(_READING)] == [*map(os.fsencode, _READING)]


def _start_reading(mountpoint: Path, name: bytes) -> subprocess.Popen[bytes]:
    document = mountpoint / CONTROL_FOLDER / os.fsdecode(name)
    return subprocess.Popen(
        [*_READING, document],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
    )


def _answer(
    reading: subprocess.Popen[bytes], deadline: float
) -> tuple[MountState, dict[str, Any] | None]:
    try:
        timeout_s = max(_TAKING_S, deadline - monotonic())
        output, complaint = reading.communicate(timeout=timeout_s)
    except BaseException as error:
        # The helper can be killed where this process itself could not, unless the server has
        # stopped in the middle of its request: then it ends when the server continues.
        reading.kill()
        try:
            reading.wait(_KILLED_S)
        except subprocess.TimeoutExpired:
            threading.Thread(target=reading.wait, daemon=True, name=f"reap {reading.pid}").start()
        if isinstance(error, subprocess.TimeoutExpired):
            return MountState.HUNG, None
        raise
    finally:
        for pipe in (reading.stdout, reading.stderr):
            if pipe is not None:
                pipe.close()
    if reading.returncode != 0:
        return _state_from(complaint), None
    document = _parse_document(output)
    return (MountState.HUNG if document is None else MountState.SERVING), document


def _info(entry: MountEntry, state: MountState, document: dict[str, Any] | None) -> MountInfo:
    is_erofs = entry.file_system_type == EROFS_TYPE
    details = document or {}
    front = details.get("front")
    if is_erofs and isinstance(front, dict) and front.get("kind") == LOCAL_KIND:
        state = MountState.LOCAL
    fields = {name: details.get(name) for name in _FIELDS}
    source = f"dieselfs:{entry.shown}"
    return MountInfo(
        entry.mountpoint, source, state, is_erofs, details, device=entry.device, **fields
    )


def _parse_document(text: bytes) -> dict[str, Any] | None:
    """Return the document, or None if it is not a valid one.

    Any user may mount something under our type.
    """
    if len(text) > _MAX_DOCUMENT_BYTES:
        return None
    try:
        details = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(details, dict):
        return None
    wrong = any(key in details and type(details[key]) is not kind for key, kind in _FIELDS.items())
    return None if wrong else details


def _state_from(complaint: bytes) -> MountState:
    if b"Permission denied" in complaint:
        return MountState.PRIVATE
    if b"not connected" in complaint or b"connection abort" in complaint:
        return MountState.DEAD
    return MountState.HUNG
