"""The server's side of a connection: one thread reads requests, and sends cached bytes at once.

Other threads answer requests that take longer, in any order. One thread sends at a time. A thread
that finds another one sending, and must not wait, leaves its answer with that one. So a client that
does not take its answers blocks its own connection's thread, and at most one more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import (
    CachedChunks,
    CountsRequests,
    LoadsCached,
    NodeStatus,
    ReportsPolicy,
)
from dieselfs.cache.ports.members import Member, MemberId
from dieselfs.cache.ports.runtime import Runtime, Stream
from dieselfs.cache.wire.cached_ranges import OutOfRange, Read, cached_ranges, missing_blocks
from dieselfs.cache.wire.connection_tags import TagTable
from dieselfs.cache.wire.declined_chunks import DeclinedChunks
from dieselfs.cache.wire.frame_stream import FrameReceiver
from dieselfs.cache.wire.frames import decode_request, encode_answer
from dieselfs.cache.wire.messages import (
    FETCHES_VERSION,
    PROTOCOL_VERSION,
    Answer,
    AskCached,
    AskPolicy,
    CachedBytes,
    Data,
    Failed,
    Join,
    Leave,
    Members,
    NameTags,
    NotCached,
    Ping,
    PolicyReport,
    Pong,
    ReadBlock,
    ReadFile,
    ReadRanges,
    Request,
    Working,
)
from dieselfs.cache.wire.slow_answers import SlowAnswers
from dieselfs.cache.wire.slow_peer_detector import BYTES_PER_S

log = logging.getLogger(__name__)

TAKE_S: Final = 16.0
"""The time for which an answer may wait to be taken, plus the time for its bytes at `BYTES_PER_S`.

A client that has asked several peers receives their answers one after the other, and waits for each
as long as its patience allows.
"""
_TELL_S: Final = 0.2
"""The time for a notice of work; the network has room for it unless its client takes nothing."""
_IDLE_S: Final = 60.0
"""The time after which an idle connection waits again.

TCP finds out whether the client is still there.
"""
_MAX_SLOW: Final = 64
"""The limit of one connection's requests that are being worked at."""

_DATA: Final = Data(memoryview(b""))


class MemberList(Protocol):
    """The list of members that rank 0 keeps. Thread-safe; no method blocks or raises."""

    def join(self, member: Member) -> Sequence[Member]:
        """Renew the member's lease, and return all members that have one now."""
        ...

    def leave(self, member: MemberId) -> None:
        """End the member's lease."""
        ...


@dataclass(frozen=True, slots=True)
class Service:
    """The parts that all connections of a server share."""

    cached: CachedChunks
    slow: SlowAnswers
    member_list: MemberList | None
    status: Callable[[], NodeStatus]


