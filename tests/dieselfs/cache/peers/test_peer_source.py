"""What readers get, from which peer or from the store, whatever the peers do."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from chunkstore.chunk_format import BLOCK_BYTES
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES, ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Unavailable
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.cache.membership.breakers import Breakers
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.peers import peer_source
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.peers.recent_ranges import RecentRanges
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES
from dieselfs.cache.ports.runtime import Runtime
from dieselfs.cache.wire.messages import Answer, ReadBlock, ReadChunk, ReadFile, ReadRanges
from tests.chunkstore.packed import DATASET, CountingStore, Packed
from tests.dieselfs.cache.peers.scripted_peers import (
    FAULTS,
    Peer,
    ScriptedPeers,
    busy,
    fails,
    holds_nothing,
    no_bytes,
    other_bytes,
    refuses,
    silent,
    sound,
    too_short,
)

MIB = 1 << 20
LARGE = {b"medium": 700_000, b"big": 9 * MIB + 5, b"huge": MAX_WHOLE_BYTES + 70_000}


@dataclass(frozen=True)
class Content:
    packed: Packed
    files: dict[bytes, bytes]
    extents: dict[bytes, FileExtent]
    objects: dict[ChunkId, bytes]

    @classmethod
    def of(cls, files: dict[bytes, bytes], target_bytes: int) -> Content:
        packed = Packed(process=b"one")  # whose chunk is whose is the same in every run
        writer = packed.writer(target_bytes=target_bytes, open_chunks=1)
        for path, data in files.items():
            writer.add_file(path, data, 0o644, 0)
        writer.flush()
        objects = {one.ref.id: one.head + b"".join(one.payload) for one in packed.chunks}
        return cls(packed, files, packed.extents(), objects)


@pytest.fixture(scope="module")
def small() -> Content:
    draw = random.Random(1)
    sizes = [0, 1, 100, 4096, 5000]
    return Content.of({b"%d" % n: draw.randbytes(draw.choice(sizes)) for n in range(400)}, 32768)


@pytest.fixture(scope="module")
def large() -> Content:
    draw = random.Random(2)
    return Content.of({path: draw.randbytes(size) for path, size in LARGE.items()}, 4 * MIB)


class Node:
    """One node's source, its peers `a`, `b` and `c`, and its store."""

    def __init__(self, content: Content, folder: Path, my_weight: int = 100) -> None:
        self.content = content
        self.store = CountingStore(MemoryObjectStore())
        content.packed.store_in(self.store)
        self.store.calls.clear()
        self.task = TaskFolder.at("task", folder)
        self.source = PeerSource(ChunkReader(self.store, DATASET), self.task)
        self.peers = ScriptedPeers(
            {name: Peer(content.objects) for name in "abc"}, my_weight=my_weight
        )
        self.peers.see()
        self.breakers: Breakers = self.peers.attach_to(self.source)

    def chunks(self) -> list[ChunkRef]:
        return [chunk.ref for chunk in self.content.packed.chunks]

    def owned_by(self, name: str) -> list[ChunkRef]:
        return [chunk for chunk in self.chunks() if self.peers.ranked(chunk)[0] == name]

    def elsewhere(self) -> list[bytes]:
        """Paths of files that are another node's and not empty."""
        mine = {chunk.id for chunk in self.owned_by("me")}
        return [
            path
            for path, file in self.content.extents.items()
            if file.chunk.id not in mine and file.length
        ]

    def read(self, path: bytes) -> bytes:
        file = self.content.extents[path]
        return bytes(self.source.read(file, 0, file.length))

    def is_right(self, chunk: ChunkRef, found: tuple[memoryview, memoryview]) -> bool:
        return b"".join(found) == self.content.objects[chunk.id]

    def reasons(self) -> dict[str, int]:
        fallbacks = self.source.statistics().fallbacks
        return {reason: count for reason, count in fallbacks.items() if count}


@pytest.fixture
def node(small: Content, tmp_path: Path) -> Node:
    return Node(small, tmp_path)


@pytest.fixture
def reading(large: Content, tmp_path: Path) -> Node:
    """A node without a share: all it reads is another's."""
    return Node(large, tmp_path, my_weight=0)


