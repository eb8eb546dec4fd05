"""The process that keeps a mount alive: it holds the descriptors of /dev/fuse.

The processes that serve come and go. A connection to the kernel ends when its last descriptor is
closed. So a server that is killed, runs out of memory or is replaced by a newer version loses
nothing: the next one is forked with the same descriptors, and the kernel sends unanswered requests
again (`kernel_connection`). Readers wait for some hundredths of a second.

The supervisor runs no code that can fail in interesting ways: it forks, waits, and keeps what
servers pass over a socket. It has no threads, no store, no snapshot. A snapshot has a server of its
own: a refresh starts another one, and the older one ends by itself when its last file is closed.

    SIGTERM, SIGINT, SIGHUP   unmount
    SIGUSR1                   show a newer snapshot
    SIGUSR2                   change to the installed version

Where the supervisor is killed its server continues; where both are, readers get EIO at once.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

from dieselfs.fuse.supervision.descriptor_room import require_descriptors
from dieselfs.fuse.supervision.handover import Channel, Handed, Role, Serve
from dieselfs.fuse.supervision.readiness import announce_ready
from dieselfs.fuse.supervision.served_mount import ServedMount, ServerProcess

log = logging.getLogger(__name__)

UPGRADE_VARIABLE: Final = "DIESELFS_SUPERVISED"
"""The variable that passes state to a supervisor's successor in the same process: `_upgrade`."""
_QUICK_DEATH_S: Final = 2.0
_MOST_QUICK_DEATHS: Final = 5
_END_S: Final = 6.0
"""The time after which a server is killed; `fuse.supervision.shutdown` bounds its own end."""
_CHECK_TIMEOUT_S: Final = 60.0
_KILLED_S: Final = 2.0
_SPARE_DESCRIPTORS: Final = 8
"""The descriptors that a refresh leaves free: a server that dies later is still replaced."""
_CHECK_INTERVAL_S: Final = 0.5
"""The time between two checks of processes that may hang at their end."""
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HANDLED_SIGNALS: Final = (*_STOP_SIGNALS, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


class Supervisor:
    """The supervisor. It runs in the main thread of a process that has no other threads."""

    def __init__(self, serve: Serve, program: Sequence[str]) -> None:
        """Create it.

        `program` is this process's command: the installed version is started likewise.
        """
        self._serve, self._program = serve, list(program)
        self._mounts: list[ServedMount] = []
        self._current: ServedMount | None = None
        self._refreshes: dict[str, Any] = {"attempts": 0, "running": False, "error": None}
        self._wants_refresh = self._wants_upgrade = False
        """Requests that came while something else was under way."""
        self._deadline: float | None = None
        self._next_check = 0.0
        self._status = 0
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        """Run until the mount has ended; return the exit status."""
        for number in _HANDLED_SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)  # see `_upgrade`
        inherited = os.environ.pop(UPGRADE_VARIABLE, "")
        if inherited:
            self._adopt(json.loads(inherited))
        else:
            self._current = ServedMount()
            self._mounts.append(self._current)
            self._start(self._current, Role.FIRST)
        while self._mounts:
            self._wait()
            self._handle_requests()
        return self._status

    # What happens

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        sockets = {}
        for mount in self._mounts:
            for process in mount.processes:
                sockets[process.channel.socket.fileno()] = mount, process
                poll.register(process.channel.socket, select.POLLIN)
        for fd, _ in poll.poll(_CHECK_INTERVAL_S * 1000):
            if fd == self._wake_read:
                self._handle_signals()
            elif fd in sockets:
                self._receive_message(*sockets[fd])
        if time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + _CHECK_INTERVAL_S
            self._check_servers()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._signal_all(signal.SIGKILL)
            if time.monotonic() >= self._deadline + _KILLED_S:
                log.error("a server hangs in the kernel: the supervisor ends without it")
                for mount in self._mounts:
                    mount.detach()
                self._mounts.clear()

    def _handle_signals(self) -> None:
        noted = set(os.read(self._wake_read, 4096))
        if signal.SIGCHLD in noted:
            self._reap()
        if noted & set(_STOP_SIGNALS):
            self._end()
        self._wants_refresh |= signal.SIGUSR1 in noted
        self._wants_upgrade |= signal.SIGUSR2 in noted

    def _handle_requests(self) -> None:
        """Do one of the requested actions at a time.

        A signal that comes meanwhile is handled afterwards.
        """
        if self._deadline is not None or not self._mounts:
            return
        if self._wants_refresh and self._may_refresh:
            self._wants_refresh = False
            self._refresh()
        if self._wants_upgrade and self._may_upgrade:
            self._wants_upgrade = False
            self._upgrade()

    @property
    def _may_refresh(self) -> bool:
        is_settled = self._current is None or self._current.is_settled
        return is_settled and not self._refreshes["running"]

    @property
    def _may_upgrade(self) -> bool:
        return all(mount.is_settled for mount in self._mounts)

    def _receive_message(self, mount: ServedMount, process: ServerProcess) -> None:
        try:
            received = process.channel.receive()
        except OSError:
            received = None
        if received is None:
            self._reap(process)  # it has ended, or is about to
            return
        self._act_on(mount, process, *received)

    def _act_on(
        self,
        mount: ServedMount,
        process: ServerProcess,
        message: dict[str, Any],
        descriptors: list[int],
    ) -> None:
        if "keep" in message:
            mount.keep(message, descriptors)
        elif "refused" in message and not process.is_ready:
            mount.replaces_current = False
            self._note_refresh(message["refused"])
        elif "ready" in message:
            self._note_ready(mount, process)
        elif "gone" in message:
            mount.tell(message, process)

    def _note_ready(self, mount: ServedMount, process: ServerProcess) -> None:
        process.is_ready = True
        if process.role is Role.FIRST:
            announce_ready()
        elif mount.replaces_current:
            mount.replaces_current = False
            if self._current is not None:
                self._current.tell({"superseded": True})
            self._current = mount
            self._note_refresh(None)
        for old in mount.retiring:
            old.send({"retire": True})

    # Processes

    def _start(self, mount: ServedMount, role: Role) -> None:
        """Start a server. Raises `OSError` if descriptors, processes or memory are used up."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        source = self._current if role is Role.REFRESH and self._current is not None else mount
        handed = Handed(
            role,
            Channel(theirs),
            {} if role is Role.REFRESH else mount.kept,
            source.state,
            self._refreshes,
        )
        try:
            with _blocked_signals():
                pid = os.fork()
                if not pid:
                    self._be_server(handed, ours)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        mount.process = ServerProcess(pid, Channel(ours), role, time.monotonic())
        if mount.told:
            mount.process.send(mount.told)

    def _be_server(self, handed: Handed, ours: socket.socket) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in _HANDLED_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)  # one may have come
            ours.close()
            self._close_in_child(handed)
            status = self._serve(handed)
        except SystemExit as exit_:
            status = exit_.code if isinstance(exit_.code, int) else 1
        except BaseException:
            log.exception("the server failed")
        finally:
            logging.shutdown()
            os._exit(status)

    def _close_in_child(self, handed: Handed) -> None:
        """Close the descriptors of other mounts, which they would keep alive."""
        os.close(self._wake_read)
        os.close(self._wake_write)
        for mount in self._mounts:
            for process in mount.processes:
                process.channel.socket.close()
            mount.close_name()
            if mount.kept is not handed.descriptors:
                mount.close()

    def _reap(self, ended: ServerProcess | None = None) -> None:
        for mount in list(self._mounts):
            for process in mount.processes:
                # A process that has closed its end of the channel is about to exit, so wait for it.
                pid, status = os.waitpid(process.pid, 0 if process is ended else os.WNOHANG)
                if pid:
                    self._handle_last_messages(mount, process)
                    process.channel.socket.close()
                    self._note_end(mount, process, os.waitstatus_to_exitcode(status))

    def _check_servers(self) -> None:
        """Log which servers are stopped, and replace those that hang at their end."""
        for mount in self._mounts:
            process = mount.process
            if process is not None:
                process.note_stop()
            if process is not None and process.hangs() and process.is_ready and not self._deadline:
                log.warning(
                    "the server %d hangs during its shutdown; another one takes over", process.pid
                )
                mount.retiring.append(process)
                self._start_again(mount)
            elif mount.waits_for_server and not self._deadline:
                self._start_again(mount)

    def _handle_last_messages(self, mount: ServedMount, process: ServerProcess) -> None:
        """Handle the messages that an ended process sent and that were not read yet."""
        process.channel.socket.setblocking(False)
        with suppress(OSError):
            while (received := process.channel.receive()) is not None:
                self._act_on(mount, process, *received)

    def _note_end(self, mount: ServedMount, process: ServerProcess, status: int) -> None:
        if process in mount.retiring:
            mount.retiring.remove(process)
            if status and mount.process is not None:  # it has not handed its requests over
                mount.process.send({"left_requests": True})
            if mount.is_over:
                self._forget(mount)
            return
        mount.process = None
        how = (
            f"was killed by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with status {status}"
        )
        if status == 0 or self._deadline is not None:
            self._forget(mount)
            if status < 0:
                mount.detach()
        elif not process.is_ready and _ends_with(process, mount):
            if process.role is Role.REFRESH:
                self._note_refresh(f"the new server {how}; see the mount's log")
            else:
                self._status = status if status > 0 else 1
                if status < 0:  # otherwise it has logged the reason
                    log.error("nothing is mounted: the server %d %s", process.pid, how)
            self._forget(mount)
        else:
            log.warning("the server %d %s; another one takes over", process.pid, how)
            self._resume(mount, process)

    def _resume(self, mount: ServedMount, died: ServerProcess) -> None:
        is_quick = time.monotonic() - died.started < _QUICK_DEATH_S
        mount.quick_deaths = mount.quick_deaths + 1 if is_quick and not died.is_ready else 0
        if mount.quick_deaths >= _MOST_QUICK_DEATHS and mount.retiring:
            mount.process, mount.quick_deaths = mount.retiring.pop(), 0
            log.error("the installed version fails: server %d continues", mount.process.pid)
            mount.process.send({"left_requests": True})  # the failed one may have received some
        elif mount.quick_deaths >= _MOST_QUICK_DEATHS:
            log.error("%d servers in a row have failed: the mount ends", mount.quick_deaths)
            self._status = 1
            self._forget(mount)
        else:
            self._start_again(mount)

    def _start_again(self, mount: ServedMount) -> None:
        """Start a server that takes the connection over; a later check retries if none starts."""
        try:
            self._start(mount, Role.RESUME)
        except OSError as error:
            mount.process = None
            if not mount.waits_for_server:
                log.error("no server can be started, and readers wait for one: %s", error)
        mount.waits_for_server = mount.process is None

    def _forget(self, mount: ServedMount) -> None:
        """Forget a mount that has ended; an earlier server may be about to end."""
        mount.close()
        mount.is_over = True
        if mount.replaces_current:
            mount.replaces_current = False
            self._note_refresh("the new mount has ended; see the mount's log")
        if mount is self._current:
            self._current = None
        if not mount.retiring:
            self._mounts.remove(mount)

    def _end(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + _END_S
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: signal.Signals) -> None:
        for mount in self._mounts:
            for process in mount.processes:
                os.kill(process.pid, number)  # not reaped yet, so the number is still its own

    # A newer snapshot, a newer version

    def _refresh(self) -> None:
        if self._current is None:
            return
        self._refreshes = {**self._refreshes, "running": True, "error": None}
        self._send_refreshes()
        mount = ServedMount(replaces_current=True)
        try:
            require_descriptors(self._current.kept_count + _SPARE_DESCRIPTORS)
            self._start(mount, Role.REFRESH)
        except OSError as error:
            log.error("the mount is not refreshed: its supervisor cannot start a server: %s", error)
            self._note_refresh(f"its supervisor cannot start a server: {error}")
        else:
            self._mounts.append(mount)

    def _note_refresh(self, error: str | None) -> None:
        if not self._refreshes["running"]:
            return
        attempts = self._refreshes["attempts"] + 1
        self._refreshes = {"attempts": attempts, "running": False, "error": error}
        self._send_refreshes()

    def _send_refreshes(self) -> None:
        for mount in self._mounts:
            if mount.process is not None:
                mount.process.send({"refreshes": self._refreshes})

    def _upgrade(self) -> None:
        if not self._can_start_installed_version():
            return
        # A signal in the moments before `run` would end that program; blocked, it waits for `run`.
        with _blocked_signals():
            with suppress(BlockingIOError):
                self._handle_signals()  # that came during the check
            if self._deadline is not None:
                return
            if not self._may_upgrade:
                self._wants_upgrade = True
                return
            self._become_installed_version()

    def _can_start_installed_version(self) -> bool:
        check = [sys.executable, "-c", "import dieselfs.cli.commands.mount, dieselfs.fuse.mount"]
        try:
            done = subprocess.run(
                check, capture_output=True, text=True, timeout=_CHECK_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            log.error("the installed version cannot be started: %s", error)
            return False
        if done.returncode:
            log.error("the installed version cannot be started: %s", done.stderr.strip()[-500:])
        return done.returncode == 0

    def _become_installed_version(self) -> None:
        """Run another program in the same process, so that its children stay its own.

        The program is that of `_adopt`.
        """
        mounts = []
        for mount in self._mounts:
            fds = [fd for kept in mount.kept.values() for fd in kept]
            process = mount.process
            assert process is not None  # they are settled
            for fd in (*fds, process.channel.socket.fileno()):
                os.set_inheritable(fd, True)
            mounts.append(
                {
                    "kept": mount.kept,
                    "state": mount.state,
                    "told": mount.told,
                    "pid": process.pid,
                    "channel": process.channel.socket.fileno(),
                    "current": mount is self._current,
                }
            )
        os.environ[UPGRADE_VARIABLE] = json.dumps(
            {
                "mounts": mounts,
                "refreshes": self._refreshes,
                "wants_refresh": self._wants_refresh,
            }
        )
        log.info("changing to the installed version")
        try:
            self._execute()
        except OSError as error:
            del os.environ[UPGRADE_VARIABLE]
            log.error("the installed version cannot be started: %s", error)

    def _execute(self) -> NoReturn:
        os.execv(self._program[0], self._program)

    def _adopt(self, inherited: dict[str, Any]) -> None:
        self._refreshes = inherited["refreshes"]
        self._wants_refresh = inherited.get("wants_refresh", False)
        for entry in inherited["mounts"]:
            end = socket.socket(fileno=entry["channel"])
            old = ServerProcess(entry["pid"], Channel(end), Role.RESUME, time.monotonic(), True)
            mount = ServedMount(entry["kept"], entry["state"], None, [old])
            mount.told = entry.get("told", {})
            for fd in (end.fileno(), *(fd for kept in mount.kept.values() for fd in kept)):
                os.set_inheritable(fd, False)
            self._mounts.append(mount)
            if entry["current"]:
                self._current = mount
        for mount in self._mounts:
            try:
                self._start(mount, Role.UPGRADE)
            except OSError as error:
                mount.process = mount.retiring.pop()
                log.error("no server can be started, so %d continues: %s", mount.process.pid, error)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block signals meanwhile, for this process and for one that is forked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ends_with(process: ServerProcess, mount: ServedMount) -> bool:
    """Return True if the mount of a server that died before it was ready ends with it.

    No path leads to it yet, or nobody knows of it.
    """
    return process.role is Role.FIRST or (process.role is Role.REFRESH and not mount.kept)
