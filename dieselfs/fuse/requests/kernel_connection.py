"""A connection to the kernel through /dev/fuse.

Its threads receive requests and send the answers of a handler.

A connection outlives the process that serves it as long as any process holds its descriptor. So a
process may take one over: the kernel is asked to send again the requests that the former process
has received and not answered (FUSE_NOTIFY_RESEND, Linux 6.9).

A request takes one `read` and one `write`, without the interpreter's lock. A request that must wait
for a store is answered by the thread that received it, while another one receives
(`receiving_threads`).
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from dieselfs.fuse.requests.in_flight import InFlight
from dieselfs.fuse.requests.kernel_protocol import (
    IN_HEADER,
    NAMES,
    NO_REPLY,
    OUT_HEADER,
    REQUEST_BYTES,
    Init,
    Opcode,
    answer_init,
    resend_notification,
)
from dieselfs.fuse.requests.receiving_threads import THREADS, Receive, ReceivingThreads, Work

log = logging.getLogger(__name__)

Part: TypeAlias = bytes | memoryview
_AGAIN: Final = (errno.ENOENT, errno.EINTR, errno.EAGAIN)
_UNMOUNTED: Final = (errno.ENODEV, errno.EBADF, errno.ECONNABORTED)


class KernelRequest(NamedTuple):
    """One request of the kernel."""

    opcode: int
    unique: int
    node: int
    pid: int
    """The thread that makes it, in this process's pid namespace; 0 for the kernel itself."""
    body: memoryview
    """The body, valid until the handler returns."""
    user: int = 0
    """The user id of the process that makes it."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The answer to a request that must wait: it is answered later."""

    work: Work | None
    """The work that replies, for the thread that received the request; None: another one has it."""


Answer: TypeAlias = Sequence[Part] | int | Pending
"""Parts of a reply, an errno, or `Pending`."""


class Handler(Protocol):
    """A function object that answers requests, in any thread."""

    def answer(self, request: KernelRequest) -> Answer:
        """Answer a request without blocking on a store. An exception is logged and becomes EIO."""
        ...


