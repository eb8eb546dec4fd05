"""Peers in this process, without sockets: what each holds, and how it misbehaves. Takes the place
of `PeerClient`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.membership.breakers import Breakers
from dieselfs.cache.membership.placement import Placement
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.members import Member, View
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire.messages import (
    Answer,
    Data,
    Failed,
    NotCached,
    ReadBlock,
    ReadChunk,
    ReadFile,
    ReadRanges,
    Request,
)
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.errors import PeerBusy, PeerFailed, PeerRefused


def member(name: str, weight: int = 100) -> Member:
    return Member(name, PeerAddress(name, 1), weight)


def sound(answer: Answer) -> Answer:
    return answer


def other_bytes(answer: Answer) -> Answer:
    if isinstance(answer, Data) and len(answer.bulk):
        wrong = bytearray(answer.bulk)
        wrong[len(wrong) // 2] ^= 0x10
        return Data(memoryview(wrong))
    return answer


def no_bytes(answer: Answer) -> Answer:
    return Data(memoryview(bytes(len(answer.bulk)))) if isinstance(answer, Data) else answer


def too_short(answer: Answer) -> Answer:
    return Data(answer.bulk[:-1]) if isinstance(answer, Data) else answer


def silent(answer: Answer) -> Answer:
    raise PeerFailed("it did not answer within 1 s")


def refuses(answer: Answer) -> Answer:
    raise PeerRefused("it knows another secret")


def busy(answer: Answer) -> Answer:
    raise PeerBusy("it has worked for 15 s")


def fails(answer: Answer) -> Answer:
    return Failed("the store does not answer")


def holds_nothing(answer: Answer) -> Answer:
    return NotCached()


FAULTS = [other_bytes, no_bytes, silent, refuses, busy, fails, holds_nothing]


@dataclass(slots=True)
class Peer:
    """Holds what it is told to, and fetches, if it may, what it has in `fetchable`."""

    objects: Mapping[ChunkId, bytes]
    """Head and payload of every chunk."""
    cached: set[ChunkId] = field(default_factory=set)
    fetches: bool = True
    fault: Callable[[Answer], Answer] = sound
    asked: list[Request] = field(default_factory=list)
    fetched: list[ChunkId] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        return self.fault(self._answer(request))

    def _answer(self, request: Request) -> Answer:
        match request:
            case ReadChunk(chunk, may_fetch):
                if self._has(chunk, may_fetch):
                    return Data(memoryview(self.objects[chunk.id]))
            case ReadFile(chunk, start, length, may_fetch):
                if self._has(chunk, may_fetch):
                    return Data(self._payload(chunk)[start : start + length])
            case ReadBlock(block, may_fetch):
                if self._has(block.chunk, may_fetch):
                    assert block.file is not None
                    start = block.file.offset + block.number * (4 << 20)
                    return Data(self._payload(block.chunk)[start : start + block.length])
            case ReadRanges(chunks, which, start, length, may_fetch):
                if all([self._has(chunk, may_fetch) for chunk in chunks]):
                    rows = zip(which.tolist(), start.tolist(), length.tolist(), strict=True)
                    parts = [self._payload(chunks[at])[begin : begin + n] for at, begin, n in rows]
                    return Data(memoryview(b"".join(parts)))
        return NotCached()

    def _has(self, chunk: ChunkRef, may_fetch: bool) -> bool:
        if chunk.id not in self.cached and may_fetch and self.fetches:
            self.cached.add(chunk.id)
            self.fetched.append(chunk.id)
        return chunk.id in self.cached

    def _payload(self, chunk: ChunkRef) -> memoryview:
        return memoryview(self.objects[chunk.id])[chunk.head_bytes :]


@dataclass(slots=True)
class _Pending:
    peer: Peer
    request: Request

    def result(self) -> Answer:
        return self.peer.answer(self.request)


@dataclass(slots=True)
class ScriptedPeers:
    """Implements `task_peers.Asker` and `ViewBoard`. `me` is the node whose reads are tested."""

    peers: dict[str, Peer]
    me: str = "me"
    my_weight: int = 100
    now: float = 100.0
    begun: list[str] = field(default_factory=list)
    view: View | None = None
    closed: bool = False

    def ask(self, peer: Member, request: Request) -> Answer:
        return self.begin(peer, request).result()

    def begin(self, peer: Member, request: Request) -> _Pending:
        self.begun.append(peer.id)
        return _Pending(self.peers[peer.id], request)

    def close(self) -> None:
        self.closed = True

    def current(self) -> View | None:
        return self.view

    def publish(self, view: View) -> None:
        self.view = view

    def withdraw(self) -> None:
        self.view = None

    def see(self, silent: Sequence[str] = (), pinged: float | None = None) -> None:
        """Publish a view in which all but the silent have answered."""
        me = member(self.me, self.my_weight)
        answered = {name: self.now if pinged is None else pinged for name in self.peers}
        members = tuple(sorted([me, *map(member, self.peers)], key=lambda one: one.id))
        self.view = View(me, members, answered, frozenset(silent))

    def attach_to(self, source: PeerSource) -> Breakers:
        breakers = Breakers(lambda: self.now)
        source.attach(_Runtime(self), self, self, breakers)
        return breakers

    def ranked(self, chunk: ChunkRef) -> list[str]:
        assert self.view is not None
        return [one.id for one in Placement.of(self.view).ranked(chunk.id)]


class _Runtime(OperatingSystem):
    """Real threads, and the time that the test says."""

    def __init__(self, peers: ScriptedPeers) -> None:
        self._peers = peers

    def now(self) -> float:
        return self._peers.now
