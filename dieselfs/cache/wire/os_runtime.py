"""The runtime of the operating system: threads, the monotonic clock, TCP.

Sockets block, and the kernel's own timeouts (SO_RCVTIMEO, SO_SNDTIMEO) end their calls. They are
set again only when a different one is needed: Python's `settimeout` calls poll(2) before every
call.

The side that connected may poll for an answer for some 50 µs before it sleeps. On a machine with
idle cores that saves waking a core up, which takes longer than most answers. On a busy machine it
keeps the other side from its core (a bare echo of 4 KiB: 17 µs asleep, 24 µs polling). So both ways
are timed, and the one that is faster at present is used.

Descriptors belong to the process that made them. A forked child closes its copies at once, and the
peer notices nothing.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from chunkstore.after_fork import renew_after_fork
from chunkstore.stores.object_store import Buffer
from dieselfs.cache.ports.runtime import Condition, Listener, Lock, PeerAddress, Running, Stream
from dieselfs.cache.wire.name_lookup import addresses_of

_IOV_MAX: Final = 1024
_BACKLOG: Final = 512
_VANISHED_S: Final = 30
"""The time without an acknowledgement after which a peer is gone.

Reading ends then, and so does a send that could wait longer.
"""

_POLL_S: Final = 50e-6
"""The time for which a receiver polls before it sleeps."""
_SAMPLE: Final = 16
"""One wait in so many is timed."""
_TRIAL: Final = 32 * _SAMPLE
"""One wait in so many uses the slower way of the two, to time it again."""
_SHORT_S: Final = 1e-3
"""The limit above which a timed wait does not count: it says nothing about the way of waiting."""
_WEIGHT: Final = 1 / 8
"""The weight of a new time in a way's average."""

_TICK_S: Final = 0.25
"""The unit of the sockets' timeouts, which are rounded up to multiples of it.

A timeout that is longer by at most one tick is left as it is, which mostly saves a system call.
"""


class OperatingSystem:
    """The `Runtime` of threads and TCP sockets."""

    def now(self) -> float:
        """See `Runtime`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Runtime`."""
        time.sleep(seconds)

    def start(self, run: Callable[[], None], name: str) -> Running:
        """See `Runtime`."""
        return _Thread(run, name)

    def lock(self) -> Lock:
        """See `Runtime`."""
        return threading.Lock()

    def condition(self, lock: Lock) -> Condition:
        """See `Runtime`. `lock` must come from `lock()`."""
        assert isinstance(lock, type(threading.Lock()))
        return threading.Condition(lock)

    def connect(self, address: PeerAddress, timeout_s: float) -> Stream:
        """Connect to one of the host's addresses. Raises `OSError` if none answers.

        `timeout_s` applies to the lookup, and again to each address, of which there is mostly one.
        """
        failure = OSError(f"{address.host} has no address")
        for host in addresses_of(address.host, timeout_s):
            try:
                connection = socket.create_connection((host, address.port), timeout_s)
            except OSError as error:
                failure = error
            else:
                return SocketStream(connection, polls=True)
        raise failure

    def listen(self, address: PeerAddress) -> Listener:
        """See `Runtime`."""
        return _SocketListener(address)

    def random_bytes(self, count: int) -> bytes:
        """See `Runtime`."""
        return os.urandom(count)


class _Thread:
    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive()


