"""A mount namespace in which an overlay lies over each FUSE mount of a dataset, for one command.

Python's `open` asks whether a file is a terminal (ioctl TCGETS), and FUSE passes the question to
the daemon: a round trip a file, which makes a stock DataLoader three times slower than on ext4. An
overlay answers it in the kernel. Other programs keep seeing the mount as it is.

Overlays can be made by root, and by ordinary users in a user namespace in which they have their own
ids. There setuid programs such as sudo and fusermount3 do not work.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.control_names import CONTROL_FOLDER
from dieselfs.fuse.mounts.mount_syscalls import attach, clone, detach, new_mount
from dieselfs.fuse.mounts.mount_table import FUSE_TYPE, MountEntry, MountState, ask, mount_entries

_ANSWER_TIMEOUT_S: Final = 2.0
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_RECURSIVE, _SLAVE = 0x4000, 1 << 19
_SET_DUMPABLE: Final = 4
_libc = ctypes.CDLL(None, use_errno=True)


def fuse_mounts(entries: Sequence[MountEntry], below: Sequence[Path]) -> list[MountEntry]:
    """Return the mounts that an overlay makes faster: FUSE, visible, not a control directory."""
    visible = {entry.mountpoint: entry for entry in entries}
    return [
        entry
        for entry in visible.values()
        if entry.file_system_type == FUSE_TYPE
        and not entry.is_control
        and any(entry.mountpoint.is_relative_to(folder) for folder in below)
    ]


def lay_overlays(below: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Give this process namespaces of its own, with an overlay over each FUSE mount that answers.

    Only mounts at or below the absolute paths `below` get one. Returns their mountpoints, and why
    others stay as they were. A mount that is unmounted elsewhere ends when the last process under
    its overlay does.

    Without such a mount nothing changes. Call it from a process of one thread, before an exec.
    Raises `MountError` if a namespace cannot be made; then nothing has changed either.
    """
    found = ask(fuse_mounts(mount_entries(), below), _ANSWER_TIMEOUT_S)
    serving = [info.mountpoint for info in found if info.state is MountState.SERVING]
    problems = [
        f"{info.mountpoint}: {info.state}" for info in found if info.mountpoint not in serving
    ]
    if serving:
        _enter_namespaces()
    laid = []
    for mountpoint in serving:
        try:
            _lay(mountpoint)
            laid.append(mountpoint)
        except OSError as error:
            problems.append(f"{mountpoint}: {error.strerror or error}")
    return laid, problems


def _enter_namespaces() -> None:
    """Enter a mount namespace of this process.

    New mounts of the machine still appear here; mounts made here stay here.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        try:
            _check(_libc.unshare(_NEW_MOUNTS))
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
            _check(_libc.unshare(_NEW_USER | _NEW_MOUNTS))
            _map_to_themselves(uid, gid)
        _check(_libc.mount(None, b"/", None, _RECURSIVE | _SLAVE, None))
    except OSError as error:
        raise MountError(
            f"this process gets no mount namespace: {error.strerror}",
            "allow user namespaces (sysctl user.max_user_namespaces, "
            "kernel.apparmor_restrict_unprivileged_userns), or run it as root",
        ) from error


def _map_to_themselves(uid: int, gid: int) -> None:
    # A process that holds a secret is not dumpable, and then its files in /proc are root's. The
    # command replaces this memory at once.
    _check(_libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0))
    Path("/proc/self/setgroups").write_text("deny")  # else an ordinary user may not map a group
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _check(result: int) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _lay(mountpoint: Path) -> None:
    """Lay a read-only overlay over the mount at its own mountpoint.

    Such an overlay needs two layers. The upper one, which is empty, lies in a tmpfs that is at the
    mountpoint for a moment, since a layer must be a directory in this namespace.
    """
    with ExitStack() as opened:
        below = os.open(mountpoint, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, below)
        empty = new_mount("tmpfs", [("size", "4096"), ("mode", "0755")])
        opened.callback(os.close, empty)
        attach(empty, mountpoint)
        try:
            layers = f"/proc/self/fd/{empty}:/proc/self/fd/{below}"
            overlay = new_mount("overlay", [("source", "dieselfs-run"), ("lowerdir", layers)])
        finally:
            detach(mountpoint)
        opened.callback(os.close, overlay)
        control = clone(f"/proc/self/fd/{below}/{CONTROL_FOLDER}")
        opened.callback(os.close, control)
        attach(overlay, mountpoint)
        attach(control, mountpoint / CONTROL_FOLDER)
