"""The mount service, `dlcmd mountd`: root mounts EROFS for ordinary users over blobs they serve.

This process only accepts connections, starts a process for each, and ends those that take too long:
it reads no byte of a user, opens no file of a user, and so waits for none. docs/mountd.md has the
threats.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import selectors
import signal
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Final, Self

from dieselfs.errors import LocalFileError
from dieselfs.fuse.mount_service_limits import FuseConnections
from dieselfs.fuse.mount_service_messages import send
from dieselfs.fuse.mount_service_peer import peer_of
from dieselfs.fuse.mount_service_requests import RequestHandler, ServiceSettings

log = logging.getLogger(__name__)

MAX_REQUESTS: Final = 32
"""At a time, of all users. A killed one that still waits in the kernel counts for its user."""
_BACKLOG: Final = 64
_FIRST_ACTIVATED: Final = 3
"""SD_LISTEN_FDS_START."""
_REPORT: Final = struct.Struct("=If")
"""What a request's process tells: a device number and seconds."""
_CLOSE_S: Final = 5.0


@dataclass(slots=True)
class _Request:
    """A process that answers a request."""

    pid: int
    uid: int
    pidfd: int
    report: int
    """A pipe on which the process tells each step that may take time."""
    deadline: float
    connections: set[int] = field(default_factory=set)
    """Numbers of FUSE connections, if they are that, which the process may wait for."""
    is_killed: bool = False


class MountService:
    """A listening service. `run` serves until `stop`; both in the thread that made it."""

    def __init__(self, listener: socket.socket, settings: ServiceSettings) -> None:
        self._listener, self._settings = listener, settings
        self._connections = FuseConnections()
        self._requests: dict[int, _Request] = {}
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_stopped = False
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)

    def stop(self) -> None:
        """Accept nothing more; safe in a signal handler."""
        self._is_stopped = True
        os.eventfd_write(self._wake, 1)

    def run(self, idle_s: float | None = None) -> None:
        """Serve. `idle_s`: end after so long without a request; a socket unit starts it again."""
        idle_since = monotonic()
        while not self._is_stopped:
            for key, _ in self._selector.select(self._wait_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is not None:
                    self._attend(key.data, key.fd)
            self._end_overdue()
            if self._requests:
                idle_since = monotonic()
            elif idle_s is not None and monotonic() - idle_since > idle_s:
                return

    def close(self) -> None:
        """Let requests end, for some seconds; then end them."""
        deadline = monotonic() + _CLOSE_S
        self._selector.unregister(self._listener)
        self._selector.unregister(self._wake)
        for request in self._requests.values():
            request.deadline = min(request.deadline, deadline)
        while self._requests and monotonic() < deadline + _CLOSE_S:
            for key, _ in self._selector.select(0.1):
                self._attend(key.data, key.fd)
            self._end_overdue()
        self._selector.close()
        self._connections.close()
        os.close(self._wake)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _wait_s(self) -> float:
        """The time until the next deadline, at most a second."""
        ends = [request.deadline for request in self._requests.values() if not request.is_killed]
        return min(1.0, max(0.0, min(ends, default=monotonic() + 1.0) - monotonic()))

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                log.error("no connection can be accepted: %s", error)
            return
        with connection:
            uid = peer_of(connection).uid
            own = sum(request.uid == uid for request in self._requests.values())
            alive = sum(not request.is_killed for request in self._requests.values())
            if own >= self._settings.limits.requests or alive >= MAX_REQUESTS:
                self._turn_away(connection, uid)
            else:
                self._start(connection, uid)

    def _turn_away(self, connection: socket.socket, uid: int) -> None:
        log.debug("user %d: too many requests at a time", uid)
        connection.setblocking(False)
        answer = {"answer": "error", "what": "the service is busy", "hint": "try again"}
        with suppress(OSError):
            send(connection, answer)

    def _start(self, connection: socket.socket, uid: int) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC)
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
        deadline = monotonic() + self._settings.limits.mount_s
        request = _Request(pid, uid, os.pidfd_open(pid), reading, deadline)
        self._requests[pid] = request
        self._selector.register(request.pidfd, selectors.EVENT_READ, request)
        self._selector.register(reading, selectors.EVENT_READ, request)

    def _answer_and_exit(self, connection: socket.socket, report: int) -> None:
        """The whole life of a request's process."""
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            self._listener.close()
            most = self._settings.limits.memory_bytes
            resource.setrlimit(resource.RLIMIT_AS, (most, most))

            def announce(number: int, seconds: float) -> None:
                os.write(report, _REPORT.pack(number, seconds))

            RequestHandler(connection, self._settings, self._connections, announce).handle()
        except BaseException:
            log.exception("a request failed unexpectedly")
        finally:
            os._exit(0)

    def _attend(self, request: _Request, descriptor: int) -> None:
        if self._requests.get(request.pid) is not request:
            return  # it was reaped by an event of the same turn
        if descriptor == request.report:
            self._read_report(request)
        else:
            self._reap(request)

    def _read_report(self, request: _Request) -> None:
        data = os.read(request.report, _REPORT.size)
        if len(data) < _REPORT.size:
            self._selector.unregister(request.report)
            return
        number, seconds = _REPORT.unpack(data)
        request.connections.add(number)
        request.deadline = monotonic() + seconds

    def _reap(self, request: _Request) -> None:
        os.waitpid(request.pid, 0)
        self._selector.unregister(request.pidfd)
        with suppress(KeyError):  # its end was seen already
            self._selector.unregister(request.report)
        os.close(request.pidfd)
        os.close(request.report)
        del self._requests[request.pid]

    def _end_overdue(self) -> None:
        """Kill what is over time, and break off the user's connections that it may wait for."""
        for request in self._requests.values():
            if not request.is_killed and monotonic() > request.deadline:
                log.warning("a request of user %d takes too long: it is ended", request.uid)
                request.is_killed = True
                os.kill(request.pid, signal.SIGKILL)
                for number in request.connections:
                    self._connections.abort(number, request.uid)


def activated_socket() -> socket.socket | None:
    """The socket with which systemd has started this process, if it has: sd_listen_fds(3)."""
    is_ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    if not is_ours or os.environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(_FIRST_ACTIVATED, False)
    return socket.socket(fileno=_FIRST_ACTIVATED)


def listening_socket(path: Path, mode: int = 0o666) -> socket.socket:
    """A new socket at `path`. One that nobody listens at is replaced. Raises `LocalFileError`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.is_socket() and not _is_listening(path):
            path.unlink()
        listener.bind(os.fspath(path))
        path.chmod(mode)
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
    """Make the folder of images, and refuse one that others may write. Raises `LocalFileError`."""
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
