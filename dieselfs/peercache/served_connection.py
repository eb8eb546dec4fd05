"""The answering side of a connection: one thread reads requests, and sends at once what is held.

What takes longer is answered by others, in any order. One thread sends at a time; who finds another at it, and must not wait, leaves its
answer with that one. So a client that does not take its answers holds up its own connection's thread, and one more at the most.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dieselfs.node_memory.piece import CacheBlock
from dieselfs.peercache.frame_stream import FrameReceiver
from dieselfs.peercache.frames import decode_request, encode_answer
from dieselfs.peercache.held_chunks import CachedChunks, NodeStatus
from dieselfs.peercache.held_ranges import OutOfRange, Read, cached_ranges, missing_blocks
from dieselfs.peercache.members import Member, MemberId
from dieselfs.peercache.messages import (
    Answer,
    Data,
    Failed,
    Join,
    Leave,
    Members,
    NotCached,
    Ping,
    Pong,
    ReadFile,
    Request,
    Working,
)
from dieselfs.peercache.pace import BYTES_PER_S
from dieselfs.peercache.runtime import Runtime, Stream
from dieselfs.peercache.slow_answers import SlowAnswers

log = logging.getLogger(__name__)

TAKE_S: Final = 16.0
"""An answer may lie on the line for so long, and for its bytes at `BYTES_PER_S` on top: a client that has asked several peers hears them one
after the other, each for as long as it has patience."""
_TELL_S: Final = 0.2
"""For a word of work, which the line has room for unless its client takes nothing."""
_IDLE_S: Final = 60.0
"""Nothing happens then: whether the client is there still is the network's to find out."""
_MAX_SLOW: Final = 64
"""Requests of one connection that are worked at."""

_DATA: Final = Data(memoryview(b""))


class MemberList(Protocol):
    """The list of members that rank 0 keeps. Thread-safe; neither blocks nor raises."""

    def join(self, member: Member) -> Sequence[Member]:
        """Renew its lease; all that have one now."""
        ...

    def leave(self, member: MemberId) -> None: ...


@dataclass(frozen=True, slots=True)
class Service:
    """What all connections of a server have in common."""

    cached: CachedChunks
    slow: SlowAnswers
    member_list: MemberList | None
    status: Callable[[], NodeStatus]


