"""The mounts of an EROFS front: how they are made, shown and replaced.

The kernel answers names from an image, and reads bytes through a blob that this process serves.

    image file ──▶ EROFS at the mountpoint ──misses──▶ blob (a hidden FUSE mount): `blob_server`
                       └─ .dieselfs: a FUSE mount of its own: `control_mount`

A *detached* mount is shown nowhere. No mount outlives a failure: a detached mount ends with its
descriptors.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.control_names import CONTROL_FOLDER
from dieselfs.fuse.mounts.loop_devices import attach_loop
from dieselfs.fuse.mounts.mount_syscalls import (
    ATTR_READ_ONLY,
    SAFE,
    Option,
    attach,
    attach_inside,
    clone,
    detach,
    new_mount,
    unique_mount,
)
from dieselfs.fuse.mounts.readahead import (
    NARROW_KIB,
    erofs_settings,
    set_readahead,
    widen_erofs_readahead,
)

log = logging.getLogger(__name__)

_DEVICE: Final = "/dev/fuse"


@dataclass(frozen=True, slots=True)
class FuseMount:
    """A detached FUSE mount and its connection. Both descriptors are the caller's."""

    connection: int
    mount: int


def new_fuse_mount(
    source: str,
    *,
    allow_other: bool = True,
    is_writable: bool = False,
    uid: int = 0,
    gid: int = 0,
) -> FuseMount:
    """Create a detached FUSE mount; needs root. Raises `OSError`.

    `source` is what mount tables show, `uid` and `gid` are the server's. With `is_writable` the
    server itself refuses what may not be written; the kernel does not look at modes.
    """
    others: list[Option] = [("allow_other", None)] if allow_other else []
    modes: list[Option] = [] if is_writable else [("default_permissions", None)]
    connection = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        mount = new_mount(
            "fuse",
            [
                ("source", source),
                ("subtype", "dieselfs"),
                ("fd", str(connection)),
                ("rootmode", "40000"),
                ("user_id", str(uid)),
                ("group_id", str(gid)),
                *modes,
                *others,
            ],
            SAFE & ~ATTR_READ_ONLY if is_writable else SAFE,
        )
    except BaseException:
        os.close(connection)
        raise
    return FuseMount(connection, mount)


def find_blobs(mount: int, count: int) -> list[int]:
    """Return O_PATH descriptors of a served mount's blobs.

    They keep the mount when its own descriptor is closed, and open no file. The server may be
    another user's, whose link would lead the kernel, which opens the blob as root, to any file. So
    no link is followed, and a blob must be a regular file of this mount, else `MountError` is
    raised.
    """
    device = os.fstat(mount).st_dev
    with ExitStack() as opened:
        blobs = []
        for name in map(blob_name, range(count)):
            blob = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=mount)
            opened.callback(os.close, blob)
            found = os.fstat(blob)
            if not stat.S_ISREG(found.st_mode) or found.st_dev != device:
                raise MountError(f"{name} is not a regular file of its server")
            blobs.append(blob)
        opened.pop_all()
    return blobs


def open_blob(blob: int) -> int:
    """Return a descriptor for reading, from an O_PATH one.

    Close it soon: a process that exits with its own blob open may hang.
    """
    return os.open(f"/proc/self/fd/{blob}", os.O_RDONLY | os.O_CLOEXEC)


def mount_image(image: Path, blobs: Sequence[int], *, direct_io: bool) -> int:
    """Return a detached mount of EROFS over files (Linux 6.12).

    `direct_io` bypasses the blobs' page cache. EROFS reads its blobs by files. Their readahead
    would reach into chunks that are not in memory, and a reader would wait for those, so only
    advices read more at once.
    """
    blob_mount = os.fstat(blobs[0]).st_dev
    set_readahead(blob_mount, NARROW_KIB)
    devices = [("device", f"/proc/self/fd/{blob}") for blob in blobs]
    options: list[Option] = [("source", str(image)), *devices]
    before = erofs_settings()
    mount = new_mount("erofs", [*options, ("directio", None)] if direct_io else options)
    widen_erofs_readahead(before)
    set_readahead(blob_mount)
    return mount


def mount_image_over_loop(image: Path, blobs: Sequence[int]) -> int:
    """Return a detached mount of EROFS over loop devices (Linux 5.16), which end with the mount."""
    with ExitStack() as opened:

        def loop(fd: int, direct_io: bool) -> str:
            opened.callback(os.close, fd)
            path, device = attach_loop(fd, direct_io=direct_io)
            opened.callback(os.close, device)
            return path

        source = loop(os.open(image, os.O_RDONLY | os.O_CLOEXEC), False)
        devices = [("device", loop(open_blob(blob), True)) for blob in blobs]
        return new_mount("erofs", [("source", source), *devices, ("ro", None)])


def show(mount: int, control: int | None, places: Sequence[Path], replace: bool) -> None:
    """Show a mount, with its control directory, at one or more places.

    With `replace`, it replaces the mounts there. The new one goes beneath the old one, which is
    then detached (Linux 6.5): a path leads to one of the two at any moment. Older kernels get the
    new one on top, and the old one stays below it.
    """
    first, *others = places
    inside = control is not None and _attached_inside(control, mount)
    _show_at(mount, first, replace)
    if control is not None and not inside:
        attach(control, first / CONTROL_FOLDER)
    for place in others:
        share(first, place, replace)


def share(
    shown: Path, place: Path, replace: bool = False, *, device: tuple[int, int] | None = None
) -> None:
    """Show a mount, with its control directory, at another place too: the same inodes and pages.

    With `device`, the mount must be of this file system: `OSError` if it has gone meanwhile.
    """
    copy = clone(shown, recursive=True)
    try:
        if device is not None and unique_mount(copy).device != device:
            raise FileNotFoundError(errno.ENOENT, "the mount has gone", os.fspath(shown))
        _show_at(copy, place, replace)
    finally:
        os.close(copy)


def _show_at(mount: int, place: Path, replace: bool) -> None:
    if replace and _is_beneath(mount, place):
        detach(place)  # the older one, which is on top
    else:
        attach(mount, place)


def show_control(control: int, places: Sequence[Path]) -> None:
    """Replace the control directory wherever a mount is shown; the older one's server has gone."""
    for place in places:
        with suppress(OSError):
            detach(place / CONTROL_FOLDER)
    if not places:
        return  # only open files have kept the mount
    first, *others = [place / CONTROL_FOLDER for place in places]
    attach(control, first)
    for place in others:
        share(first, place)


def _attached_inside(control: int, mount: int) -> bool:
    try:
        attach_inside(control, mount, CONTROL_FOLDER)
    except OSError as error:  # before Linux 6.15 only a mount that is shown can be mounted in
        log.debug("the control directory is mounted later: %s", error)
        return False
    return True


def _is_beneath(mount: int, mountpoint: Path) -> bool:
    try:
        attach(mount, mountpoint, beneath=True)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        log.info("the new mount covers the old one, which stays: %s", error.strerror)
        return False
    return True


def blob_name(device: int) -> str:
    """Return the name of a device's file: `blob`, `blob1`, …"""
    return f"blob{device or ''}"
