"""The end of a mount whose daemon does not answer: it is stopped, or hangs in the kernel.

Readers that wait for such a daemon cannot even be killed, since it has taken their requests. A
mount that is in use cannot be unmounted either. After a time the mount's connections are aborted,
on which its readers get an error; its processes are killed, and the mount is detached. Nothing here
waits for the mount: the kernel's tables name the mount and its processes.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from dieselfs.fuse.mounts.control_names import DATASET_NAME
from dieselfs.fuse.mounts.daemon_names import SERVER, SUPERVISOR, Daemon, daemons_of
from dieselfs.fuse.mounts.mount_syscalls import new_mount
from dieselfs.fuse.mounts.mount_table import (
    MountEntry,
    MountState,
    entries_of_device,
    read_document,
)
from dieselfs.fuse.mounts.mountpoint import mount_at, unmount

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
"""The time for an answer before a mount is aborted; `dlcmd umount` takes at most twice as long."""
_KILLED_S: Final = 5.0
_CONNECTIONS: Final = Path("/sys/fs/fuse/connections")


def unmount_or_abort(
    mountpoint: Path, lazy: bool = False, *, answer_s: float = ANSWER_S
) -> str | None:
    """Unmount the DieselFS mount at `mountpoint`, also if its daemon does not answer.

    Returns what was done to a mount that did not answer within `answer_s`; None if it was unmounted
    in order. A mount that answers and is in use stays, and `MountpointBusy` is raised; see
    `unmount`. With `lazy`, no reader gets an error: what the daemon holds waits until it continues.
    """
    entry = mount_at(mountpoint)
    daemons = daemons_of(entry.device)
    # It would not receive the messages of its server, which would wait for it.
    _kill([daemon for daemon in daemons if daemon.role == SUPERVISOR and daemon.is_stopped])
    if not lazy and not _answers(entry, daemons, answer_s):
        return _end_unanswered(entry)
    unmount(entry.mountpoint, lazy)
    if not lazy and not entries_of_device(entry.device):
        _kill([daemon for daemon in daemons if daemon.is_stopped])
    return None


def _answers(entry: MountEntry, daemons: Sequence[Daemon], answer_s: float) -> bool:
    state, _ = read_document(entry.mountpoint, DATASET_NAME, answer_s)
    if state is MountState.PRIVATE:  # the kernel answers for it
        return not any(daemon.role == SERVER and daemon.is_stopped for daemon in daemons)
    return state is not MountState.HUNG


def _end_unanswered(entry: MountEntry) -> str:
    """End a mount, or only this place of it if it is shown elsewhere; return what was done."""
    elsewhere = [
        other.mountpoint
        for other in entries_of_device(entry.device)
        if other.mount_id != entry.mount_id
    ]
    if elsewhere:
        unmount(entry.mountpoint, lazy=True)
        return f"its daemon does not answer, and still has the mount at {elsewhere[0]}"
    daemons = daemons_of(entry.device)
    # Nothing but an abort ends a process that waits in the kernel for its own answer.
    _abort({number: daemon.uid for daemon in daemons for number in daemon.connections})
    is_ended = bool(daemons) and _kill(daemons)
    unmount(entry.mountpoint, lazy=True)
    done = "its daemon did not answer: the connection was aborted, and readers got an error"
    if is_ended:
        return done
    pids = ", ".join(str(daemon.pid) for daemon in daemons)
    return f"its daemon did not answer and was not ended{f': end process {pids}' if pids else ''}"


def _abort(connections: dict[int, int]) -> None:
    """Abort FUSE connections, given their users' ids, as far as this user may."""
    if not connections:
        return
    with suppress(OSError), _connections() as folder:
        for number, uid in connections.items():
            with suppress(OSError):  # it has ended
                if (folder / str(number)).stat().st_uid == uid:
                    (folder / str(number) / "abort").write_text("1")


@contextmanager
def _connections() -> Iterator[Path]:
    """Yield the folder of the kernel's FUSE connections; systems without systemd mount none."""
    if os.geteuid() != 0 or any(_CONNECTIONS.iterdir()):
        yield _CONNECTIONS
        return
    mount = new_mount("fusectl", [("source", "dieselfs-umount")], 0)
    try:
        yield Path(f"/proc/self/fd/{mount}")
    finally:
        os.close(mount)


def _kill(daemons: Sequence[Daemon]) -> bool:
    """Kill processes of a mount, in this order; return True if all have ended in time."""
    deadline = time.monotonic() + _KILLED_S
    with ExitStack() as opened:
        waiting = select.poll()
        left = set()
        for daemon in daemons:
            descriptor = daemon.opened()
            if descriptor is None:
                continue
            opened.callback(os.close, descriptor)
            left.add(descriptor)
            waiting.register(descriptor, select.POLLIN)
            log.warning("the %s %d does not answer: it is killed", daemon.role, daemon.pid)
            with suppress(OSError):  # it has ended, or is another user's
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        while left and (left_s := deadline - time.monotonic()) > 0:
            for descriptor, _ in waiting.poll(left_s * 1000):
                waiting.unregister(descriptor)
                left.discard(descriptor)
    return not left
