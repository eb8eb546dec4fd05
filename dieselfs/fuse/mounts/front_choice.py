"""The choice of a mount's front: the kernel's EROFS over files, EROFS over loop devices, or FUSE.

`probe` collects facts about this machine and process, `choose` decides by them alone, and
`after_failure` decides again where the kernel refused what the facts promised: no version number
and no list of file systems proves that a mount will succeed.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Literal, TypeAlias

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.service_client import service_socket
from dieselfs.fuse.pages.page_filler import MAX_FILLED_FILE_BYTES

Version: TypeAlias = tuple[int, int, int]
WantedFront: TypeAlias = Literal["auto", "erofs", "erofs-loop", "fuse"]
WantedCache: TypeAlias = Literal["auto", "buffered", "direct"]

_FILE_SINCE: Final = "Linux 6.18.21"
"""The first safe Linux: see `mounts_files`.

Images that are plain files can be mounted since 6.12.
"""
LOOP_SINCE: Final = (5, 8, 0)
"""Loop devices are configured in one step since then.

EROFS takes extra devices since 5.16, and in the 5.14 of RHEL 9: older ones refuse the image.
"""
DIRECT_FROM_BYTES: Final = MAX_FILLED_FILE_BYTES
"""The median length of files from which direct I/O is used.

Smaller files are filled ahead, and a second copy costs less than a request of their own: 1.4 times
the rate at 110 KiB.
"""
_SYS_ADMIN_BIT = 21
_MODPROBE_TIMEOUT_S = 10.0
_ALL_IDS = ["0", "0", "4294967295"]
_NEWER: Final = f"{_FILE_SINCE} or later mounts EROFS without loop devices"


class Front(Enum):
    """The kind of a front: what answers the names of a mount, and where its bytes pass."""

    FILE = "erofs"
    LOOP = "erofs-loop"
    FUSE = "fuse"


@dataclass(frozen=True, slots=True)
class FrontFacts:
    """The abilities of this machine and this process."""

    kernel: Version
    is_root: bool
    """The effective user id is 0, which in a container grants little by itself."""
    may_mount: bool
    """CAP_SYS_ADMIN is effective in the machine's own user namespace, as EROFS demands."""
    has_erofs: bool
    """EROFS is in the kernel now. For an ordinary user the service may still load it."""
    has_loop_control: bool
    has_service: bool
    """The socket of `dlcmd mountd` exists."""


@dataclass(frozen=True, slots=True)
class FrontChoice:
    """A decision, with words for the user."""

    front: Front
    via_service: bool
    reason: str
    more: str | None = None
    """Words on how to get a better front; None where there is none."""

    @property
    def is_erofs(self) -> bool:
        return self.front is not Front.FUSE


def probe() -> FrontFacts:
    """Return the facts about this machine.

    As root, load the kernel's module of EROFS if there is one.
    """
    may_mount = _has_sys_admin() and _is_initial_user_namespace()
    return FrontFacts(
        kernel=kernel_version(os.uname().release),
        is_root=os.geteuid() == 0,
        may_mount=may_mount,
        has_erofs=_knows_erofs() or (may_mount and _load_erofs()),
        has_loop_control=Path("/dev/loop-control").exists(),
        has_service=service_socket().is_socket(),
    )


def kernel_version(release: str) -> Version:
    """Return the numbers of `uname -r`: 6.12.0-55.el10 is (6, 12, 0).

    A text that is no version gives (0, 0, 0).
    """
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


def choose(wanted: WantedFront, facts: FrontFacts) -> FrontChoice:
    """Return the best front for `wanted`.

    Raises `MountError` if EROFS is demanded and impossible.
    """
    if wanted == "fuse":
        return FrontChoice(Front.FUSE, False, "as asked")
    if wanted == "erofs-loop":
        # A user may try what older kernels get, or what to use where file-backed mounts misbehave.
        if facts.has_erofs and _can_loop(facts):
            return FrontChoice(Front.LOOP, False, "as asked")
        raise MountError(
            "EROFS cannot be mounted over loop devices here",
            "it needs root, Linux 5.16, EROFS and /dev/loop-control",
        )
    choice = _best(facts)
    if wanted == "erofs" and not choice.is_erofs:
        raise MountError(f"EROFS cannot be mounted: {choice.reason}", choice.more)
    return choice


