"""A connection to the kernel through /dev/fuse.

Its threads receive requests and send the answers of a handler.

A connection outlives the process that serves it as long as any process holds its descriptor. So a
process may take one over: the kernel is asked to send again the requests that the former process
has received and not answered (FUSE_NOTIFY_RESEND, Linux 6.9).

A request takes one `read` and one `write`, without the interpreter's lock. A handler that must wait
for a store hands its request to other threads (`PENDING`) and answers it later.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
from collections.abc import Callable, Sequence
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

log = logging.getLogger(__name__)

Part: TypeAlias = bytes | memoryview
THREADS: Final = 2
"""One more than one, so that a request does not wait behind a large reply."""
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


class AnsweredLater:
    """The only instance, `PENDING`, says that a request is answered later."""


PENDING: Final = AnsweredLater()

Answer: TypeAlias = Sequence[Part] | int | AnsweredLater
"""Parts of a reply, an errno, or `PENDING`."""


class Handler(Protocol):
    """A function object that answers requests, in any thread."""

    def answer(self, request: KernelRequest) -> Answer:
        """Answer a request without blocking on a store. An exception is logged and becomes EIO."""
        ...


class KernelConnection:
    """One connection. Thread-safe. `fd` is the caller's, to close after `stop`."""

    def __init__(self, fd: int, *, is_tree: bool, in_flight: InFlight | None = None) -> None:
        """Prepare a connection; for `is_tree` see `answer_init`.

        `in_flight` has the requests that the former server left, or is an empty table.
        """
        self.fd = fd
        self._in_flight = in_flight
        self.agreed: Init | None = None
        """The result of INIT; None until then, and in a process that took the connection over."""
        self.counts: dict[str, int] = {}
        """Requests by kind."""
        self._is_tree = is_tree
        self._ended = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """The descriptor that wakes the threads; -1, and closed, when all have ended."""
        self._stop_lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._on_lost: Callable[[], None] = lambda: None

    def start(self, handler: Handler, on_lost: Callable[[], None] = lambda: None) -> None:
        """Serve.

        `on_lost` is called once, in one of the threads, when the kernel has ended the connection.
        """
        os.set_blocking(self.fd, False)
        self._on_lost = on_lost
        for number in range(THREADS):
            thread = threading.Thread(
                target=self._serve, args=(handler,), name=f"fuse-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def take_over(self) -> None:
        """Handle the requests that a killed server left unanswered. Call it before `start`.

        The kernel sends them again, or, before Linux 6.9, readers get EIO for them.
        """
        self._resend()

    def hand_over(self) -> None:
        """Leave unanswered requests to another server, which receives already.

        Call it after `stop`.
        """
        self._resend()

    def _resend(self) -> None:
        left = self._in_flight.left() if self._in_flight is not None else []
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
        for unique in self._in_flight.left() if self._in_flight is not None else []:
            self.reply(unique, errno.EIO)

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Receive no more requests; False if a thread is still at work after so long."""
        self._ended.set()
        with self._stop_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
            for thread in self._threads:
                thread.join(timeout_s)
            has_ended = not any(thread.is_alive() for thread in self._threads)
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

    def _serve(self, handler: Handler) -> None:
        buffer = bytearray(REQUEST_BYTES)
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._ended.is_set():
            try:
                received = os.readv(self.fd, [buffer])
            except BlockingIOError:
                poll.poll()
                continue
            except OSError as error:
                if error.errno in _AGAIN:
                    continue
                self._lose(error)
                return
            self._take(handler, memoryview(buffer)[:received])

    def _take(self, handler: Handler, message: memoryview) -> None:
        _, opcode, unique, node, _, _, pid, _, _ = IN_HEADER.unpack_from(message)
        body = message[IN_HEADER.size :]
        if opcode == Opcode.INIT:
            self.agreed, reply = answer_init(body, is_tree=self._is_tree)
            self.reply(unique, [reply])
            return
        if self._in_flight is not None and opcode not in NO_REPLY:
            self._in_flight.begin(unique)
        kind = NAMES.get(opcode) or f"opcode {opcode}"
        self.counts[kind] = self.counts.get(kind, 0) + 1
        try:
            answer = handler.answer(KernelRequest(opcode, unique, node, pid, body))
        except Exception:
            log.exception("%s of node %d failed unexpectedly: EIO", kind, node)
            answer = errno.EIO
        if opcode not in NO_REPLY and not isinstance(answer, AnsweredLater):
            self.reply(unique, answer)

    def _lose(self, error: OSError) -> None:
        if error.errno not in _UNMOUNTED:
            log.error("the connection is lost: %s", error)
        if not self._ended.is_set():
            self._ended.set()
            os.eventfd_write(self._wake, 1)
            self._on_lost()
