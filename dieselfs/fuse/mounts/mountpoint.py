"""A mountpoint before and after a mount: the checks before it, and how it is freed.

Nothing here touches a mountpoint before the kernel's table says that no DieselFS mount lies on it:
one whose daemon is stopped would hang this process.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import Final

from dieselfs.errors import MountError, MountpointBusy
from dieselfs.fuse.mounts import fusermount
from dieselfs.fuse.mounts import service_client as mount_service
from dieselfs.fuse.mounts.control_names import CONTROL_FOLDER
from dieselfs.fuse.mounts.mount_syscalls import attach, clone, detach, detach_mount
from dieselfs.fuse.mounts.mount_table import (
    EROFS_TYPE,
    MountEntry,
    MountState,
    ask,
    entry_at,
    is_asking,
    mount_id,
)
from dieselfs.fuse.mounts.system_parts import check_parts

log = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S: Final = 2.0
_SHOWN_USERS: Final = 5
DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HELPER_PATIENCE_S: Final = 0.5
"""The time for the mount's own helper processes, which briefly have a file or a directory open."""
_UNSEEN_PATIENCE_S: Final = 3.0
"""The time for users that cannot be seen: what a process that ends still has on a busy node."""


def resolve(mountpoint: Path) -> Path:
    """Return `mountpoint` absolute and without links.

    Its own last component is read only if it is no mountpoint yet.
    """
    near = Path(os.path.realpath(mountpoint.parent), mountpoint.name)
    if mountpoint.name in ("", "..") or entry_at(near) is None:
        return Path(os.path.realpath(mountpoint))
    return near


def check_mountable(mountpoint: Path, nonempty: bool = False) -> None:
    """Raise `MountError` unless `mountpoint` can be mounted on now.

    A mount whose daemon has died is unmounted first.
    """
    check_parts()
    mountpoint = resolve(mountpoint)
    entry = entry_at(mountpoint)
    if entry is not None and entry.is_dieselfs:
        _clear_if_dead(entry)
        entry = entry_at(mountpoint)
    try:
        names = os.listdir(mountpoint)
    except FileNotFoundError:
        raise MountError(
            f"mountpoint {mountpoint} does not exist",
            f"make it: mkdir -p {quote(str(mountpoint))}",
        ) from None
    except NotADirectoryError:
        raise MountError(f"mountpoint {mountpoint} is not a directory") from None
    except OSError as error:
        raise MountError(f"mountpoint {mountpoint}: {error.strerror}") from error
    if entry is not None and not nonempty:
        raise MountpointBusy(
            f"mountpoint {mountpoint} is busy: {entry.shown} ({entry.file_system_type}) is "
            "mounted there",
            "choose another directory, or mount over it with --nonempty",
        )
    if names and not nonempty:
        raise MountError(
            f"mountpoint {mountpoint} is not empty",
            "choose an empty directory, or hide its content with --nonempty",
        )


def _clear_if_dead(entry: MountEntry) -> None:
    [info] = ask([entry], _ANSWER_TIMEOUT_S)
    where = quote(os.fspath(entry.mountpoint))
    if info.state is MountState.DEAD:
        log.warning("the daemon of %s at %s is gone: unmounting it", entry.shown, entry.mountpoint)
        unmount(entry.mountpoint, lazy=True)
    elif info.state is MountState.HUNG:
        raise MountpointBusy(
            f"{entry.shown} is mounted at {entry.mountpoint} and does not answer",
            f"end it: dlcmd umount {where}",
        )
    else:
        raise MountpointBusy(
            f"{entry.shown} is already mounted at {entry.mountpoint}",
            f"unmount it first: dlcmd umount {where}; or let it take the newest snapshot: "
            f"dlcmd mount --refresh {info.dataset or 'DATASET'} {where}",
        )


def mount_at(mountpoint: Path) -> MountEntry:
    """Return the DieselFS mount at `mountpoint`; raise `MountError` if there is none."""
    mountpoint = resolve(mountpoint)
    entry = entry_at(mountpoint)
    if entry is None or not entry.is_dieselfs:
        what = f", but {entry.file_system_type}" if entry else ""
        raise MountError(f"no DieselFS mount at {mountpoint}{what}", "`dlcmd mounts` lists them")
    return entry


