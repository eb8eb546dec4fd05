"""Checks of descriptors that other users send.

They are of a directory to mount on, a mount to change, or a snapshot. A path can lead elsewhere by
the time it is used; a descriptor cannot. So every check asks the kernel about a descriptor, and the
action that follows uses the same one.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import struct
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError, MountpointBusy
from dieselfs.fuse.mounts.control_names import CONTROL_FOLDER
from dieselfs.fuse.mounts.mount_syscalls import detach_mount
from dieselfs.fuse.mounts.mount_table import EROFS_TYPE, MountEntry, mount_entries, mount_id
from dieselfs.fuse.mounts.mountpoint import DIRECTORY

CONTROL_SOURCE: Final = "dieselfs-control"
_NAMES = """
ext2 ext3 ext4 xfs btrfs tmpfs overlay zfs f2fs bcachefs nfs nfs4 cifs smb3 ceph lustre gpfs beegfs
ocfs2 gfs2 afs fuse fuseblk virtiofs
"""
DIRECTORY_FILE_SYSTEMS: Final = frozenset(_NAMES.split())
"""File systems on which users have directories of their own, as fusermount3 lists them.

A mount over an entry of /proc, which its user owns too, would deceive programs that trust it.
"""
_libc = ctypes.CDLL(None, use_errno=True)
_AT_EMPTY_PATH, _AT_DONT_SYNC = 0x1000, 0x4000
_MOUNT_ROOT: Final = 0x2000
_STATX: Final = struct.Struct("=8x Q 124x I 112x")
"""struct statx: stx_attributes and stx_dev_minor."""
_SEALED: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def unasked_facts(descriptor: int) -> tuple[int, bool]:
    """Return the minor device number of a file's file system, and whether it is its mount's root.

    The call sends no request to a server.
    """
    buffer = ctypes.create_string_buffer(_STATX.size)
    if _libc.statx(descriptor, b"", _AT_EMPTY_PATH | _AT_DONT_SYNC, 0, buffer):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    attributes, minor = _STATX.unpack(buffer.raw)
    return minor, bool(attributes & _MOUNT_ROOT)


def check_sealed(descriptor: int) -> int:
    """Return the size of a file in memory that is sealed; raise `MountError` for any other file."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALED != _SEALED:
        raise MountError("the snapshot is not in sealed memory: this is a bug of the client")
    return os.fstat(descriptor).st_size


def check_mountpoint(descriptor: int, uid: int) -> None:
    """Raise `MountError` unless the user may mount at this directory, which he must own."""
    found = os.fstat(descriptor)
    if not stat.S_ISDIR(found.st_mode):
        raise MountError("the mountpoint is not a directory")
    if found.st_uid != uid:
        raise MountError(
            f"the mountpoint belongs to user {found.st_uid}, not to user {uid}",
            "mount at a directory of your own",
        )
    entry = _mount_entry(descriptor)
    kind = entry.file_system_type.partition(".")[0] if entry else None  # fuse.sshfs is fuse
    if kind not in DIRECTORY_FILE_SYSTEMS:
        raise MountError(
            "the mountpoint lies in a file system that holds no users' directories",
            "unmount what is there, or mount at an empty directory of your own",
        )
    # By path, since it prevents accidents only: a user can move his directories later.
    for folder in Path(os.readlink(f"/proc/self/fd/{descriptor}")).parents:
        if (owner := folder.stat().st_uid) not in (0, uid):
            raise MountError(
                f"the mountpoint lies in a directory of user {owner}",
                "mount below your own directories",
            )


def check_owned(descriptor: int, uid: int, images: Path) -> MountEntry:
    """Return the mount whose root is open here.

    Raises `MountError` unless it shows an image of this user's. Only root mounts EROFS, so the
    source of the mount is the one that the service wrote, and its owner is the one in the image.
    """
    entry = _mount_entry(descriptor)
    if entry is not None and entry.file_system_type == EROFS_TYPE:
        is_ours = Path(entry.source).is_relative_to(images)
        _, is_root = unasked_facts(descriptor)
        if is_ours and is_root and os.fstat(descriptor).st_uid == uid:
            return entry
    raise MountError("there is no mount of yours that the service has made", "see `dlcmd mounts`")


def control_place(root: int) -> int:
    """Return the control directory of the image, after detaching a control mount that is on it."""
    place = os.open(CONTROL_FOLDER, DIRECTORY, dir_fd=root)
    if mount_id(place) == mount_id(root):
        return place
    try:
        entry = _mount_entry(place)
        if entry is None or entry.source != CONTROL_SOURCE:
            raise MountpointBusy(f"something else is mounted at {CONTROL_FOLDER}", "unmount it")
        detach_mount(place)
    finally:
        os.close(place)
    return os.open(CONTROL_FOLDER, DIRECTORY, dir_fd=root)


def _mount_entry(descriptor: int) -> MountEntry | None:
    """Return the line of a file's mount in the mount table; None if it is of another namespace."""
    number = mount_id(descriptor)
    return next((entry for entry in mount_entries() if entry.mount_id == number), None)