class SocketStream:
    """A `Stream` on a connected TCP socket, which it owns."""

    def __init__(self, connection: socket.socket, *, polls: bool = False) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _VANISHED_S // 2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _VANISHED_S // 6)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _VANISHED_S * 1000)
        self._socket = connection
        self._receive_timeout_s = self._send_timeout_s = 0.0
        self._polls = polls
        self._waits = 0
        self._looks = False
        """The receiver polls instead of sleeping at once."""
        self._asleep_s = self._looking_s = 0.0
        """Averages of recent short round trips, asleep and polling.

        A round trip includes the send, since its time, too, depends on where the other side was put
        to sleep.
        """
        self._sent_at = 0.0
        # The descriptor is closed when no thread is inside a call that uses it: a moment later its
        # number may be another file's. A call sets its flag before it checks `_closed`, and `close`
        # sets `_closed` before it checks the flags, so one of the two sides sees the other.
        self._closed = False
        self._sending = False
        self._receiving = False
        renew_after_fork(self)

    def send(self, buffers: Sequence[Buffer], timeout_s: float) -> None:
        """See `Stream`."""
        self._sending = True
        try:
            if self._closed:
                raise OSError("this connection was closed")
            if not timeout_s <= self._send_timeout_s <= timeout_s + _TICK_S:
                self._send_timeout_s = self._set_timeout(socket.SO_SNDTIMEO, timeout_s)
            if self._polls and not (self._waits + 1) % _SAMPLE:
                self._sent_at = time.monotonic()
            if len(buffers) == 1:
                count = len(buffers[0])
                sent = self._socket.send(buffers[0])
            else:
                count = 0
                for buffer in buffers:
                    count += len(buffer)
                sent = self._socket.sendmsg(buffers[:_IOV_MAX])
            if sent != count:
                self._send_rest(buffers, sent, timeout_s)
        except BlockingIOError as error:
            raise TimeoutError(f"the peer accepted no bytes for {timeout_s:.1f} s") from error
        finally:
            self._sending = False
            if self._closed:
                self._release()

    def receive_into(self, target: memoryview, timeout_s: float, *, at_least: int = 1) -> int:
        """See `Stream`."""
        self._receiving = True
        try:
            if self._closed:
                raise OSError("this connection was closed")
            deadline = time.monotonic() + timeout_s if at_least > 1 else 0.0
            if not timeout_s <= self._receive_timeout_s <= timeout_s + _TICK_S:
                self._receive_timeout_s = self._set_timeout(socket.SO_RCVTIMEO, timeout_s)
            if at_least == len(target):
                count = self._socket.recv_into(target, 0, socket.MSG_WAITALL)
            elif self._polls:
                count = self._receive_soon(target)
            else:
                count = self._socket.recv_into(target)
            if 0 < count < at_least:
                count = self._receive_rest(target, count, deadline, at_least)
            return count
        except BlockingIOError as error:
            raise TimeoutError(f"the peer sent nothing for {timeout_s:.1f} s") from error
        finally:
            self._receiving = False
            if self._closed:
                self._release()

    def close(self) -> None:
        """See `Stream`."""
        if not self._closed:
            self._closed = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._release()

    def renew(self) -> None:
        """Close the descriptor in a forked child, without a shutdown of the connection."""
        self._closed = True
        self._socket.close()

    def _set_timeout(self, option: int, timeout_s: float) -> float:
        """Set a timeout, rounded up to whole ticks, and return it."""
        ticks = max(1, -int(-timeout_s // _TICK_S))
        seconds, part = divmod(ticks * _TICK_S, 1)
        value = struct.pack("@ll", int(seconds), int(part * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, option, value)
        return ticks * _TICK_S

    def _receive_soon(self, target: memoryview) -> int:
        """Receive what comes next, waiting in the way that is faster at present."""
        self._waits += 1
        looks = self._looks if self._waits % _TRIAL else not self._looks
        count = self._poll(target) if looks else -1
        if count < 0:
            count = self._socket.recv_into(target)
        if not self._waits % _SAMPLE:
            took_s = time.monotonic() - self._sent_at
            if took_s < _SHORT_S:
                if looks:
                    self._looking_s += (took_s - self._looking_s) * _WEIGHT
                else:
                    self._asleep_s += (took_s - self._asleep_s) * _WEIGHT
                self._looks = self._looking_s < self._asleep_s
        return count

    def _poll(self, target: memoryview) -> int:
        """Receive what comes soon; return −1 if nothing does.

        Each look lets other threads run, which can take long, so the limit is a time and not a
        number of looks.
        """
        receive, until = self._socket.recv_into, time.monotonic() + _POLL_S
        while True:
            try:
                return receive(target, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.monotonic() >= until:
                    return -1

    def _send_rest(self, buffers: Sequence[Buffer], sent: int, timeout_s: float) -> None:
        """Send what one call did not take.

        The call was interrupted or ran out of time, or there are too many buffers for one.
        """
        deadline = time.monotonic() + timeout_s
        rest = list(buffers)
        while True:
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if not rest:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the peer did not accept all bytes within {timeout_s:.1f} s")
            rest[0] = memoryview(rest[0])[sent:]
            sent = self._socket.sendmsg(rest[:_IOV_MAX])

    def _receive_rest(self, target: memoryview, count: int, deadline: float, at_least: int) -> int:
        """Receive what the first call did not.

        The call was interrupted or ran out of time, or it receives only what is there.
        """
        while count < at_least:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError("the peer sent only a part of the bytes within the time limit")
            if remaining_s < self._receive_timeout_s - _TICK_S:
                self._receive_timeout_s = self._set_timeout(socket.SO_RCVTIMEO, remaining_s)
            # The target ends at `at_least`, so that the kernel waits for all those bytes.
            more = self._socket.recv_into(target[count:at_least], 0, socket.MSG_WAITALL)
            if not more:
                return count
            count += more
        return count

    def _release(self) -> None:
        if not (self._sending or self._receiving):
            self._socket.close()


class _SocketListener:
    """A `Listener` on a TCP socket."""

    def __init__(self, address: PeerAddress) -> None:
        family = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0][0]
        self._socket = socket.create_server(
            (address.host, address.port), family=family, backlog=_BACKLOG
        )
        host, port = self._socket.getsockname()[:2]
        self._address = PeerAddress(host, port)
        self._closed = False
        self._accepting = False
        renew_after_fork(self)

    @property
    def address(self) -> PeerAddress:
        return self._address

    def accept(self) -> Stream:
        self._accepting = True
        try:
            if self._closed:
                raise OSError("this listener was closed")
            return SocketStream(self._socket.accept()[0])
        finally:
            self._accepting = False
            if self._closed:
                self._socket.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in `accept`
            if not self._accepting:
                self._socket.close()

    def renew(self) -> None:
        """Close the descriptor in a forked child, without a shutdown of the listener."""
        self._closed = True
        self._socket.close()
