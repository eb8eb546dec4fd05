"""An ordinary user's mount: fusermount3, which is setuid root, opens /dev/fuse, mounts, and hands the descriptor back.

It sends the descriptor over the socket that `_FUSE_COMMFD` names (SCM_RIGHTS) and ends. It mounts with `nosuid,nodev`
for anybody but root.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError

_PROGRAM: Final = "fusermount3"
_PASSING: Final = "_FUSE_COMMFD"
_TIMEOUT_S: Final = 30.0
_HINTS: Final = {
    "user_allow_other": "add the line `user_allow_other` to /etc/fuse.conf, or mount without --allow-other",
    "no write access": "choose a directory that belongs to you",
    "/dev/fuse": "load the module (modprobe fuse); a container needs --device /dev/fuse --cap-add SYS_ADMIN",
    "too many FUSE": "unmount some, or raise mount_max in /etc/fuse.conf",
}


def mount(mountpoint: Path, options: Iterable[str]) -> int:
    """Mount at `mountpoint` and return a new descriptor of /dev/fuse, the caller's to serve and close.

    `options` are those of fusermount3, such as `fsname=…`, `subtype=…`, `ro`, `default_permissions`. Raises `MountError` with
    fusermount3's own words.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        complaint = _run(mountpoint, ",".join(map(_escaped, options)), theirs.fileno())
        theirs.close()
        descriptor = _received(ours)
    if descriptor is None:
        raise MountError(f"cannot mount at {mountpoint}: {complaint}", _hint(complaint))
    return descriptor


def _escaped(option: str) -> str:
    """fusermount3 takes a comma in a value after a backslash."""
    return option.replace("\\", "\\\\").replace(",", "\\,")


def _run(mountpoint: Path, options: str, descriptor: int) -> str:
    """Return what the program complains of; it may have mounted all the same."""
    try:
        done = subprocess.run(
            [_PROGRAM, "-o", options, "--", os.fspath(mountpoint)],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            pass_fds=[descriptor],
            env={**os.environ, "LC_ALL": "C", _PASSING: str(descriptor)},
        )
    except FileNotFoundError:
        raise MountError(f"{_PROGRAM} is not installed", "install the package fuse3") from None
    except subprocess.TimeoutExpired:
        raise MountError(f"mounting at {mountpoint} takes longer than {_TIMEOUT_S:.0f} s") from None
    said = done.stderr.strip().removeprefix(f"{_PROGRAM}: ")
    return said or f"{_PROGRAM} failed with exit status {done.returncode}"


def _received(ours: socket.socket) -> int | None:
    """The descriptor that was sent, if one was."""
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        return None
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def _hint(complaint: str) -> str | None:
    return next((hint for part, hint in _HINTS.items() if part in complaint), None)