class ServedConnection:
    """Implements `Asker`."""

    def __init__(self, runtime: Runtime, stream: Stream, client: str, service: Service) -> None:
        """On a stream whose handshake is done."""
        self._stream = stream
        self._client = client
        self._service = service
        self.cached = service.cached
        self._sending = runtime.lock()
        self._left: deque[tuple[bytes, Sequence[memoryview], int]] = deque()
        """Answers of threads that did not wait for the lock. Whoever has let go of it looks here."""
        self._slow: set[int] = set()
        """Numbers of requests that are worked at."""
        self.answers = 0
        """With data. Counted by who sends."""
        self.sent_bytes = 0
        """Bulk alone."""

    def serve(self) -> None:
        """Until the connection ends: returns by an `OSError`, or `BadFrame`."""
        frames = FrameReceiver(self._stream, of_requests=True)
        payload_of = self.cached.payload
        while True:
            try:
                header, checksum, _ = frames.header(_IDLE_S)
            except TimeoutError:
                continue
            number, request = decode_request(header, checksum)
            if type(request) is ReadFile:
                payload = payload_of(request.chunk.id)
                if payload is not None:
                    part = payload[request.start : request.start + request.length]
                    if len(part) == request.length:
                        frame = encode_answer(number, _DATA, request.length)
                        with self._sending:
                            self._put(frame, (part,), request.length)
                        if self._left:
                            self._send_left()
                        continue
            self._answer(number, request)

    def finish(self, number: int, request: Request, failure: Answer | None) -> None:
        """See `Asker`."""
        self._slow.discard(number)
        assert isinstance(request, Read)
        parts: Sequence[memoryview] = ()
        answer: Answer = failure or NotCached()
        if failure is None:
            try:
                found = cached_ranges(self.cached, request)
                if found is not None:
                    answer, parts = _DATA, found
            except Exception as error:
                answer = _failed(error)
        bulk_bytes = sum(map(len, parts))
        self._left.append((encode_answer(number, answer, bulk_bytes), parts, bulk_bytes))
        self._send_left()

    def report_working(self, number: int) -> None:
        """See `Asker`. Nothing, if something is being sent: that tells enough."""
        if self._sending.acquire(blocking=False):
            try:
                if (
                    number in self._slow
                ):  # looked at with the right to send: nothing may follow the answer
                    self._stream.send((encode_answer(number, Working()),), _TELL_S)
            except OSError:
                self._stream.close()
            finally:
                self._sending.release()
            self._send_left()

    def _answer(self, number: int, request: Request) -> None:
        """Whatever is not a file that is held."""
        parts: Sequence[memoryview] = ()
        blocks: Sequence[CacheBlock] = ()
        try:
            if isinstance(request, Read):
                found = cached_ranges(self.cached, request)
                if found is None:
                    answer: Answer = NotCached()
                    blocks = self._to_load(request)
                else:
                    answer, parts = _DATA, found
            elif isinstance(request, Ping):
                answer = Pong(self._service.status())
            else:
                answer = self._enroll(request)
        except Exception as error:
            answer = _failed(error)
        if blocks and self._begin_slow(number, request, blocks):
            return
        bulk_bytes = sum(map(len, parts))
        self._send(encode_answer(number, answer, bulk_bytes), parts, bulk_bytes)

    def _to_load(self, read: Read) -> Sequence[CacheBlock]:
        """Nothing, if nobody may bring what is missing."""
        blocks = missing_blocks(self.cached, read)
        # What is being fetched just now is worth the wait also for who must not let it be fetched.
        is_worth_it = read.may_fetch or all(map(self.cached.is_loading, blocks))
        return blocks if is_worth_it and len(self._slow) < _MAX_SLOW else ()

    def _begin_slow(self, number: int, read: Request, blocks: Sequence[CacheBlock]) -> bool:
        """False if there is too much to bring. `OSError` if the client has gone."""
        # From now on its time does not count against us (`pace`). Said before it is begun: nothing may follow the answer.
        self._send(encode_answer(number, Working()), (), 0)
        self._slow.add(number)
        if self._service.slow.begin(self, number, read, blocks):
            return True
        self._slow.discard(number)
        return False

    def _enroll(self, request: Join | Leave) -> Answer:
        member_list = self._service.member_list
        if member_list is None:
            return Failed("this node does not keep the list of members")
        if isinstance(request, Join):
            return Members(tuple(member_list.join(request.member)))
        member_list.leave(request.member)
        return Members(())

    def _send(self, frame: bytes, parts: Sequence[memoryview], bulk_bytes: int) -> None:
        with self._sending:
            self._put(frame, parts, bulk_bytes)
        if self._left:
            self._send_left()

    def _send_left(self) -> None:
        """What is left, unless somebody else sends: that one will look."""
        while self._left and self._sending.acquire(blocking=False):
            try:
                if self._left:
                    self._put(*self._left.popleft())
            except OSError as error:
                log.debug("%s does not take its answers: %s", self._client, error)
                self._left.clear()
                self._stream.close()
            finally:
                self._sending.release()

    def _put(self, frame: bytes, parts: Sequence[memoryview], bulk_bytes: int) -> None:
        """With the right to send."""
        self._stream.send((frame, *parts), TAKE_S + bulk_bytes / BYTES_PER_S)
        if bulk_bytes:
            self.answers += 1
            self.sent_bytes += bulk_bytes


def _failed(error: Exception) -> Failed:
    if isinstance(error, OutOfRange):
        return Failed(str(error))
    if type(error) not in _surprises:
        _surprises.add(type(error))
        log.error("a peer could not be answered", exc_info=error)
    return Failed(f"unexpected: {type(error).__name__}")


_surprises: Final[set[type[Exception]]] = set()
"""That were logged: once each, since whatever is broken may be asked for by everyone."""