def after_failure(
    wanted: WantedFront, failed: FrontChoice, facts: FrontFacts, problem: str
) -> FrontChoice:
    """Return the next front after `failed`, whose EROFS could not be mounted because of `problem`.

    Raises `MountError` where EROFS is demanded and no way to mount it is left.
    """
    reason = f"EROFS cannot be mounted from files: {problem}"
    if failed.front is Front.FILE and not failed.via_service and _can_loop(facts):
        return FrontChoice(Front.LOOP, False, reason)
    more = "see the log of dlcmd mountd" if failed.via_service else None
    return without_erofs(wanted, problem, more)


def without_erofs(wanted: WantedFront, problem: str, more: str | None = None) -> FrontChoice:
    """Return the front where EROFS has failed for good; raise `MountError` where it is demanded."""
    reason = f"EROFS cannot be mounted: {problem}"
    if wanted != "auto":
        raise MountError(reason, "mount with --front fuse")
    return FrontChoice(Front.FUSE, False, reason, more)


def mounts_files(version: Version) -> bool:
    """Return True if this Linux mounts EROFS over files without ever giving zeros for data.

    Until a fix of 2026-02-27 ("erofs: set fileio bio failed in short read case") a reader that was
    killed in the middle of a read left zeros in the page cache, for everybody. The accepted
    releases are known to have it, and the fix of CVE-2026-23224 (direct I/O). A distribution's
    kernel may have both under an older number: it gets loop devices, which are slower and always
    right.
    """
    return version >= (7, 0, 0) or (6, 18, 21) <= version < (6, 19, 0)


def use_direct_io(median_bytes: float, wanted: WantedCache) -> bool:
    """Return True if EROFS bypasses the blob's page cache, given the median length of the files."""
    return wanted == "direct" or (wanted == "auto" and median_bytes >= DIRECT_FROM_BYTES)


def _best(facts: FrontFacts) -> FrontChoice:
    if facts.has_service and not facts.may_mount and mounts_files(facts.kernel):
        return FrontChoice(Front.FILE, True, "mounted by dlcmd mountd")
    obstacle = _obstacle(facts)
    if obstacle is not None:
        return FrontChoice(Front.FUSE, False, *obstacle)
    reason = f"on Linux {_shown(facts.kernel)}"
    if mounts_files(facts.kernel):
        return FrontChoice(Front.FILE, False, reason)
    return FrontChoice(Front.LOOP, False, reason, _NEWER)


def _obstacle(facts: FrontFacts) -> tuple[str, str] | None:
    """Return why this process cannot mount EROFS by itself, and what would help."""
    if facts.is_root and not facts.may_mount:
        reason = "EROFS needs CAP_SYS_ADMIN of the host, which this container lacks"
        return reason, "mount on the host and bind the mount into the container"
    if not facts.may_mount and not mounts_files(facts.kernel):
        reason = f"ordinary users mount EROFS on {_FILE_SINCE} or later only"
        return (
            reason,
            "mount as root" if facts.kernel >= LOOP_SINCE else f"use {_FILE_SINCE} or later",
        )
    if not facts.may_mount:
        reason = "EROFS needs root or the mount service, which does not run"
        more = "start the service: systemctl enable --now dieselfs-mountd; or mount as root"
        return reason, more
    if facts.kernel < LOOP_SINCE:
        reason = f"Linux {_shown(facts.kernel)} is too old for EROFS"
        return reason, f"use {_FILE_SINCE} or later"
    if not facts.has_erofs:
        reason = "this kernel has no EROFS, or its module cannot be loaded"
        return reason, "load it: modprobe erofs"
    if not mounts_files(facts.kernel) and not facts.has_loop_control:
        shown = _shown(facts.kernel)
        reason = f"EROFS needs loop devices on Linux {shown}, and /dev/loop-control is missing"
        return reason, f"load the module loop, or mount on the host; {_NEWER}"
    return None


def _shown(version: Version) -> str:
    return ".".join(map(str, version))


def _can_loop(facts: FrontFacts) -> bool:
    return facts.may_mount and facts.has_loop_control and facts.kernel >= LOOP_SINCE


def _has_sys_admin() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _SYS_ADMIN_BIT & 1)
    return False


def _is_initial_user_namespace() -> bool:
    """Return True if ids are the machine's.

    Another namespace may map all ids too: mount(2) then refuses.
    """
    try:
        return Path("/proc/self/uid_map").read_text().split() == _ALL_IDS
    except OSError:
        return True  # a kernel without user namespaces


def _knows_erofs() -> bool:
    return "erofs" in Path("/proc/filesystems").read_text().split()


def _load_erofs() -> bool:
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            ["modprobe", "-q", "erofs"],
            check=False,
            capture_output=True,
            timeout=_MODPROBE_TIMEOUT_S,
        )
    return _knows_erofs()
