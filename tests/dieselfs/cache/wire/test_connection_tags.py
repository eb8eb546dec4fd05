"""The server finds the tags that the client meant, however many there are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.request_tags import NO_TAGS, RequestTags
from dieselfs.cache.wire.connection_tags import TagNumbers, TagTable
from dieselfs.cache.wire.frame_header import PREFIX_BYTES, BadFrame, decode_prefix
from dieselfs.cache.wire.frames import decode_request, encode_request
from dieselfs.cache.wire.handshake import ClientHandshake, ServerHandshake
from dieselfs.cache.wire.messages import (
    MAX_RANGES,
    MAX_TAGS,
    Data,
    NameTags,
    Ping,
    Pong,
    ReadBlock,
    ReadChunk,
    ReadFile,
    ReadRanges,
    Request,
)
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_connection import shake_hands
from dieselfs.cache.wire.peer_server import PeerServer
from tests.dieselfs.cache.peers.plain_chunks import (
    CHUNK_BYTES,
    PlainChunks,
    chunk,
    content,
    large_block,
)
from tests.dieselfs.cache.peers.scripted_peer import LOOPBACK, SECRET, SOON_S, TASK

pytestmark = pytest.mark.usefixtures("patience")

RUNTIME = OperatingSystem()


def numbered(number: int) -> ChunkRef:
    return ChunkRef(ChunkId(number.to_bytes(16, "big")), 64, 1000)


def of_number(id: ChunkId) -> RequestTags:
    """Every chunk has a bucket of its own."""
    return RequestTags("job", 1, f"bucket {int.from_bytes(id.value, 'big')}")


def ranges(chunks: Sequence[ChunkRef]) -> ReadRanges:
    count = len(chunks)
    which = np.arange(count, dtype=np.uint16)
    return ReadRanges(
        tuple(chunks), which, np.zeros(count, np.uint32), np.ones(count, np.uint32), True
    )


def served(frames: Sequence[bytes], table: TagTable) -> Sequence[RequestTags]:
    """The tags of the request that a server finds in these frames."""
    *named, last = [decode_request(f[PREFIX_BYTES:], decode_prefix(f)[2])[1] for f in frames]
    for message in named:
        assert isinstance(message, NameTags)
        table.name(message)
    assert isinstance(last, ReadFile | ReadRanges | ReadChunk | ReadBlock)
    return table.of(last.tags, len(last.chunks) if isinstance(last, ReadRanges) else 1)


def test_tags_are_named_once() -> None:
    numbers, table = TagNumbers(of_number), TagTable(2)
    first = numbers.frames(1, ReadFile(numbered(5), 0, 9, True))
    again = numbers.frames(2, ReadChunk(numbered(5), True))
    assert (len(first), len(again)) == (2, 1)
    untagged = encode_request(2, ReadFile(numbered(5), 0, 9, True))
    assert len(numbers.frames(3, ReadFile(numbered(5), 0, 9, True))[0]) == len(untagged) + 3
    assert served(first, table) == served(again, table) == [RequestTags("job", 1, "bucket 5")]


def test_messages_that_read_nothing_carry_none() -> None:
    assert TagNumbers(of_number).frames(7, Ping()) == (encode_request(7, Ping()),)


def test_both_sides_agree_when_numbers_run_out() -> None:
    """The same as a dictionary from chunks to tags would say, with four times as many tags."""
    chance, numbers, table = random.Random(3), TagNumbers(of_number), TagTable(2)
    for step in range(3000):
        count = chance.choice((1, 1, 1, 7, MAX_RANGES)) if step % 50 == 0 else 1
        chunks = [numbered(chance.randrange(4 * MAX_TAGS)) for _ in range(count)]
        request: Request = ranges(chunks) if count > 1 else ReadFile(chunks[0], 0, 1, True)
        found = served(numbers.frames(step, request), table)
        assert list(found) == [of_number(one.id) for one in chunks]
    assert len(table._tags) <= MAX_TAGS


def test_a_full_list_is_kept_for_tags_that_are_on_it() -> None:
    numbers = TagNumbers(of_number)
    for number in range(MAX_TAGS):
        assert len(numbers.frames(1, ReadFile(numbered(number), 0, 1, True))) == 2
    for number in range(MAX_TAGS):
        assert len(numbers.frames(1, ReadFile(numbered(number), 0, 1, True))) == 1


def test_numbers_that_were_not_named_are_refused() -> None:
    table = TagTable(2)
    for bad in ((0,), (5, 0)):
        with pytest.raises(BadFrame):
            table.of(bad, len(bad))
    with pytest.raises(BadFrame):
        table.name(NameTags(1, NO_TAGS))
    for number in range(3):
        table.name(NameTags(number, RequestTags(str(number))))
    assert table.of((2, 0), 2) == [RequestTags("2"), RequestTags("0")]
    table.name(NameTags(1, RequestTags("new")))
    assert table.of((1,), 1) == [RequestTags("new")]
    with pytest.raises(BadFrame):
        table.of((2,), 1)


def test_version_1_has_no_tags() -> None:
    table = TagTable(1)
    assert table.of((), 2) == (NO_TAGS, NO_TAGS)
    with pytest.raises(BadFrame):
        table.name(NameTags(0, NO_TAGS))


class CountedChunks(PlainChunks):
    """Implements `CountsRequests`."""

    def __init__(self, *chunks: ChunkRef) -> None:
        super().__init__(chunks)
        self.seen: list[tuple[str, int, RequestTags]] = []

    def requested(self, block: CacheBlock, length: int, tags: RequestTags) -> None:
        self.seen.append((block.name, length, tags))


CACHED, OTHER = chunk(1), chunk(2)


@pytest.fixture
def counted() -> CountedChunks:
    return CountedChunks(CACHED, OTHER)


@pytest.fixture
def server(counted: CountedChunks) -> Iterator[PeerServer]:
    server = PeerServer(RUNTIME, SECRET, TASK, "peer", LOOPBACK, counted)
    yield server
    assert server.close(SOON_S)


Ask = Callable[[Request], object]


@pytest.fixture
def ask(server: PeerServer) -> Iterator[Ask]:
    client = PeerClient(
        RUNTIME, SECRET, TASK, "test", lambda id: RequestTags("job", 4, f"b{id.value[-1]}")
    )
    yield lambda request: client.ask(Member("peer", server.address, 1), request)
    client.close()


def test_each_chunk_of_a_request_is_reported_with_its_tags(
    ask: Ask, counted: CountedChunks
) -> None:
    block = large_block(9)
    counted.keep(block)
    for request in (
        ReadFile(CACHED, 0, 5, True),
        ReadChunk(OTHER, True),
        ranges([OTHER, CACHED]),
        ReadBlock(block, False),
    ):
        assert isinstance(ask(request), Data)
    assert isinstance(ask(Ping()), Pong)
    one, two = (RequestTags("job", 4, f"b{each.id.value[-1]}") for each in (CACHED, OTHER))
    names = str(CACHED.id), str(OTHER.id)
    large = RequestTags("job", 4, f"b{block.chunk.id.value[-1]}")
    assert counted.seen == [
        *((names[0], 5, one), (names[1], CHUNK_BYTES, two), (names[1], 1, two), (names[0], 1, one)),
        (block.name, 5000, large),
    ]


@pytest.mark.parametrize("old", [ClientHandshake, ServerHandshake])
def test_a_side_of_version_1_is_served_and_serves(
    monkeypatch: pytest.MonkeyPatch, old: type, ask: Ask, counted: CountedChunks
) -> None:
    monkeypatch.setattr(old, "newest", 1)
    answer = ask(ReadFile(CACHED, 3, 500, True))
    assert isinstance(answer, Data)
    assert answer.bulk == content(CACHED)[3:503]
    assert counted.seen == [(str(CACHED.id), 500, NO_TAGS)]


@pytest.mark.parametrize(
    "message", [ReadFile(CACHED, 0, 5, True, (0,)), NameTags(1, NO_TAGS)], ids=repr
)
def test_a_connection_with_wrong_tags_ends(server: PeerServer, message: ReadFile) -> None:
    stream = RUNTIME.connect(server.address, SOON_S)
    shake_hands(RUNTIME, stream, SECRET, TASK, "raw", Member("peer", server.address, 1))
    stream.send((encode_request(1, message),), SOON_S)
    assert stream.receive_into(memoryview(bytearray(100)), SOON_S) == 0
    stream.close()
