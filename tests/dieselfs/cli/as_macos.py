"""`python -m tests.dieselfs.cli.as_macos ARGUMENTS...` runs `dlcmd` with the Python of a Mac.

The process loses the names that only Linux's Python has, the system calls that only Linux's C
library has, and /proc, /sys, /dev/shm and Linux's files of identity. That shows which of them the
code needs. It does not show what the kernel and the file system of a Mac do differently behind the
same names, nor that the libraries which DieselFS imports install there.
"""

import contextlib
import ctypes
import errno
import fcntl
import importlib
import mmap
import os
import re
import resource
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

LINUX_ONLY: dict[ModuleType, str] = {
    os: r"O_(DIRECT|PATH|TMPFILE|NOATIME|RSYNC|LARGEFILE)|(posix_)?fadvise|POSIX_FADV_.*|"
    r"posix_fallocate|fdatasync|copy_file_range|eventfd.*|EFD_.*|memfd_create|MFD_.*|pidfd_open|"
    r"P_PIDFD|p?splice|SPLICE_.*|.*xattr|XATTR_.*|sched_(?!yield|get_priority).*|setns|unshare|"
    r"CLONE_.*|[gs]etres[ug]id|getrandom|GRND_.*|pipe2|RWF_.*|waitid|PIDFD_.*",
    fcntl: r"F_SEAL_.*|F_(ADD|GET)_SEALS|F_[GS]ETSIG|F_[GS]ETLEASE|F_[GS]ETPIPE_SZ|F_NOTIFY|DN_.*|"
    r"F_OFD_.*",
    socket: r"SO_(PEERCRED|PEERSEC|PASSCRED|DOMAIN|PROTOCOL|MARK|BINDTODEVICE)|SOCK_(CLOEXEC|NONBLOCK)|"
    r"MSG_(NOSIGNAL|CMSG_CLOEXEC|MORE|CONFIRM|ERRQUEUE|FASTOPEN)|TCP_(USER_TIMEOUT|KEEPIDLE|CORK|"
    r"QUICKACK|DEFER_ACCEPT|INFO)|AF_(NETLINK|VSOCK|PACKET|ALG|CAN|TIPC|QIPCRTR)",
    select: r"epoll|EPOLL.*",
    signal: r"pidfd_send_signal|sigtimedwait|sigwaitinfo|SIGRT.*|SIGPWR|SIGSTKFLT|SIGPOLL|SIGCLD",
    mmap: r"MAP_(POPULATE|LOCKED|STACK|DENYWRITE|EXECUTABLE)|MADV_(HUGEPAGE|NOHUGEPAGE|DONTFORK|DOFORK|"
    r"MERGEABLE|UNMERGEABLE|HWPOISON|SOFT_OFFLINE|DONTDUMP|DODUMP|REMOVE)",
    resource: r"prlimit|RLIMIT_(SIGPENDING|MSGQUEUE|NICE|RTPRIO|RTTIME|OFILE)",
    time: r"CLOCK_(BOOTTIME|TAI)|pthread_getcpuclockid",
}
"""By module, the names that a Python on macOS lacks."""
SYMBOLS = re.compile(
    r"prctl|inotify_.*|umount2|unshare|setns|statx|open_tree|move_mount|fs(open|config|mount|pick)|"
    r"syscall|mount|eventfd|memfd_create|renameat2|sendfile64|fallocate|posix_fadvise|name_to_handle_at"
)
PATHS = re.compile(r"/(proc|sys|dev/shm|run|etc/(machine-id|hostname|os-release))(/.*)?")
FOREIGN = (
    "click",
    "hiredis",
    "lmdb",
    "msgspec",
    "numpy",
    "obstore.store",
    "redis",
    "rich",
    "xxhash",
)
"""Libraries that have their own code for macOS, which this process cannot run."""


class Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if SYMBOLS.fullmatch(name):
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


def absent(path: object) -> bool:
    """Whether a Mac has no such file."""
    return isinstance(path, str | bytes | os.PathLike) and bool(PATHS.fullmatch(os.fsdecode(path)))


def without_linux_paths(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(path: Any, *arguments: Any, **options: Any) -> Any:
        if absent(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        return call(path, *arguments, **options)

    return wrapped


def refuse_linux_paths(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir") and absent(arguments[0]):
        path = os.fsdecode(arguments[0])
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def become_macos() -> None:
    for library in FOREIGN:
        importlib.import_module(library)
    for module, names in LINUX_ONLY.items():
        for name in [name for name in dir(module) if re.fullmatch(names, name)]:
            delattr(module, name)
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]
    sys.platform = "darwin"
    ctypes.CDLL = Library  # type: ignore[misc]
    for name in ("stat", "lstat", "readlink"):
        setattr(os, name, without_linux_paths(getattr(os, name)))
    named = SimpleNamespace(sysname="Darwin", nodename="mac", release="24.5.0", machine="arm64")
    os.uname = lambda: named  # type: ignore[assignment, return-value]
    sys.addaudithook(refuse_linux_paths)


if __name__ == "__main__":
    become_macos()
    from dieselfs.cli import main, run_dlcmd
    from dieselfs.cli.command_group import COMMANDS

    if sys.argv[1:] != ["every", "help"]:
        main(sys.argv[1:])
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        failed = [name for name in COMMANDS if run_dlcmd([name, "--help"])]
    sys.exit(str(failed) if failed else 0)
