"""Answers say what was fetched for them, and requests that may not fetch get what is cached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.fetched_bytes import count_fetched
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.request_tags import RequestTags
from dieselfs.cache.wire.handshake import ClientHandshake
from dieselfs.cache.wire.messages import (
    Answer,
    AskCached,
    CachedBytes,
    Data,
    Failed,
    NotCached,
    ReadChunk,
    ReadFile,
    ReadRanges,
)
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_server import PeerServer
from dieselfs.errors import CacheFull
from tests.dieselfs.cache.peers.plain_chunks import (
    CHUNK_BYTES,
    HEAD_BYTES,
    PlainChunks,
    chunk,
)
from tests.dieselfs.cache.peers.scripted_peer import LOOPBACK, SECRET, SOON_S, TASK
from tests.eventually import PATIENCE_S, eventually

pytestmark = pytest.mark.usefixtures("patience")

RUNTIME = OperatingSystem()
OBJECT_BYTES = HEAD_BYTES + CHUNK_BYTES
ON_SSD, IN_STORE, OTHER = chunk(1), chunk(2), chunk(3)


class NodeChunks(PlainChunks):
    """One chunk on an SSD, and the others in a store. Implements `LoadsCached`."""

    def __init__(self) -> None:
        super().__init__()
        self.fetch = self.fetch_one
        self.opened = threading.Event()
        """Fetches wait for it."""
        self.opened.set()
        self.keeps = True
        self.requests: list[str] = []

    def fetch_one(self, block: CacheBlock) -> None:
        assert self.opened.wait(PATIENCE_S)
        if self.payload(block.chunk.id) is not None:  # fetched since it was found missing
            return
        if block.chunk.id != ON_SSD.id:
            count_fetched(OBJECT_BYTES)
        if not self.keeps:
            raise CacheFull("no room")
        self.keep(block)

    def load_cached(self, block: CacheBlock) -> None:
        if block.chunk.id != ON_SSD.id:
            raise CacheFull("not cached")
        self.keep(block)

    def dataset_cached_bytes(self) -> int:
        return OBJECT_BYTES

    def requested(self, block: CacheBlock, length: int, tags: RequestTags) -> None:
        self.requests.append(block.name)


@pytest.fixture
def cached() -> NodeChunks:
    return NodeChunks()


@pytest.fixture
def server(cached: NodeChunks) -> Iterator[PeerServer]:
    server = PeerServer(RUNTIME, SECRET, TASK, "peer", LOOPBACK, cached)
    yield server
    assert server.close(SOON_S)


Ask = Callable[..., Answer]


@pytest.fixture
def ask(server: PeerServer) -> Iterator[Ask]:
    client = PeerClient(RUNTIME, SECRET, TASK, "test")
    yield lambda request: client.ask(Member("peer", server.address, 1), request)
    client.close()


def fetched(answer: Answer) -> int:
    assert isinstance(answer, Data)
    return answer.fetched_bytes


def ranges(*chunks: ChunkRef) -> ReadRanges:
    count = len(chunks)
    columns = (
        np.arange(count, dtype=np.uint16),
        np.zeros(count, np.uint32),
        np.ones(count, np.uint32),
    )
    return ReadRanges(chunks, *columns, True)


def test_the_first_answer_says_what_was_fetched_and_later_ones_nothing(ask: Ask) -> None:
    assert fetched(ask(ReadChunk(IN_STORE, True))) == OBJECT_BYTES
    assert fetched(ask(ReadChunk(IN_STORE, True))) == 0
    assert fetched(ask(ReadFile(IN_STORE, 0, 5, True))) == 0
    assert fetched(ask(ReadChunk(ON_SSD, True))) == 0


def test_a_request_for_several_chunks_pays_for_those_that_it_began(ask: Ask) -> None:
    assert fetched(ask(ReadFile(IN_STORE, 0, 5, True))) == OBJECT_BYTES
    assert fetched(ask(ranges(IN_STORE, OTHER, ON_SSD))) == OBJECT_BYTES


def test_one_of_two_that_wait_for_a_fetch_pays(cached: NodeChunks, ask: Ask) -> None:
    cached.opened.clear()
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(ask, ReadChunk(IN_STORE, True)) for _ in range(2)]
        eventually(lambda: cached.requests == [str(IN_STORE.id)] * 2, "both wait")
        cached.opened.set()
        assert sorted(fetched(each.result()) for each in answers) == [0, OBJECT_BYTES]


def test_what_cannot_be_kept_was_fetched_all_the_same(cached: NodeChunks, ask: Ask) -> None:
    cached.keeps = False
    assert ask(ReadChunk(IN_STORE, True)) == NotCached(OBJECT_BYTES)


def test_a_request_that_may_not_fetch_gets_what_is_cached(cached: NodeChunks, ask: Ask) -> None:
    assert fetched(ask(ReadChunk(ON_SSD, False))) == 0
    assert ask(ReadChunk(IN_STORE, False)) == NotCached()
    assert cached.loaded == []


def test_it_does_not_keep_a_request_waiting_that_may_fetch(cached: NodeChunks, ask: Ask) -> None:
    cached.opened.clear()
    with ThreadPoolExecutor(1) as threads:
        rich = threads.submit(ask, ReadChunk(IN_STORE, True))
        eventually(lambda: cached.loaded, "a fetch under way")
        assert ask(ReadChunk(IN_STORE, False)) == NotCached()
        cached.opened.set()
        assert fetched(rich.result()) == OBJECT_BYTES


def test_a_request_that_is_repeated_because_it_may_fetch_now_counts_once(
    cached: NodeChunks, ask: Ask
) -> None:
    name = str(IN_STORE.id)
    for _ in range(2):
        assert ask(ReadChunk(IN_STORE, False)) == NotCached()
    assert cached.requests == [name] * 2
    assert fetched(ask(ReadChunk(IN_STORE, True))) == OBJECT_BYTES
    assert cached.requests == [name] * 2
    ask(ReadChunk(IN_STORE, True))
    assert cached.requests == [name] * 3


def test_a_client_of_version_2_is_told_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, cached: NodeChunks, ask: Ask
) -> None:
    monkeypatch.setattr(ClientHandshake, "newest", 2)
    assert fetched(ask(ReadChunk(IN_STORE, True))) == 0
    assert ask(ReadChunk(ON_SSD, False)) == NotCached()
    cached.keeps = False
    assert ask(ReadChunk(OTHER, True)) == NotCached()


def test_a_node_says_how_much_it_caches_and_a_master_does_not(
    cached: NodeChunks, ask: Ask, server: PeerServer
) -> None:
    assert ask(AskCached()) == CachedBytes(OBJECT_BYTES)
    master = PeerServer(RUNTIME, SECRET, TASK, "peer", LOOPBACK, PlainChunks())
    client = PeerClient(RUNTIME, SECRET, TASK, "test")
    assert isinstance(client.ask(Member("peer", master.address, 1), AskCached()), Failed)
    client.close()
    assert master.close(SOON_S)
