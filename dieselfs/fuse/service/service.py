"""The mount service, `dlcmd mountd`: root mounts EROFS for ordinary users over blobs they serve.

This process only accepts connections, starts a process for each, and ends those that take too long:
it reads no byte of a user, opens no file of a user, and so waits for none. docs/mountd.md has the
threats.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import resource
import selectors
import shutil
import signal
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final, NoReturn

from dieselfs.errors import LocalFileError
from dieselfs.fuse.mounts.service_messages import send
from dieselfs.fuse.service.caller import peer_of
from dieselfs.fuse.service.service_requests import RequestHandler
from dieselfs.fuse.service.user_limits import (
    ALL_REQUESTS,
    MEMORY_BYTES,
    REQUESTS,
    FuseConnections,
    Settings,
)

log = logging.getLogger(__name__)

_BACKLOG: Final = 64
_FIRST_ACTIVATED: Final = 3
"""SD_LISTEN_FDS_START."""
_STEP: Final = struct.Struct("=Id")
"""The record of a step: a device number, and until when (`monotonic`) the step may take."""
_LOOK_S: Final = 1.0
"""The longest delay until a call of `stop` is noticed."""
_CLOSE_S: Final = 5.0


@dataclass(slots=True)
class _Request:
    """A process that answers a request."""

    pid: int
    uid: int
    pidfd: int
    steps: int
    """A pipe on which the process announces each step that may take time."""
    deadline: float
    connections: set[int] = field(default_factory=set)
    """Numbers of FUSE connections, if they are that, which the process may wait for."""
    is_killed: bool = False

    def receive(self) -> None:
        """Read the steps that the process has announced."""
        with suppress(BlockingIOError):
            while step := os.read(self.steps, _STEP.size):
                number, self.deadline = _STEP.unpack(step)
                self.connections.add(number)


class MountService:
    """A listening service. `run` serves until `stop`; both in the thread that made it."""

    def __init__(self, listener: socket.socket, settings: Settings) -> None:
        self._listener, self._settings = listener, settings
        self._connections = FuseConnections()
        self._requests: list[_Request] = []
        self._last_deadline = math.inf
        self._selector = selectors.DefaultSelector()
        self._is_stopped = False
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def stop(self) -> None:
        """Accept nothing more; safe in a signal handler."""
        self._is_stopped = True

    def run(self, idle_s: float | None = None) -> None:
        """Serve until `stop`.

        With `idle_s`, end after so long without a request; a socket unit starts the service again.
        """
        idle_since = monotonic()
        while not self._is_stopped:
            self._attend()
            if self._requests:
                idle_since = monotonic()
            elif idle_s is not None and monotonic() - idle_since > idle_s:
                return

    def close(self) -> None:
        """Give requests some seconds to end; then kill them."""
        self._selector.unregister(self._listener)
        self._last_deadline = monotonic() + _CLOSE_S
        while self._requests and monotonic() < self._last_deadline + _CLOSE_S:
            self._attend()
        self._selector.close()
        self._connections.close()

    def _attend(self) -> None:
        """Wait for connections and ends of processes, until the next deadline or for a second."""
        deadlines = [self._deadline(request) for request in self._requests if not request.is_killed]
        until = min([*deadlines, monotonic() + _LOOK_S])
        for key, _ in self._selector.select(max(0.0, until - monotonic())):
            if key.data is None:
                self._accept()
            else:
                self._reap(key.data)
        for request in self._requests:
            request.receive()
            if not request.is_killed and monotonic() > self._deadline(request):
                self._end(request)

    def _deadline(self, request: _Request) -> float:
        return min(request.deadline, self._last_deadline)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                log.error("no connection can be accepted: %s", error)
            return
        with connection:
            uid = peer_of(connection).uid
            own = sum(request.uid == uid for request in self._requests)
            alive = sum(not request.is_killed for request in self._requests)
            if own < REQUESTS and alive < ALL_REQUESTS:
                self._start(connection, uid)
                return
            log.debug("user %d: too many requests at a time", uid)
            connection.setblocking(False)
            answer = {"answer": "error", "what": "the service is busy", "hint": "try again"}
            with suppress(OSError):
                send(connection, answer)

    def _start(self, connection: socket.socket, uid: int) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = os.fork()
        except OSError as error:
            log.error("no process can be started: %s", error)
            os.close(reading)
            os.close(writing)
            return
        if pid == 0:
            self._answer_and_exit(connection, writing)
        os.close(writing)
        deadline = monotonic() + self._settings.mount_s
        request = _Request(pid, uid, os.pidfd_open(pid), reading, deadline)
        self._requests.append(request)
        self._selector.register(request.pidfd, selectors.EVENT_READ, request)

    def _answer_and_exit(self, connection: socket.socket, steps: int) -> NoReturn:
        """Answer the request and exit: the whole life of a request's process."""
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self._listener.close()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

            def announce(number: int, seconds: float) -> None:
                os.write(steps, _STEP.pack(number, monotonic() + seconds))

            RequestHandler(connection, self._settings, self._connections, announce).handle()
        except BaseException:
            log.exception("a request failed unexpectedly")
        finally:
            os._exit(0)

    def _reap(self, request: _Request) -> None:
        os.waitpid(request.pid, 0)
        self._selector.unregister(request.pidfd)
        os.close(request.pidfd)
        os.close(request.steps)
        self._requests.remove(request)

    def _end(self, request: _Request) -> None:
        """Kill a request that is over time, and abort the connections that it may wait for."""
        log.warning("a request of user %d takes too long: it is ended", request.uid)
        request.is_killed = True
        os.kill(request.pid, signal.SIGKILL)
        request.receive()  # it announces no further step
        for number in request.connections:
            self._connections.abort(number, request.uid)


def activated_socket() -> socket.socket | None:
    """Return the socket with which systemd has started this process, or None: sd_listen_fds(3)."""
    is_ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    if not is_ours or os.environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(_FIRST_ACTIVATED, False)
    return socket.socket(fileno=_FIRST_ACTIVATED)


def listening_socket(path: Path, group: str | None = None) -> socket.socket:
    """Return a new socket at `path`, for members of `group` only.

    A socket without a listener is replaced. Raises `LocalFileError`.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.is_socket() and not _is_listening(path):
            path.unlink()
        listener.bind(os.fspath(path))
        path.chmod(0o600)
        if group is not None:
            shutil.chown(path, group=group)
        path.chmod(0o666 if group is None else 0o660)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        hint = "another service may listen there" if error.errno == errno.EADDRINUSE else None
        raise LocalFileError(f"cannot listen at {path}: {error.strerror}", hint) from error
    return listener


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        try:
            asking.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
    return True


def prepare_folder(folder: Path) -> None:
    """Create the folder of images; refuse one that others may write. Raises `LocalFileError`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in (folder, *folder.resolve().parents):
            found = place.stat()
            is_shared = found.st_mode & 0o022 and not found.st_mode & 0o1000
            if found.st_uid != 0 or is_shared:
                raise LocalFileError(
                    f"{place} can be changed by other users than root",
                    "choose another --folder, root's alone",
                )
        folder.chmod(0o700)
    except OSError as error:
        raise LocalFileError(f"cannot use {folder}: {error.strerror}") from error
