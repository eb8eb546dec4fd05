"""An ordinary user's mount, made by fusermount3.

fusermount3, which is setuid root, opens /dev/fuse, mounts, and returns the descriptor. It sends the
descriptor over the socket that `_FUSE_COMMFD` names (SCM_RIGHTS) and ends. It mounts with
`nosuid,nodev` for all users but root.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.system_parts import FUSERMOUNT, without_fusermount

_PASSING: Final = "_FUSE_COMMFD"
_TIMEOUT_S: Final = 30.0
_HINTS: Final = {
    "user_allow_other": (
        "add the line `user_allow_other` to /etc/fuse.conf, or mount without --allow-other"
    ),
    "no write access": "choose a directory that belongs to you",
    "/dev/fuse": (
        "load the module (modprobe fuse); a container needs --device /dev/fuse --cap-add SYS_ADMIN"
    ),
    "too many FUSE": "unmount some, or raise mount_max in /etc/fuse.conf",
}


def mount(mountpoint: Path, options: Iterable[str]) -> int:
    """Mount at `mountpoint` and return a new descriptor of /dev/fuse.

    The caller serves and closes the descriptor. `options` are those of fusermount3, such as
    `fsname=…`, `subtype=…`, `ro`, `default_permissions`. Raises `MountError` with fusermount3's own
    words.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        arguments = ["-o", ",".join(map(_escaped, options)), "--", os.fspath(mountpoint)]
        complaint = _run(arguments, theirs.fileno())
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        hint = next((hint for part, hint in _HINTS.items() if part in complaint), None)
        raise MountError(f"cannot mount at {mountpoint}: {complaint}", hint)
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def unmount(mountpoint: Path, lazy: bool) -> None:
    """Unmount what this user has mounted.

    Raises `OSError` EBUSY if it is in use, else `MountError`.
    """
    complaint = _run(["-u", *(["-z"] if lazy else []), "--", os.fspath(mountpoint)])
    if "busy" in complaint.lower():
        raise OSError(errno.EBUSY, complaint)
    if complaint:
        raise MountError(f"cannot unmount {mountpoint}: {complaint}")


def _escaped(option: str) -> str:
    """Return an option in which commas are escaped by a backslash, as fusermount3 wants it."""
    return option.replace("\\", "\\\\").replace(",", "\\,")


def _run(arguments: Sequence[str], passed: int | None = None) -> str:
    """Return the complaint of the program, "" if it succeeds.

    A mount may have been made in spite of a complaint.
    """
    passing = {} if passed is None else {_PASSING: str(passed)}
    try:
        done = subprocess.run(
            [FUSERMOUNT, *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            pass_fds=[] if passed is None else [passed],
            env={**os.environ, "LC_ALL": "C", **passing},
        )
    except FileNotFoundError:
        raise without_fusermount() from None
    except subprocess.TimeoutExpired:
        what = f"{FUSERMOUNT} takes longer than {_TIMEOUT_S:.0f} s for {arguments[-1]}"
        raise MountError(what) from None
    if done.returncode == 0:
        return ""
    message = done.stderr.strip().removeprefix(f"{FUSERMOUNT}: ")
    return message or f"{FUSERMOUNT} failed with exit status {done.returncode}"