def unmount(mountpoint: Path, lazy: bool = False) -> None:
    """Unmount the DieselFS mount at `mountpoint`; it is gone when this returns.

    `lazy` detaches it at once, and processes with open files keep them until the daemon ends.
    Raises `MountpointBusy` (which names the processes that use it) or `MountError`.
    """
    entry = mount_at(mountpoint)
    began = time.monotonic()
    while True:
        try:
            _unmount(entry, lazy)
            return
        except MountpointBusy:  # another mount covers it
            if time.monotonic() - began > _HELPER_PATIENCE_S:
                raise
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise MountError(f"cannot unmount {mountpoint}: {error.strerror}") from error
        if time.monotonic() - began > _HELPER_PATIENCE_S:
            users, here = _used_by(entry.mountpoint), _uses(Path("/proc/self"), entry.mountpoint)
            if users or here or time.monotonic() - began > _UNSEEN_PATIENCE_S:
                leave = "leave the directory first (cd /), " if here else ""
                raise MountpointBusy(
                    f"{mountpoint} is in use{users}",
                    f"{leave}end the processes that use it, or detach it with --lazy",
                )
        time.sleep(0.05)


def _unmount(entry: MountEntry, lazy: bool) -> None:
    """Unmount once. Raises `OSError` EBUSY if the mount is in use."""
    mountpoint, is_erofs = entry.mountpoint, entry.file_system_type == EROFS_TYPE
    if os.geteuid() != 0:
        (mount_service if is_erofs else fusermount).unmount(mountpoint, lazy)
    elif lazy or not is_erofs:
        detach(mountpoint, lazy=lazy)
    else:
        detach_unused(mountpoint, entry.mount_id)


def detach_unused(path: str | os.PathLike[str], number: int) -> None:
    """Detach the mount with EROFS in front that has this number at `path`.

    Raises `OSError` EBUSY if it is in use. Its control directory, a mount of its own, does not
    count as use, and is restored if the mount stays. No link is followed to find it, and no server
    is asked.
    """
    with ExitStack() as opened:
        control = None
        with _opened_control(path, number) as place:
            if mount_id(place) != number:
                control = clone(place)
                opened.callback(os.close, control)
                detach_mount(place)
        try:
            detach(path, lazy=False)
        except OSError:
            if control is not None:
                with _opened_control(path, number) as place:
                    attach(control, place)
            raise


@contextmanager
def _opened_control(path: str | os.PathLike[str], number: int) -> Iterator[int]:
    """Yield the control directory's place in the mount that has this number.

    It is the root of what is mounted there, if anything is.
    """
    with ExitStack() as opened:
        root = os.open(path, DIRECTORY)
        opened.callback(os.close, root)
        if mount_id(root) != number:
            raise MountpointBusy("another mount covers this one", "try again")
        place = os.open(CONTROL_FOLDER, DIRECTORY, dir_fd=root)
        opened.callback(os.close, place)
        yield place


def _used_by(mountpoint: Path) -> str:
    """Return the other processes that use something below `mountpoint`, as this user sees them."""
    users = [
        f"{_command_name(process)} ({process.name})"
        for process in sorted(Path("/proc").glob("[0-9]*"))
        if process.name != str(os.getpid())
        and _uses(process, mountpoint)
        and not is_asking(process)  # for `dlcmd mounts`, for a moment
    ]
    if not users:
        return ""
    more = f" and {len(users) - _SHOWN_USERS} more" if len(users) > _SHOWN_USERS else ""
    return " by " + ", ".join(users[:_SHOWN_USERS]) + more


def _uses(process: Path, mountpoint: Path) -> bool:
    try:
        links = [process / "cwd", process / "root", *(process / "fd").iterdir()]
    except OSError:  # ended meanwhile, or another user's
        return False
    return any(_target(link).is_relative_to(mountpoint) for link in links)


def _target(link: Path) -> Path:
    try:
        return Path(os.readlink(link))
    except OSError:
        return Path()


def _command_name(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "a process that ended"