def test_without_a_view_it_is_the_reader(small: Content, tmp_path: Path) -> None:
    node = Node(small, tmp_path)
    for source in (PeerSource(ChunkReader(node.store, DATASET), node.task), node.source):
        node.peers.view = None
        chunk, (path, file) = node.chunks()[0], next(iter(small.extents.items()))
        assert node.is_right(chunk, source.whole(chunk))
        assert node.is_right(chunk, source.whole_as_owner(chunk))
        assert source.read(file, 0, file.length) == small.files[path]
        assert source.read_many(list(small.extents.values())) == list(small.files.values())
        assert not source.owner_is_elsewhere(chunk.id)
    assert node.peers.begun == []


def test_whole_chunks_come_from_their_owners(node: Node) -> None:
    assert len(node.chunks()) > 20
    for chunk in node.chunks():
        owner = node.peers.ranked(chunk)[0]
        node.store.calls.clear()
        node.peers.begun.clear()
        assert node.is_right(chunk, node.source.whole(chunk))
        assert node.source.owner_is_elsewhere(chunk.id) == (owner != "me")
        if owner != "me":
            assert (node.peers.begun, node.store.calls) == ([owner], [])
            assert node.peers.peers[owner].asked[-1] == ReadChunk(chunk, True)
        else:
            second = node.peers.ranked(chunk)[1]
            assert (node.peers.begun, node.store.calls) == ([second], ["get"])
            assert node.peers.peers[second].asked[-1] == ReadChunk(chunk, False)
    for name, peer in node.peers.peers.items():
        assert set(peer.fetched) == {chunk.id for chunk in node.owned_by(name)}
    counted, mine = node.source.statistics(), node.owned_by("me")
    assert counted.chunks_from_peers == len(node.chunks()) - len(mine)
    assert (counted.chunks_from_store, counted.cached_requests) == (len(mine), len(mine))
    total = sum(map(len, node.content.objects.values()))
    assert counted.bytes_from_peers + counted.bytes_from_store == total


def test_an_owner_takes_over_from_who_holds_it_and_makes_nobody_fetch(node: Node) -> None:
    cached, missing = node.chunks()[:10], node.chunks()[10:20]
    for peer in node.peers.peers.values():
        peer.cached.update(chunk.id for chunk in cached)
    for chunk in [*cached, *missing]:  # whoever I think owns them
        assert node.is_right(chunk, node.source.whole_as_owner(chunk))
    assert len(node.store.calls) == len(missing)
    assert all(peer.fetched == [] for peer in node.peers.peers.values())
    counted = node.source.statistics()
    assert (counted.cached_requests, counted.second_hits) == (20, 10)


def test_files_come_from_their_owners(node: Node) -> None:
    for path in node.elsewhere():
        assert node.read(path) == node.content.files[path]
    assert node.store.calls == []
    for name, peer in node.peers.peers.items():
        owned = {chunk.id for chunk in node.owned_by(name)}
        assert all(isinstance(request, ReadFile) and request.may_fetch for request in peer.asked)
        assert {
            request.chunk.id for request in peer.asked if isinstance(request, ReadFile)
        } <= owned
    asked = sum(len(peer.asked) for peer in node.peers.peers.values())
    assert asked == len(node.elsewhere()) == node.source.statistics().files_from_peers
    assert node.reasons() == {}


def test_files_of_the_own_share_are_read_from_the_store_without_a_question(node: Node) -> None:
    mine = {chunk.id for chunk in node.owned_by("me")}
    paths = [path for path, file in node.content.extents.items() if file.chunk.id in mine]
    for path in paths:
        assert node.read(path) == node.content.files[path]
    assert node.peers.begun == []
    assert len(paths) > 10


