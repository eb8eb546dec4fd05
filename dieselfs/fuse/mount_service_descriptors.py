"""Facts about descriptors that other users send: a directory to mount on, a mount to change.

A path can lead elsewhere by the time it is used; a descriptor cannot. So everything here asks the
kernel about descriptors, and what is decided about one is done with the same one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError
from dieselfs.fuse.mount_table import MountEntry, mount_entries

_libc = ctypes.CDLL(None, use_errno=True)
_AT_EMPTY_PATH: Final = 0x1000
_AT_DONT_SYNC: Final = 0x4000
_BASIC_STATS: Final = 0x7FF
_MOUNT_ROOT: Final = 0x2000
# struct statx: mask, blksize, attributes, nlink, uid, gid, mode … dev_major, dev_minor
_STATX: Final = struct.Struct("=IIQIIIH 106x II 112x")
_STATFS_BYTES: Final = 256
_ANCESTORS: Final = 4096
"""More directories than a path can name."""

DIRECTORY_FILE_SYSTEMS: Final = {
    "ext": 0xEF53,
    "xfs": 0x58465342,
    "btrfs": 0x9123683E,
    "tmpfs": 0x01021994,
    "overlay": 0x794C7630,
    "zfs": 0x2FC12FC1,
    "f2fs": 0xF2F52010,
    "bcachefs": 0xCA451A4E,
    "nfs": 0x6969,
    "cifs": 0xFF534D42,
    "smb2": 0xFE534D42,
    "ceph": 0x00C36400,
    "lustre": 0x0BD00BD0,
    "gpfs": 0x47504653,
    "beegfs": 0x19830326,
    "ocfs2": 0x7461636F,
    "gfs2": 0x01161970,
    "afs": 0x5346414F,
    "fuse": 0x65735546,
}
"""File systems on which users have directories of their own, as fusermount3 lists them.

A mount over an entry of /proc, which its user owns too, would deceive programs that trust it.
"""
_SEALED: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class DescriptorFacts:
    """What statx(2) says."""

    mode: int
    uid: int
    device: tuple[int, int]
    is_mount_root: bool


def facts(descriptor: int, *, ask_server: bool = True) -> DescriptorFacts:
    """The facts about a file; without `ask_server` its device alone, which no server is asked."""
    buffer = ctypes.create_string_buffer(_STATX.size)
    flags = _AT_EMPTY_PATH | (0 if ask_server else _AT_DONT_SYNC)
    wanted = _BASIC_STATS if ask_server else 0
    if _libc.statx(descriptor, b"", flags, wanted, buffer):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    _, _, attributes, _, uid, _, mode, major, minor = _STATX.unpack(buffer.raw)
    return DescriptorFacts(mode, uid, (major, minor), bool(attributes & _MOUNT_ROOT))


def mount_id(descriptor: int) -> int:
    """The number of the mount through which a file was opened; asks no file system."""
    for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("mnt_id:"):
            return int(line.split()[1])
    raise MountError("the kernel does not say through which mount a file is open")


def mount_entry(descriptor: int) -> MountEntry | None:
    """The mount table's line for the mount of a file; None if it is not one of this namespace."""
    number = mount_id(descriptor)
    return next((entry for entry in mount_entries() if entry.mount_id == number), None)


def check_mountpoint(descriptor: int, uid: int) -> None:
    """Raise `MountError` unless the user may mount at this directory, which he must own."""
    found = facts(descriptor)
    if not stat.S_ISDIR(found.mode):
        raise MountError("the mountpoint is not a directory")
    if found.uid != uid:
        raise MountError(
            f"the mountpoint belongs to user {found.uid}, not to user {uid}",
            "mount at a directory of your own",
        )
    if _file_system(descriptor) not in DIRECTORY_FILE_SYSTEMS.values():
        raise MountError(
            "the mountpoint lies in a file system that holds no users' directories",
            "unmount what is there, or mount at an empty directory of your own",
        )
    _check_ancestors(descriptor, uid)


def _check_ancestors(descriptor: int, uid: int) -> None:
    """Refuse another user's space. It prevents accidents only: directories can be moved later."""
    current = os.dup(descriptor)
    try:
        for _ in range(_ANCESTORS):
            above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=current)
            is_top = os.path.sameopenfile(above, current) and mount_id(above) == mount_id(current)
            os.close(current)
            current = above
            if is_top:
                return
            if (owner := facts(current).uid) not in (0, uid):
                raise MountError(
                    f"the mountpoint lies in a directory of user {owner}",
                    "mount below your own directories",
                )
    finally:
        os.close(current)


def owned_mount(descriptor: int, uid: int, images: Path) -> MountEntry:
    """The mount whose root is open here. `MountError` unless it shows an image of this user's.

    Nobody but root mounts EROFS, so its source is what the service wrote, and its owner what is in
    the image.
    """
    entry = mount_entry(descriptor)
    if entry is not None and entry.file_system_type == "erofs":
        found = facts(descriptor)
        is_ours = Path(entry.source).is_relative_to(images)
        if is_ours and found.is_mount_root and found.uid == uid:
            return entry
    raise MountError("there is no mount of yours that the service has made", "see `dlcmd mounts`")


@contextmanager
def mountpoint_path(root: int, name: str) -> Iterator[str]:
    """The path of a mountpoint through a descriptor of the directory above: one name, no link.

    `root` is the mount's root. The mount is busy while that is open, so a caller that unmounts
    closes it and checks the mount's number again: who can exchange the name may remove the
    mountpoint anyway.
    """
    above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    try:
        yield f"/proc/self/fd/{above}/{name}"
    finally:
        os.close(above)


def check_sealed(descriptor: int) -> int:
    """The size of a file in memory that nobody can change. `MountError` for any other file."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALED != _SEALED:
        raise MountError("the snapshot is not in sealed memory: this is a fault of the client")
    return os.fstat(descriptor).st_size


def _file_system(descriptor: int) -> int:
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(descriptor, buffer):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(ctypes.c_long.from_buffer(buffer).value) & 0xFFFFFFFF
