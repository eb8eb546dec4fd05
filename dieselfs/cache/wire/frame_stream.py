"""Frames on a connection: headers pass through a small buffer, bulk goes straight to its target.

One call usually receives a prefix, a header and a small bulk together. A bulk that is known to be
large is not read into the buffer, so it is copied only once: by the kernel.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dieselfs.cache.ports.runtime import Runtime, Stream
from dieselfs.cache.wire.frame_header import PREFIX_BYTES, decode_prefix
from dieselfs.cache.wire.frames import encode_answer
from dieselfs.cache.wire.handshake import bytes_that_follow
from dieselfs.cache.wire.messages import Data
from dieselfs.cache.wire.slow_peer_detector import BYTES_PER_S

FRAME_S: Final = 1.0
"""The time in which a header, once begun, must be there.

The same time applies to bulk, plus the time for its bytes at `BYTES_PER_S`.
"""

_BUFFER_BYTES: Final = 64 << 10
LARGE_BYTES: Final = 24 << 10
"""The size from which a bulk is received in a call of its own.

A call costs 1 µs; copying costs 0.1 µs a KiB.
"""
_DATA_FRAME_BYTES: Final = len(encode_answer(0, Data(memoryview(b"")), LARGE_BYTES))


class FrameReceiver:
    """The receiving half of a connection. One thread at a time uses it."""

    def __init__(self, stream: Stream, *, of_requests: bool = False) -> None:
        self._stream = stream
        self._of_requests = of_requests
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0

    def header(self, timeout_s: float, bulk_bytes: int = 0) -> tuple[memoryview, int, int]:
        """Return the next frame's header, its checksum, and the number of bulk bytes that follow.

        `bulk` receives those bytes. The header is valid until the next one. `bulk_bytes` is the
        number of bulk bytes that are expected.

        Raises `TimeoutError` if nothing comes for `timeout_s`; nothing is lost then. Raises another
        `OSError` if the stream ends, or if a header is not complete within `FRAME_S`; `BadFrame`.
        """
        start, end = self._start, self._end
        if start == end:
            target = self._buffer if bulk_bytes < LARGE_BYTES else self._buffer[:_DATA_FRAME_BYTES]
            start, end = 0, self._stream.receive_into(target, timeout_s)
            if not end:
                raise _ended()
        if end - start < PREFIX_BYTES:
            start, end = self._more(start, end, PREFIX_BYTES)
        header_bytes, bulk_bytes, checksum = decode_prefix(
            self._buffer[start:end] if start else self._buffer, of_request=self._of_requests
        )
        if end - start < PREFIX_BYTES + header_bytes:
            start, end = self._more(start, end, PREFIX_BYTES + header_bytes)
        self._start, self._end = start + PREFIX_BYTES + header_bytes, end
        return self._buffer[start + PREFIX_BYTES : self._start], checksum, bulk_bytes

    def expected(self, frame: bytes, bulk_bytes: int, timeout_s: float) -> memoryview | None:
        """Return the bulk behind `frame`, in memory of its own, if exactly these bytes come next.

        Otherwise return None; `header` then receives whatever comes. Raises what `header` raises.

        Comparing a frame with the expected one checks it completely, in a tenth of the time.
        """
        start, end = self._start, self._end
        if start == end:
            if bulk_bytes >= LARGE_BYTES:
                return self._expected_large(frame, bulk_bytes, timeout_s)
            start, end = 0, self._stream.receive_into(self._buffer, timeout_s)
            if not end:
                raise _ended()
            self._start, self._end = start, end
        begin = start + len(frame)
        if end - begin < bulk_bytes or self._buffer[start:begin] != frame:
            return None
        self._start = begin + bulk_bytes
        return memoryview(bytes(self._buffer[begin : self._start]))

    def _expected_large(self, frame: bytes, bulk_bytes: int, timeout_s: float) -> memoryview | None:
        """Receive frame and bulk into one array, whose end becomes the caller's.

        If something else comes, that array is the buffer from now on.
        """
        target = np.empty(len(frame) + bulk_bytes, np.uint8).data
        ready = self._stream.receive_into(target, timeout_s)
        if not ready:
            raise _ended()
        if ready < len(frame) or target[: len(frame)] != frame:
            self._buffer, self._start, self._end = target, 0, ready
            return None
        missing = len(target) - ready
        if missing:
            timeout_s = FRAME_S + missing / BYTES_PER_S
            if self._stream.receive_into(target[ready:], timeout_s, at_least=missing) < missing:
                raise _ended()
        return target[len(frame) :]

    def bulk(self, count: int) -> memoryview:
        """Return the bulk that follows the last header, in memory of its own.

        Raises `OSError` if it does not come at `BYTES_PER_S`.
        """
        start, ready = self._start, self._end - self._start
        if ready >= count:
            self._start += count
            return memoryview(bytes(self._buffer[start : start + count]))
        self._start = self._end
        target = np.empty(count, np.uint8).data
        target[:ready] = self._buffer[start : self._end]
        missing = count - ready
        timeout_s = FRAME_S + missing / BYTES_PER_S
        if self._stream.receive_into(target[ready:], timeout_s, at_least=missing) < missing:
            raise _ended()
        return target

    def _more(self, start: int, end: int, count: int) -> tuple[int, int]:
        """Receive until there are `count` bytes from `start`; return where they lie now."""
        ready = end - start
        if start + count > len(self._buffer):
            before, self._buffer = (
                self._buffer,
                memoryview(bytearray(max(count, _BUFFER_BYTES))),
            )
            self._buffer[:ready] = before[start:end]
            start, end = 0, ready
        missing = count - ready
        try:
            got = self._stream.receive_into(self._buffer[end:], FRAME_S, at_least=missing)
        except TimeoutError as error:
            raise ConnectionError(f"only a part of a frame's header arrived: {error}") from error
        if got < missing:
            raise _ended()
        return start, end + got


def receive_greeting(runtime: Runtime, stream: Stream, deadline: float) -> bytes:
    """Receive one whole frame of a handshake, and no byte more.

    Raises `OSError` if it is not there at `deadline`; `BadFrame`.
    """
    prefix = _exactly(runtime, stream, PREFIX_BYTES, deadline)
    return prefix + _exactly(runtime, stream, bytes_that_follow(prefix), deadline)


def _exactly(runtime: Runtime, stream: Stream, count: int, deadline: float) -> bytes:
    target = bytearray(count)
    remaining_s = deadline - runtime.now()
    if remaining_s <= 0:
        raise TimeoutError("the handshake took too long")
    if stream.receive_into(memoryview(target), remaining_s, at_least=count) < count:
        raise _ended()
    return bytes(target)


def _ended() -> OSError:
    return ConnectionError("the other side has ended the connection")