class KernelConnection:
    """One connection. Thread-safe. `fd` is the caller's, to close after `stop`."""

    def __init__(
        self,
        fd: int,
        *,
        is_tree: bool,
        is_writable: bool = False,
        in_flight: InFlight | None = None,
        retiring: InFlight | None = None,
        threads: int = THREADS,
    ) -> None:
        """Prepare a connection; for `is_tree` and `is_writable` see `answer_init`.

        `in_flight` has the requests that the former server left, or is an empty table. `retiring`
        is the table of a server that still serves this connection. `threads` receive at a time.
        """
        self.fd = fd
        self._in_flight, self._retiring = in_flight, retiring
        self.agreed: Init | None = None
        """The result of INIT; None until then, and in a process that took the connection over."""
        self.counts: dict[str, int] = {}
        """Requests by kind."""
        self._is_tree, self._is_writable = is_tree, is_writable
        self._threads = ReceivingThreads(self._receiver, threads)
        self._handler: Handler
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """The descriptor that wakes the threads; -1, and closed, when all have ended."""
        self._stop_lock = threading.Lock()
        self._on_lost: Callable[[], None] = lambda: None

    def start(self, handler: Handler, on_lost: Callable[[], None] = lambda: None) -> None:
        """Serve.

        `on_lost` is called once, in one of the threads, when the kernel has ended the connection.
        """
        os.set_blocking(self.fd, False)
        self._handler, self._on_lost = handler, on_lost
        self._threads.start()

    def take_over(self) -> None:
        """Handle the requests that a killed server left unanswered. Call it before `start`.

        The kernel sends them again, or, before Linux 6.9, readers get EIO for them.
        """
        self._resend(self._in_flight)

    def take_over_from_retired(self) -> None:
        """Handle the requests of another server that was killed before it handed them over.

        The kernel sends this server's own requests again too, which does no harm.
        """
        self._resend(self._retiring)

    def hand_over(self) -> None:
        """Leave unanswered requests to another server, which receives already.

        Call it after `stop`.
        """
        self._resend(self._in_flight)

    def _resend(self, table: InFlight | None) -> None:
        left = table.left() if table is not None else []
        try:
            os.write(self.fd, resend_notification())
        except OSError as error:
            log.warning(
                "%d requests of the former server fail with EIO: %s", len(left), error.strerror
            )
            for unique in left:
                self.reply(unique, errno.EIO)

    def fail_waiting(self) -> None:
        """Answer with EIO the requests that were received and not answered: no reader is left."""
        for unique in self.waiting():
            self.reply(unique, errno.EIO)

    def waiting(self) -> list[int]:
        """Return the requests that this server has received and not answered."""
        return self._in_flight.begun() if self._in_flight is not None else []

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Receive no more requests; False if a thread is still receiving after so long.

        Requests that wait are still answered.
        """
        self._threads.end()
        with self._stop_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
            has_ended = self._threads.wait_for_end(timeout_s)
            if has_ended and self._wake >= 0:
                os.close(self._wake)
                self._wake = -1
        return has_ended

    def reply(self, unique: int, answer: Sequence[Part] | int) -> bool:
        """Answer a request: parts of the reply, or an errno.

        False if the kernel does not want the answer any more.
        """
        if isinstance(answer, int):
            message: list[Part] = [OUT_HEADER.pack(OUT_HEADER.size, -answer, unique)]
        else:
            length = OUT_HEADER.size + sum(map(len, answer))
            message = [OUT_HEADER.pack(length, 0, unique), *answer]
        try:
            os.writev(self.fd, message)
        except FileNotFoundError:
            return False  # interrupted, or answered before it was sent again
        except OSError as error:
            if error.errno not in _UNMOUNTED:
                log.error("the kernel refused a reply: %s", error)
            return False
        finally:
            if self._in_flight is not None:
                self._in_flight.end(unique)
        return True

    def notify(self, parts: Sequence[Part]) -> bool:
        """Send the kernel a notification; False if it does not know the node."""
        try:
            os.writev(self.fd, parts)
        except OSError:
            return False
        return True

    def _receiver(self) -> Receive:
        """Return the function by which one thread receives."""
        buffer = bytearray(REQUEST_BYTES)
        poll = select.epoll()
        # A request wakes all threads, also those of another server: a thread that is about to end
        # must not be the only one to know of it.
        poll.register(self.fd, select.EPOLLIN)
        poll.register(self._wake, select.EPOLLIN)

        def receive() -> Work | None:
            try:
                received = os.readv(self.fd, [buffer])
            except BlockingIOError:
                poll.poll()
                return None
            except OSError as error:
                if error.errno not in _AGAIN:
                    self._lose(error)
                return None
            self._threads.note_request()
            return self._take(memoryview(buffer)[:received])

        return receive

    def _take(self, message: memoryview) -> Work | None:
        """Answer a request, or return the work that will."""
        _, opcode, unique, node, user, _, pid, _, _ = IN_HEADER.unpack_from(message)
        body = message[IN_HEADER.size :]
        if opcode == Opcode.INIT:
            self.agreed, reply = answer_init(
                body, is_tree=self._is_tree, is_writable=self._is_writable
            )
            self.reply(unique, [reply])
            return None
        if self._in_flight is not None and opcode not in NO_REPLY:
            self._in_flight.begin(unique)
        kind = NAMES.get(opcode) or f"opcode {opcode}"
        self.counts[kind] = self.counts.get(kind, 0) + 1
        try:
            answer = self._handler.answer(KernelRequest(opcode, unique, node, pid, body, user))
        except Exception:
            log.exception("%s of node %d failed unexpectedly: EIO", kind, node)
            answer = errno.EIO
        if isinstance(answer, Pending):
            return answer.work
        if opcode not in NO_REPLY:
            self.reply(unique, answer)
        return None

    def _lose(self, error: OSError) -> None:
        if error.errno not in _UNMOUNTED:
            log.error("the connection is lost: %s", error)
        if self._threads.end():
            os.eventfd_write(self._wake, 1)
            self._on_lost()
