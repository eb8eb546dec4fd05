"""The kernel's mount interface by file descriptors (fsopen, fsmount, move_mount: Linux 5.2).

The C library of Debian 12 lacks it. mount(8) before 2.41 makes a loop device of any image file, and
a path can be exchanged under a privileged caller; descriptors have neither problem. Every function
raises `OSError` with the kernel's own words where it has any.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_USTAT: Final = 136
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_CLOEXEC: Final = 1
_FROM_EMPTY_PATH, _TO_EMPTY_PATH, _BENEATH = 0x4, 0x40, 0x200
_CLONE: Final = 1
_AT_RECURSIVE: Final = 0x8000
_AT_EMPTY_PATH: Final = 0x1000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_AT_SYMLINK_NOFOLLOW, _AT_STATX_DONT_SYNC = 0x100, 0x4000
_MNT_ID_UNIQUE: Final = 0x4000
_STATX: Final = struct.Struct("I132x2IQ104x")
"""statx(2): the mask of what it has found, the device's major and minor number, and the mount."""
ATTR_READ_ONLY: Final = 0x1
ATTR_NOSUID: Final = 0x2
ATTR_NODEV: Final = 0x4
SAFE: Final = ATTR_READ_ONLY | ATTR_NOSUID | ATTR_NODEV
"""The attributes of every mount of a dataset."""

Option = tuple[str, str | None]
"""A key and its value; None for a flag."""


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def new_mount(kind: str, options: Iterable[Option], attributes: int = SAFE) -> int:
    """Return a descriptor of a new detached mount.

    Closing it ends the mount unless it was attached or a file of it is open.
    """
    context = _call(_FSOPEN, kind.encode(), _CLOEXEC)
    try:
        for key, value in options:
            _configure(context, key, value)
        try:
            _call(_FSCONFIG, context, _CREATE, None, None, 0)
        except OSError as error:
            raise OSError(error.errno, _kernel_messages(context) or error.strerror) from None
        return _call(_FSMOUNT, context, _CLOEXEC, attributes)
    finally:
        os.close(context)


def _configure(context: int, key: str, value: str | None) -> None:
    try:
        if value is None:
            _call(_FSCONFIG, context, _SET_FLAG, key.encode(), None, 0)
        else:
            _call(_FSCONFIG, context, _SET_STRING, key.encode(), os.fsencode(value), 0)
    except OSError as error:
        reason = _kernel_messages(context) or error.strerror
        raise OSError(error.errno, f"option {key}: {reason}") from None


def _kernel_messages(context: int) -> str:
    """Return the kernel's messages about a file system that is being configured."""
    lines = []
    try:
        while True:
            lines.append(os.read(context, 8192).decode(errors="replace").strip())
    except OSError:
        return "; ".join(line[2:] if line[1:2] == " " else line for line in lines)


def attach(mount: int, where: str | os.PathLike[str] | int, *, beneath: bool = False) -> None:
    """Show a mount at a path, or at the directory of a descriptor.

    With `beneath`, it goes below what is mounted there (Linux 6.5). The descriptor stays the
    caller's.
    """
    flags = _FROM_EMPTY_PATH | (_BENEATH if beneath else 0)
    if isinstance(where, int):
        _call(_MOVE_MOUNT, mount, b"", where, b"", flags | _TO_EMPTY_PATH)
    else:
        _call(_MOVE_MOUNT, mount, b"", -100, os.fsencode(where), flags)


def attach_inside(mount: int, outer: int, name: str) -> None:
    """Show a mount at a directory of another one, which a descriptor names.

    The other one may be a detached mount since Linux 6.15.
    """
    _call(_MOVE_MOUNT, mount, b"", outer, os.fsencode(name), _FROM_EMPTY_PATH)


def clone(where: str | os.PathLike[str] | int, *, recursive: bool = False) -> int:
    """Return a descriptor of another, detached mount of the same file system."""
    flags = _CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    if isinstance(where, int):
        return _call(_OPEN_TREE, where, b"", flags | _AT_EMPTY_PATH)
    return _call(_OPEN_TREE, -100, os.fsencode(where), flags)


def detach(where: str | os.PathLike[str], *, lazy: bool = True) -> None:
    """Detach the topmost mount at a path.

    With `lazy`, it goes at once, and processes that have files open keep it.
    """
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    if _libc.umount2(os.fsencode(where), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fspath(where))


def detach_mount(root: int) -> None:
    """Detach, lazily, exactly the mount whose root directory a descriptor has open."""
    if _libc.umount2(f"/proc/self/fd/{root}".encode(), _MNT_DETACH):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def look_up(device: tuple[int, int]) -> None:
    """Have the kernel look a file system up by its `st_dev`; EINVAL if none has it.

    Waits, uninterruptibly, while the kernel ends it. ARM has no such call (ustat), and others have
    it by another number: `OSError` there.
    """
    if os.uname().machine != "x86_64" or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    major, minor = device
    number = minor & 0xFF | major << 8 | (minor & ~0xFF) << 12
    _call(_USTAT, ctypes.c_uint(number), ctypes.create_string_buffer(32))


class UniqueMount(NamedTuple):
    """A mount, by an id that no other one has had or will have."""

    device: tuple[int, int]
    """The major and minor number of the file system: its `st_dev`."""
    id: int | None
    """None before Linux 6.8."""


def unique_mount(where: str | os.PathLike[str] | int) -> UniqueMount:
    """Return the topmost mount at a path, or that of a descriptor; ask no file system."""
    flags = _AT_SYMLINK_NOFOLLOW | _AT_STATX_DONT_SYNC
    found = ctypes.create_string_buffer(_STATX.size)
    directory, path = (where, b"") if isinstance(where, int) else (-100, os.fsencode(where))
    flags |= 0 if path else _AT_EMPTY_PATH
    if _libc.statx(directory, path, flags, _MNT_ID_UNIQUE, found):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    mask, major, minor, number = _STATX.unpack(found)
    return UniqueMount((major, minor), number if mask & _MNT_ID_UNIQUE else None)