class ServedConnection:
    """One client's connection. Implements `WaitingClient`."""

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        client: str,
        service: Service,
        version: int = PROTOCOL_VERSION,
    ) -> None:
        """`stream` has completed its handshake."""
        self._stream = stream
        self._client = client
        self._service = service
        self.cached = service.cached
        self._tags = TagTable(version)
        self._tells_fetches = version >= FETCHES_VERSION
        self._loads_cached = self._tells_fetches and isinstance(self.cached, LoadsCached)
        self._sending = runtime.lock()
        self._notifying = runtime.lock()
        """Held while a notice is sent, so for `_TELL_S` at most.

        A thread that finds another one sending waits for this lock first. So the other one is no
        notifier, which serves all connections and must not be left with an answer.
        """
        self._left: deque[tuple[bytes, Sequence[memoryview], int]] = deque()
        """Answers of threads that did not wait for the right to send.

        Each thread looks here after it has released `_sending`, but for the notifier.
        """
        self._slow: set[int] = set()
        """Numbers of requests that are being worked at."""
        self._declined = DeclinedChunks()
        self.answers = 0
        """Answers with data, counted by the thread that sends."""
        self.sent_bytes = 0
        """Bytes of bulk."""

    def serve(self) -> None:
        """Serve the client until the connection ends, with an `OSError` or `BadFrame`."""
        frames = FrameReceiver(self._stream, of_requests=True)
        payload_of = self.cached.payload
        counting = self.cached if isinstance(self.cached, CountsRequests) else None
        while True:
            try:
                header, checksum, _ = frames.header(_IDLE_S)
            except TimeoutError:
                continue
            number, request = decode_request(header, checksum)
            if isinstance(request, NameTags):
                self._tags.name(request)
                continue
            if counting is not None and isinstance(request, Read):
                self._count(counting, request)
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

    def _count(self, counting: CountsRequests, read: Read) -> None:
        """Report each chunk of a request with its tags. Raises `BadFrame` for unknown tags."""
        if isinstance(read, ReadRanges):
            tags = self._tags.of(read.tags, len(read.chunks))
            lengths = np.bincount(read.which, read.length, len(read.chunks)).tolist()
            for chunk, length, tag in zip(read.chunks, lengths, tags, strict=True):
                if not self._declined.is_repeated(read, chunk.id):
                    counting.requested(CacheBlock(chunk), int(length), tag)
            return
        block = read.block if isinstance(read, ReadBlock) else CacheBlock(read.chunk)
        length = read.length if isinstance(read, ReadFile) else block.length
        tag = self._tags.of(read.tags, 1)[0]
        if not self._declined.is_repeated(read, block.chunk.id):
            counting.requested(block, length, tag)

    def finish(
        self, number: int, request: Request, failure: Answer | None, fetched_bytes: int
    ) -> None:
        """See `WaitingClient`."""
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
        if isinstance(answer, NotCached) and not request.may_fetch:
            self._declined.note(request)
        bulk_bytes = sum(map(len, parts))
        if fetched_bytes and self._tells_fetches and isinstance(answer, Data | NotCached):
            answer = replace(answer, fetched_bytes=fetched_bytes)
        self._left.append((encode_answer(number, answer, bulk_bytes), parts, bulk_bytes))
        self._send_left()

    def report_working(self, number: int) -> None:
        """See `WaitingClient`.

        Sends nothing while an answer is being sent, since that tells the client enough.
        """
        with self._notifying:
            if self._sending.acquire(blocking=False):
                try:
                    # Checked with the right to send, since nothing may follow the answer.
                    if number in self._slow:
                        self._stream.send((encode_answer(number, Working()),), _TELL_S)
                except OSError:
                    self._stream.close()
                finally:
                    self._sending.release()

    def _answer(self, number: int, request: Request) -> None:
        """Answer any request but a `ReadFile` of a cached chunk."""
        parts: Sequence[memoryview] = ()
        blocks: Sequence[CacheBlock] = ()
        may_fetch = True
        try:
            if isinstance(request, Read):
                answer: Answer = NotCached()
                found = cached_ranges(self.cached, request)
                if found is None:
                    blocks = self._to_load(request)
                    may_fetch = request.may_fetch or not self._loads_cached
                if found is None and not blocks:  # all may have come between the two looks
                    found = cached_ranges(self.cached, request)
                if found is not None:
                    answer, parts = _DATA, found
            elif isinstance(request, Ping):
                answer = Pong(self._service.status())
            elif isinstance(request, AskPolicy):
                answer = self._policy()
            elif isinstance(request, AskCached):
                answer = self._dataset_cached()
            else:
                answer = self._enroll(request)
        except Exception as error:
            answer = _failed(error)
        if blocks and self._begin_slow(number, request, blocks, may_fetch):
            return
        bulk_bytes = sum(map(len, parts))
        self._send(encode_answer(number, answer, bulk_bytes), parts, bulk_bytes)

    def _to_load(self, read: Read) -> Sequence[CacheBlock]:
        """Return the blocks to load for a request; none if no thread may load them."""
        blocks = missing_blocks(self.cached, read)
        # Waiting for blocks that are being fetched already pays even if the request may not fetch.
        is_worth_it = (
            read.may_fetch or self._loads_cached or all(map(self.cached.is_loading, blocks))
        )
        return blocks if is_worth_it and len(self._slow) < _MAX_SLOW else ()

    def _begin_slow(
        self, number: int, read: Request, blocks: Sequence[CacheBlock], may_fetch: bool
    ) -> bool:
        """Hand the request over to be worked at. Return False if too many blocks wait to be loaded.

        Raises `OSError` if the client has gone.
        """
        # From the notice on, the request's time does not count against this node
        # (`slow_peer_detector`). The notice precedes the work, since nothing may follow the answer.
        self._send(encode_answer(number, Working()), (), 0)
        self._slow.add(number)
        if self._service.slow.begin(self, number, read, blocks, may_fetch):
            return True
        self._slow.discard(number)
        return False

    def _policy(self) -> Answer:
        if not isinstance(self.cached, ReportsPolicy):
            return Failed("this node has no cache policy")
        return PolicyReport(self.cached.policy_status())

    def _dataset_cached(self) -> Answer:
        if not isinstance(self.cached, LoadsCached):
            return Failed("this node caches no dataset on an SSD for this client")
        return CachedBytes(self.cached.dataset_cached_bytes())

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
        """Send the left answers, unless another thread is sending: that one will look for them."""
        while self._left and self._may_send():
            try:
                if self._left:
                    self._put(*self._left.popleft())
            except OSError as error:
                log.debug("%s does not read its answers: %s", self._client, error)
                self._left.clear()
                self._stream.close()
            finally:
                self._sending.release()

    def _may_send(self) -> bool:
        """Take the right to send, unless a thread that will look for left answers has it."""
        with self._notifying:
            return self._sending.acquire(blocking=False)

    def _put(self, frame: bytes, parts: Sequence[memoryview], bulk_bytes: int) -> None:
        """Send an answer. The calling thread holds the right to send.

        The answer is counted first: a client that has it, and asks for the counts over another
        connection, finds it counted.
        """
        if bulk_bytes:
            self.answers += 1
            self.sent_bytes += bulk_bytes
        self._stream.send((frame, *parts), TAKE_S + bulk_bytes / BYTES_PER_S)


def _failed(error: Exception) -> Failed:
    if isinstance(error, OutOfRange):
        return Failed(str(error))
    if type(error) not in _surprises:
        _surprises.add(type(error))
        log.error("cannot answer a peer", exc_info=error)
    return Failed(f"an unexpected error: {type(error).__name__}")


_surprises: Final[set[type[Exception]]] = set()
"""Types of errors that were logged, once each: every client may ask for whatever is broken."""