class TakesOver:
    """Implements `OwnNode`."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self.taken: list[ChunkId] = []
        self.suspected: list[str] = []
        self.has_room = True

    def suspect(self, peer: str) -> None:
        self.suspected.append(peer)

    def take_over(self, chunk: ChunkRef) -> memoryview | None:
        self.taken.append(chunk.id)
        whole = memoryview(self._content.objects[chunk.id])
        return whole[chunk.head_bytes :] if self.has_room else None


@pytest.mark.parametrize("together", [False, True], ids=["each", "together"])
def test_what_becomes_this_nodes_when_its_owner_fails_is_taken_over(
    node: Node, together: bool
) -> None:
    own = TakesOver(node.content)
    node.source.serve(own)
    inherited = {chunk.id for chunk in node.chunks() if node.peers.ranked(chunk)[:2] == ["b", "me"]}
    paths = [path for path, file in node.content.extents.items() if file.chunk.id in inherited]
    files = [node.content.extents[path] for path in paths if node.content.files[path]]
    wanted = [node.content.files[path] for path in paths if node.content.files[path]]
    assert len(files) > 3
    node.breakers.failed("b")
    for own.has_room in (True, False):
        node.store.calls.clear()
        if together:
            assert node.source.read_many(files) == wanted
        else:
            assert [node.source.read(file, 0, file.length) for file in files] == wanted
        assert set(own.taken) == inherited
        assert bool(node.store.calls) != own.has_room
    assert node.peers.begun == []


def test_a_part_of_a_small_file_is_read_as_the_whole_once(node: Node) -> None:
    path = next(path for path in node.elsewhere() if len(node.content.files[path]) == 4096)
    file, data = node.content.extents[path], node.content.files[path]
    for start, length in ((1, 10), (4000, 96), (0, 4095), (7, 0)):
        assert node.source.read(file, start, length) == data[start : start + length]
    assert len(node.peers.begun) == 1
    assert node.store.calls == []


@pytest.mark.parametrize("path", [b"medium", b"big", b"huge"])
def test_parts_of_large_files(reading: Node, path: bytes) -> None:
    file, data = reading.content.extents[path], reading.content.files[path]
    for start in range(0, len(data), 128 << 10):
        length = min(128 << 10, len(data) - start)
        assert reading.source.read(file, start, length) == data[start : start + length]
    blocks = -(-len(data) // CACHE_BLOCK_BYTES)
    assert len(reading.peers.begun) == blocks
    assert reading.store.calls == ["get_range"] * (path != b"medium"), "the head, for block hashes"
    assert reading.source.statistics().bytes_from_peers == len(data)
    for start, length in ((0, 1), (len(data) - 1, 1), (BLOCK_BYTES - 1, 2), (0, len(data))):
        assert reading.source.read(file, start, length) == data[start : start + length]
    if path == b"big":
        assert (
            reading.source.read(file, CACHE_BLOCK_BYTES - 5, 10)
            == data[CACHE_BLOCK_BYTES - 5 :][:10]
        )


def test_pieces_of_a_chunk_above_16_mib(reading: Node) -> None:
    file, data = reading.content.extents[b"huge"], reading.content.files[b"huge"]
    for read in (reading.source.read, reading.source.read_as_owner):
        for start in range(0, len(data), CACHE_BLOCK_BYTES):
            length = min(CACHE_BLOCK_BYTES, len(data) - start)
            assert read(file, start, length) == data[start : start + length]
    asked = [request for peer in reading.peers.peers.values() for request in peer.asked]
    assert {type(request) for request in asked} == {ReadBlock}
    blocks = -(-len(data) // CACHE_BLOCK_BYTES)
    assert sum(request.may_fetch for request in asked if isinstance(request, ReadBlock)) == blocks
    assert len(asked) == 2 * blocks
    assert reading.source.statistics().cached_requests == blocks


def test_readers_of_parts_at_one_time_fetch_once(reading: Node) -> None:
    file, data = reading.content.extents[b"medium"], reading.content.files[b"medium"]
    [owner] = {reading.peers.ranked(file.chunk)[0]}
    entered, go = threading.Event(), threading.Event()

    def slow(answer: Answer) -> Answer:
        entered.set()
        assert go.wait(60)
        return answer

    reading.peers.peers[owner].fault = slow
    found: list[bytes] = []
    starts = range(0, 600_000, 100_000)
    threads = [
        threading.Thread(target=lambda at=at: found.append(bytes(reading.source.read(file, at, 9))))
        for at in starts
    ]
    for thread in threads:
        thread.start()
    assert entered.wait(60)
    go.set()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == sorted(data[at : at + 9] for at in starts)
    assert reading.peers.begun == [owner]


def test_the_first_two_readers_of_parts_fetch_once(
    reading: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = reading.content.extents[b"medium"]
    together = threading.Barrier(2)

    def slowly(runtime: Runtime) -> RecentRanges:
        with suppress(threading.BrokenBarrierError):
            together.wait(0.2)
        return RecentRanges(runtime)

    monkeypatch.setattr(peer_source, "RecentRanges", slowly)
    with ThreadPoolExecutor(2) as readers:
        list(readers.map(lambda start: reading.source.read(file, start, 9), (0, 100_000)))
    assert len(reading.peers.begun) == 1


@pytest.mark.parametrize("fault", [*FAULTS, too_short])
@pytest.mark.parametrize("everybody", [False, True])
def test_no_fault_of_a_peer_is_seen(
    node: Node, fault: Callable[[Answer], Answer], everybody: bool
) -> None:
    for peer in node.peers.peers.values() if everybody else [node.peers.peers["a"]]:
        peer.fault = fault
    files = node.content.files
    for _ in range(2):
        for chunk in node.chunks()[::5]:
            assert node.is_right(chunk, node.source.whole(chunk))
            assert node.is_right(chunk, node.source.whole_as_owner(chunk))
        for path in list(files)[::7]:
            assert node.read(path) == files[path]
        found = node.source.read_many(list(node.content.extents.values()))
        assert found == list(files.values())
        node.peers.now += 3
        node.peers.see()
    assert node.reasons(), "they were noticed"
    if fault not in (busy, fails, holds_nothing):
        assert set(node.source.statistics().breakers) == (set("abc") if everybody else {"a"})
    else:
        assert node.source.statistics().breakers == {}


@pytest.mark.parametrize("fault", [*FAULTS, too_short])
def test_no_fault_of_a_peer_is_seen_in_large_files(
    reading: Node, fault: Callable[[Answer], Answer]
) -> None:
    for peer in reading.peers.peers.values():
        peer.fault = fault
    for path, data in reading.content.files.items():
        file = reading.content.extents[path]
        for start in range(0, len(data), CACHE_BLOCK_BYTES):
            length = min(CACHE_BLOCK_BYTES, len(data) - start)
            for read in (reading.source.read, reading.source.read_as_owner):
                if read == reading.source.read or len(data) > MAX_WHOLE_BYTES:
                    assert read(file, start, length) == data[start : start + length]
        assert reading.source.read(file, 300_000, 70_000) == data[300_000:370_000]
    contents = reading.source.read_many([reading.content.extents[path] for path in LARGE])
    assert all(
        content == reading.content.files[path]
        for path, content in zip(LARGE, contents, strict=True)
    )


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(silent, "silent"), (refuses, "refused"), (other_bytes, "corrupt"), (no_bytes, "corrupt")],
)
def test_who_fails_is_not_asked_until_a_ping_was_answered_and_the_next_owner_is(
    node: Node, fault: Callable[[Answer], Answer], reason: str
) -> None:
    chunks = [chunk for chunk in node.owned_by("a") if node.peers.ranked(chunk)[1] != "me"]
    node.peers.peers["a"].fault = fault
    for chunk in chunks:
        assert node.is_right(chunk, node.source.whole(chunk))
        second = node.peers.peers[node.peers.ranked(chunk)[1]]
        assert second.asked[-1] == ReadChunk(chunk, True)
    assert len(chunks) > 2
    assert len(node.peers.peers["a"].asked) == 1
    assert node.store.calls == []
    assert node.reasons() == {reason: 1}
    assert node.source.statistics().breakers["a"].is_open
    node.peers.peers["a"].fault = sound
    node.peers.now += 1.5
    node.peers.see(pinged=node.peers.now - 1)  # the ping began within the hold
    node.source.whole(chunks[0])
    assert len(node.peers.peers["a"].asked) == 1
    node.peers.see()
    node.source.whole(chunks[0])
    assert len(node.peers.peers["a"].asked) == 2


def test_two_owners_are_asked_at_most(node: Node) -> None:
    [chunk, *_] = [c for c in node.chunks() if node.peers.ranked(c).index("me") == 3]
    for peer in node.peers.peers.values():
        peer.fault = silent
    assert node.is_right(chunk, node.source.whole(chunk))
    assert node.peers.begun == node.peers.ranked(chunk)[:2]
    assert node.store.calls == ["get"]


def test_nobody_else_is_asked_if_i_am_next(node: Node) -> None:
    [chunk, *_] = [c for c in node.chunks() if node.peers.ranked(c).index("me") == 1]
    node.peers.peers[node.peers.ranked(chunk)[0]].fault = silent
    assert node.is_right(chunk, node.source.whole(chunk))
    assert len(node.peers.begun) == 1
    assert node.store.calls == ["get"]


def test_a_silent_member_is_out_of_the_view(node: Node) -> None:
    chunk = node.owned_by("b")[0]
    second = node.peers.ranked(chunk)[1]
    node.peers.see(silent=["b"])
    node.source.whole(chunk)
    assert node.peers.begun == ([second] if second != "me" else node.peers.ranked(chunk)[1:2])


@pytest.mark.parametrize("fault", [fails, holds_nothing])
def test_ranges_that_an_owner_can_not_keep_are_read_from_the_store_for_a_second(
    node: Node, fault: Callable[[Answer], Answer]
) -> None:
    chunk = node.owned_by("a")[0]
    paths = [path for path in node.elsewhere() if node.content.extents[path].chunk == chunk]
    node.peers.peers["a"].fault = fault
    for path in paths:
        assert node.read(path) == node.content.files[path]
    assert node.peers.begun == ["a"]
    assert node.source.read_many([node.content.extents[path] for path in paths])
    assert node.peers.begun == ["a"]
    node.source.whole(chunk)
    assert node.peers.begun == ["a", "a"], "whole chunks are always asked for"
    node.peers.now += 1
    node.read(paths[0])
    assert node.peers.begun == ["a"] * 3


def test_many_files_are_one_message_a_peer(node: Node) -> None:
    files = {path: data for path, data in node.content.files.items() if data}
    extents = node.content.extents
    paths = random.Random(3).choices(list(files), k=300)
    assert node.source.read_many([extents[path] for path in paths]) == [files[p] for p in paths]
    assert sorted(node.peers.begun) == ["a", "b", "c"]
    mine = {chunk.id for chunk in node.owned_by("me")}
    counted = node.source.statistics()
    own = [path for path in paths if extents[path].chunk.id in mine]
    assert counted.files_from_store == len(own)
    assert counted.files_from_peers == len(paths) - len(own)
    assert counted.bytes_from_peers == sum(len(files[p]) for p in paths) - sum(
        len(files[p]) for p in own
    )
    assert node.source.read_many([]) == []


def test_large_batches_are_several_messages(large: Content, small: Content, tmp_path: Path) -> None:
    node = Node(small, tmp_path, my_weight=0)
    paths = list(small.files) * 8
    contents = node.source.read_many([small.extents[path] for path in paths])
    assert contents == [small.files[path] for path in paths]
    requests = [request for peer in node.peers.peers.values() for request in peer.asked]
    assert len(requests) > 3
    assert all(isinstance(one, ReadRanges) and len(one.which) <= 512 for one in requests)
    node = Node(large, tmp_path, my_weight=0)
    extents = [large.extents[path] for path in (b"big", b"medium", b"big", b"medium")]
    contents = node.source.read_many(extents)
    assert [len(content) for content in contents] == [file.length for file in extents]
    assert contents[0] == large.files[b"big"]
    for peer in node.peers.peers.values():
        for request in peer.asked:
            assert isinstance(request, ReadRanges)
            assert len(request.which) == 1 or int(request.length.sum()) <= 8 * MIB


def test_a_batch_with_a_chunk_that_is_not_held_costs_the_others_nothing(node: Node) -> None:
    """A message is answered whole or not at all; the files of the other chunks still come from the
    peer."""
    chunks = node.owned_by("a")
    assert len(chunks) > 3
    peer = node.peers.peers["a"]
    peer.fetches = False
    peer.cached.update(chunk.id for chunk in chunks[1:])
    ids = {chunk.id for chunk in chunks}
    paths = [path for path in node.elsewhere() if node.content.extents[path].chunk.id in ids]
    missing = [path for path in paths if node.content.extents[path].chunk.id == chunks[0].id]
    wanted = [node.content.files[path] for path in paths]
    assert node.source.read_many([node.content.extents[path] for path in paths]) == wanted
    assert node.source.statistics().files_from_store == len(missing) > 0
    assert len(peer.asked) == 1 + len(chunks)
    assert node.source.read_many([node.content.extents[path] for path in paths]) == wanted
    assert len(peer.asked) == 2 + len(chunks), "what it does not hold is known for a moment"


def test_a_peer_that_fails_in_a_batch_counts_once_and_the_next_ones_are_asked(node: Node) -> None:
    node.peers.peers["a"].fault = silent
    extents = node.content.extents
    found = node.source.read_many([extents[path] for path in node.elsewhere()])
    assert found == [node.content.files[path] for path in node.elsewhere()]
    assert node.reasons() == {"silent": 1}
    assert node.breakers.states()["a"].failures == 1
    own = {c.id for c in node.owned_by("a") if node.peers.ranked(c)[1] == "me"}
    past = [path for path in node.elsewhere() if extents[path].chunk.id in own]
    assert node.source.statistics().files_from_store == len(past)


def test_one_wrong_file_in_a_batch_is_read_elsewhere(node: Node) -> None:
    node.peers.peers["b"].fault = other_bytes
    extents = node.content.extents
    paths = node.elsewhere()
    assert node.source.read_many([extents[p] for p in paths]) == [
        node.content.files[p] for p in paths
    ]
    assert node.reasons() == {"corrupt": 1}
    again = sum(
        len(request.which)
        for peer in node.peers.peers.values()
        for request in peer.asked
        if isinstance(request, ReadRanges)
    )
    assert again <= len(paths) + 1, "only the one that was wrong"


def test_a_peer_that_works_for_too_long_is_not_blamed(node: Node) -> None:
    """Its store is slow: another would fetch the same from it again."""
    node.peers.peers["a"].fault = busy
    first, other = node.owned_by("a")[:2]
    assert node.is_right(first, node.source.whole(first))
    assert node.peers.begun == ["a"]
    assert node.source.statistics().breakers == {}
    extents = node.content.extents
    paths = [path for path in node.elsewhere() if extents[path].chunk in (first, other)]
    wanted = [node.content.files[path] for path in paths]
    for _ in range(2):
        assert node.source.read_many([extents[path] for path in paths]) == wanted
    assert node.peers.begun == ["a", "a"], "nor is it asked for the same in a moment"
    assert node.reasons() == {"failed": 2}


def test_who_refuses_is_named_once_with_what_to_do(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.peers.peers["a"].fault = refuses
    for _ in range(3):
        for chunk in node.owned_by("a")[:2]:
            node.source.whole(chunk)
        node.peers.now += 100
        node.peers.see()
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "peer a at a:1" in told[0].getMessage()
    assert "secret" in told[0].getMessage()
    assert node.reasons() == {"refused": 3}


def test_who_sends_wrong_bytes_is_named(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.peers.peers["c"].fault = no_bytes
    node.source.whole(node.owned_by("c")[0])
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "peer c at c:1" in caplog.text


def test_a_chunk_of_another_dataset_state_is_refused(node: Node) -> None:
    """A peer that holds a sound chunk, but not the one that was asked for."""
    first, other = node.owned_by("a")[:2]
    objects = {**node.content.objects, first.id: node.content.objects[other.id]}
    node.peers.peers["a"].objects = objects
    assert node.is_right(first, node.source.whole(first))
    assert node.reasons() == {"corrupt": 1}


def test_a_store_that_does_not_answer_is_not_a_peers_fault(
    reading: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(key: str, offset: int, length: int) -> bytes:
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(reading.store, "get_range", down)
    file = reading.content.extents[b"huge"]
    with pytest.raises(Unavailable):  # the block hashes are in its head
        reading.source.read(file, 0, CACHE_BLOCK_BYTES)
    assert reading.reasons() == {}
    medium = reading.content.extents[b"medium"]
    assert reading.source.read(medium, 5, 9) == reading.content.files[b"medium"][5:14]


def test_whether_it_waits_for_a_peer(node: Node) -> None:
    """A fetch that waits for a peer must not be waited for, one that reads the store may."""
    elsewhere, mine = node.owned_by("a")[0], node.owned_by("me")[0]
    seen: list[tuple[str, bool]] = []

    def look(answer: Answer) -> Answer:
        seen.append(("peer", node.source.is_reading_store(elsewhere.id)))
        seen.append(("as owner", node.source.is_reading_store(mine.id)))
        return holds_nothing(answer)

    for peer in node.peers.peers.values():
        peer.fault = look
    node.source.whole(elsewhere)
    assert seen == [("peer", False), ("as owner", False)]
    seen.clear()
    node.source.whole(mine)
    assert seen == [("peer", False), ("as owner", False)]
    asked_store: list[bool] = []
    get = node.store.get

    def looking(key: str) -> bytes:
        asked_store.append(node.source.is_reading_store(elsewhere.id))
        return get(key)

    node.store.get = looking  # type: ignore[method-assign]
    node.source.whole(elsewhere)
    assert asked_store == [True]
    assert not node.source.is_reading_store(elsewhere.id)


def test_it_pickles_to_reader_and_folder(node: Node, tmp_path: Path) -> None:
    source = pickle.loads(
        pickle.dumps(PeerSource(ChunkReader(LocalDirectory(tmp_path), DATASET), node.task))
    )
    assert isinstance(source, PeerSource)
    assert source.statistics().files_from_peers == 0
