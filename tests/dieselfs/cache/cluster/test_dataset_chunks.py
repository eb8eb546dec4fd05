"""What a cache node makes of requests: memory, SSD, store, each as seldom as can be; and an SSD
that is not there."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt
from chunkstore.object_keys import chunk_key
from chunkstore.ssd.admission import AdmitAll, RejectFirst
from chunkstore.ssd.policies.baselines import AdmitEverything
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_choice import PolicyChoice
from chunkstore.ssd.policy_counts import total_of
from chunkstore.ssd.policy_runner import PolicyRunner
from chunkstore.ssd.range_allowance import RangeAllowance
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.ssd.tier import SsdTier
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.cache.cluster.chunk_memory import ChunkMemory
from dieselfs.cache.cluster.dataset_chunks import DatasetChunks, NodeParts
from dieselfs.cache.cluster.store_reads import StoreReads
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import CachedRanges, NodeStatus
from dieselfs.cache.ports.request_tags import NO_TAGS, RequestTags
from dieselfs.cache.wire.cached_ranges import cached_ranges, missing_blocks
from dieselfs.cache.wire.messages import Answer, ReadChunk, ReadFile, ReadRanges, Request
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.slow_answers import SlowAnswers
from dieselfs.errors import CacheFull
from tests.chunkstore.packed import DATASET, Packed
from tests.eventually import eventually

BUDGET = 128 << 20


class CountedStore(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__()
        self.gets: list[str] = []
        self.hold = threading.Event()
        """Cleared: reads of the store hang."""
        self.hold.set()

    def get(self, key: str) -> bytes:
        self.gets.append(key)
        self.hold.wait(60)
        return super().get(key)


class Node:
    def __init__(
        self, tier: SsdTier, memory_bytes: int = 64 << 20, allowed_bytes: int = BUDGET
    ) -> None:
        packed = Packed()
        writer = packed.writer(target_bytes=1 << 20)
        for number in range(40):
            writer.add_file(b"%d" % number, random.Random(number).randbytes(100_000), 0o644, 0)
        writer.flush()
        self.store = CountedStore()
        packed.store_in(self.store)
        self.refs = [chunk.ref for chunk in packed.chunks]
        self.tier = tier
        self.memory = ChunkMemory(memory_bytes)
        self.reads = StoreReads(self.store, tier.store_took)
        self.sent_bytes = 0
        self.parts = NodeParts(
            *(self.reads, tier, self.memory),
            RangeAllowance(allowed_bytes, lambda: self.reads.bytes - self.sent_bytes),
            NodeStatus,
        )
        self.chunks = DatasetChunks(DATASET, self.parts)

    def object(self, ref: ChunkRef) -> bytes:
        return MemoryObjectStore.get(self.store, chunk_key(DATASET.name, ref.id))

    def payload(self, ref: ChunkRef) -> bytes:
        return self.object(ref)[ref.head_bytes :]

    def load_range(self, ref: ChunkRef) -> None:
        """A little of it."""
        self.chunks.load(CacheBlock(ref, FileExtent(ref, 0, 1000, 0)))

    def on_the_ssd(self, ref: ChunkRef) -> None:
        """And nowhere else."""
        self.chunks.load(CacheBlock(ref))
        assert self.tier.wait_until_written(30)
        self.memory.__init__(64 << 20)  # type: ignore[misc]
        self.store.gets.clear()


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[SsdTier]:
    made = SsdTier(
        lambda: SegmentStore(tmp_path / "ssd", tmp_path / "index", BUDGET), tmp_path / "ssd"
    )
    assert made.wait_until_open(30)
    yield made
    made.close()


@pytest.fixture
def no_tier(tmp_path: Path) -> Iterator[SsdTier]:
    def fails() -> SegmentStore:
        raise OSError("no SSD here")

    made = SsdTier(fails, tmp_path / "none")
    made.start()
    yield made
    made.close()


def test_a_chunk_comes_from_the_store_once_and_then_from_the_ssd(tier: SsdTier) -> None:
    node = Node(tier)
    ref = node.refs[0]
    node.chunks.load(CacheBlock(ref))
    node.chunks.load(CacheBlock(ref))
    assert len(node.store.gets) == 1
    parts = cached_ranges(node.chunks, ReadChunk(ref, True))
    assert parts is not None
    assert b"".join(parts) == node.object(ref)
    node.on_the_ssd(ref)
    node.chunks.load(CacheBlock(ref))
    assert node.store.gets == []
    assert node.chunks.payload(ref.id) == node.payload(ref)
    assert node.parts.from_ssd_bytes == len(node.object(ref))


def test_many_who_want_a_chunk_read_it_once(tier: SsdTier) -> None:
    node = Node(tier)
    ref = node.refs[0]
    node.store.hold.clear()
    with ThreadPoolExecutor(8) as threads:
        wanted = [threads.submit(node.chunks.load, CacheBlock(ref)) for _ in range(4)]
        eventually(lambda: node.store.gets and node.chunks.is_loading(CacheBlock(ref)), "it comes")
        blocks = missing_blocks(node.chunks, ReadFile(ref, 5, 10, True))
        assert blocks == [CacheBlock(ref)], "who wants a part waits for what is coming"
        wanted += [threads.submit(node.chunks.load, blocks[0])]
        node.store.hold.set()
        for one in wanted:
            one.result(30)
    assert len(node.store.gets) == 1


def test_a_part_costs_a_part_of_the_ssd_and_several_cost_the_chunk(
    tier: SsdTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cache.cluster.dataset_chunks.BURST_S", 60.0)
    node = Node(tier)
    ref = node.refs[0]
    node.on_the_ssd(ref)
    assert isinstance(node.chunks, CachedRanges)

    def read(start: int, length: int) -> bytes:
        request = ReadFile(ref, start, length, True)
        for block in missing_blocks(node.chunks, request):
            node.chunks.load(block)
        parts = cached_ranges(node.chunks, request)
        assert parts is not None
        return b"".join(parts)

    assert read(1000, 100_000) == node.payload(ref)[1000:101_000]
    assert node.parts.from_ssd_bytes == 100_000
    for number in range(8):
        start = 1000 + number * 100_000
        assert read(start, 100_000) == node.payload(ref)[start : start + 100_000]
    assert node.chunks.payload(ref.id) is not None, "a burst brings the chunk"
    assert node.parts.from_ssd_bytes < 3 * ref.payload_bytes
    assert node.store.gets == []


def test_ranges_of_many_chunks_some_of_them_in_memory(tier: SsdTier) -> None:
    node = Node(tier)
    for ref in node.refs[:3]:
        node.on_the_ssd(ref)
    node.chunks.load(CacheBlock(node.refs[0]))
    request = ReadRanges(
        tuple(node.refs[:4]),
        np.array([0, 1, 2, 3, 1], np.uint16),
        np.array([0, 10, 20, 30, 500], np.uint32),
        np.array([100, 200, 300, 400, 7], np.uint32),
        True,
    )
    assert cached_ranges(node.chunks, request) is None
    for block in missing_blocks(node.chunks, request):
        node.chunks.load(block)
    parts = cached_ranges(node.chunks, request)
    assert parts is not None
    which, start, length = request.which.tolist(), request.start.tolist(), request.length.tolist()
    for part, w, s, n in zip(parts, which, start, length, strict=True):
        assert part == node.payload(node.refs[w])[s : s + n]


def test_without_its_ssd_a_node_passes_chunks_on_and_leaves_parts_to_the_store(
    no_tier: SsdTier,
) -> None:
    node = Node(no_tier)
    ref = node.refs[0]
    [part] = missing_blocks(node.chunks, ReadFile(ref, 0, 1000, True))
    with pytest.raises(CacheFull):
        node.chunks.load(part)
    assert node.store.gets == []
    node.chunks.load(CacheBlock(ref))
    assert node.chunks.payload(ref.id) == node.payload(ref)


def test_an_ssd_that_writes_slowly_holds_up_nobody_and_who_asks_for_parts_hears_of_it(
    tier: SsdTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that was handed out says that its chunk is on the SSD, or on its way."""
    node, lets = Node(tier), threading.Semaphore(0)
    first, second, third, fourth = refs = node.refs[:4]
    monkeypatch.setattr("chunkstore.ssd.insert_queue.QUEUE_BYTES", 11 << 19)
    append = SegmentStore.append

    def writes_when_let(store: SegmentStore, *insert: Any) -> bool:
        assert lets.acquire(timeout=60)  # three refusals of 2 s, and what a machine stalls
        return append(store, *insert)

    monkeypatch.setattr(SegmentStore, "append", writes_when_let)
    for ref in (first, second):  # for these there is room
        node.load_range(ref)
    for _ in range(3):
        with pytest.raises(CacheFull):
            node.load_range(third)
    assert len(node.store.gets) == 2
    node.chunks.load(CacheBlock(fourth))
    assert node.chunks.payload(fourth.id) == node.payload(fourth), "it is passed on"
    lets.release(2)
    assert tier.wait_until_written(30)
    lets.release()
    node.load_range(third)
    assert tier.wait_until_written(30)
    assert tier.segments is not None
    assert tier.segments.cached(DATASET.id).keys() == {ref.id.value for ref in refs[:3]}


def test_a_part_of_what_is_not_admitted_is_left_to_the_store(tier: SsdTier) -> None:
    tier.policies.admission = RejectFirst()
    node = Node(tier)
    ref = node.refs[0]
    request = ReadFile(ref, 1000, 500, True)
    [part] = missing_blocks(node.chunks, request)
    with pytest.raises(CacheFull):
        node.chunks.load(part)
    assert node.store.gets == []
    node.chunks.load(part)
    assert tier.wait_until_written(30)
    node.memory.__init__(64 << 20)  # type: ignore[misc]
    node.chunks.load(part)
    assert len(node.store.gets) == 1, "the second miss brings it onto the SSD"
    found = cached_ranges(node.chunks, request)
    assert found is not None
    assert b"".join(found) == node.payload(ref)[1000:1500]


def test_no_more_is_read_in_vain_than_may_be(tier: SsdTier) -> None:
    first = Node(tier).refs[0]
    node = Node(tier, allowed_bytes=first.head_bytes + first.payload_bytes)
    [part], [other] = (
        missing_blocks(node.chunks, ReadFile(ref, 0, 500, True)) for ref in node.refs[:2]
    )
    node.chunks.load(part)
    with pytest.raises(CacheFull):
        node.chunks.load(other)
    node.sent_bytes = first.payload_bytes
    node.chunks.load(other)
    assert len(node.store.gets) == 2


def large_file(node: Node, content: bytes) -> FileExtent:
    packed = Packed()
    writer = packed.writer(target_bytes=1 << 20)
    writer.add_file(b"large", content, 0o644, 0)
    writer.flush()
    packed.store_in(node.store)
    [file] = packed.extents().values()
    return file


def test_a_piece_of_a_large_file_that_came_damaged_from_the_store_is_asked_for_again(
    tier: SsdTier,
) -> None:
    node, content = Node(tier), random.Random(5).randbytes(20 << 20)
    file = large_file(node, content)
    key = chunk_key(DATASET.name, file.chunk.id)
    sound = MemoryObjectStore.get(node.store, key)
    wrong = bytearray(sound)
    wrong[file.chunk.head_bytes + (9 << 20)] ^= 1
    node.store.delete(key)
    node.store.create(key, [wrong])
    blocks = [CacheBlock(file.chunk, file, number) for number in range(3)]
    for block in blocks[:2]:
        node.chunks.load(block)
    with pytest.raises(Corrupt):
        node.chunks.load(blocks[2])
    node.store.delete(key)
    node.store.create(key, [sound])
    node.chunks.load(blocks[2])
    assert node.chunks.block(blocks[2]) == content[8 << 20 : 12 << 20]


def test_what_is_damaged_in_the_store_is_not_kept(tier: SsdTier) -> None:
    node = Node(tier)
    ref, key = node.refs[0], chunk_key(DATASET.name, node.refs[0].id)
    sound = node.object(ref)
    node.store.delete(key)
    node.store.create(key, [sound[:-10], bytes(10)])
    with pytest.raises(Corrupt):
        node.chunks.load(CacheBlock(ref))
    assert node.chunks.payload(ref.id) is None
    node.store.delete(key)
    node.store.create(key, [sound])
    node.chunks.load(CacheBlock(ref))
    assert node.chunks.payload(ref.id) == node.payload(ref)


def test_a_chunk_of_other_lengths_than_the_request_says_is_none(tier: SsdTier) -> None:
    node = Node(tier)
    ref = node.refs[0]
    node.on_the_ssd(ref)
    with pytest.raises(Corrupt):
        node.chunks.load(CacheBlock(ChunkRef(ref.id, ref.head_bytes + 1, ref.payload_bytes - 1)))


def test_memory_keeps_its_budget_and_what_came_last() -> None:
    memory = ChunkMemory(100)
    for number in range(5):
        memory.put_part((b"c", number, 30), memoryview(bytes(30)))
        assert memory.part((b"c", 0, 30)) is not None, "what is used stays"
    assert memory.cached == (3, 90)
    assert memory.part((b"c", 1, 30)) is None
    memory.put_part((b"d", 0, 200), memoryview(bytes(200)))
    assert memory.cached == (1, 200)
    memory.put_part((b"d", 0, 200), memoryview(bytes(20)))
    assert memory.cached == (1, 20)
    memory.forget_part((b"d", 0, 200))
    assert memory.cached == (0, 0)
    assert memory.part((b"d", 0, 200)) is None


def test_what_has_left_memory_is_found_while_it_is_on_its_way() -> None:
    """To the SSD, or to who has asked for it."""
    node = Node(SsdTier(lambda: pytest.fail("not opened"), Path("none")), memory_bytes=1)
    first, second = node.refs[:2]
    loaded = node.chunks.load(CacheBlock(first))
    node.chunks.load(CacheBlock(second))
    assert node.memory.cached[0] == 1
    assert node.chunks.payload(first.id) == node.payload(first)
    node.chunks.load(CacheBlock(second))
    del loaded
    assert node.chunks.payload(first.id) is None


def test_who_has_waited_for_a_chunk_is_answered_though_memory_has_no_room(tier: SsdTier) -> None:
    node, answers = Node(tier, memory_bytes=1), []

    class Asker:
        cached = node.chunks

        def finish(
            self, number: int, request: Request, failure: Answer | None, fetched_bytes: int
        ) -> None:
            node.chunks.load(CacheBlock(node.refs[1 + number]))  # somebody else's
            assert isinstance(request, ReadChunk)
            answers.append((failure, cached_ranges(node.chunks, request) is not None))

        def report_working(self, number: int) -> None: ...

    slow = SlowAnswers(OperatingSystem(), 1, 10)
    for number in range(2):
        request = ReadChunk(node.refs[0], True)
        assert slow.begin(
            Asker(),
            number,
            request,
            missing_blocks(node.chunks, request) or [CacheBlock(node.refs[0])],
        )
    eventually(lambda: len(answers) == 2, "both are answered")
    assert answers == [(None, True)] * 2
    for thread in slow.close():
        assert thread.join(60)


class ToldPolicy(AdmitEverything):
    """It notes what it is told, and admits one bucket."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int]] = []

    def requested(self, job: str, bucket: Bucket, key: int, length: int) -> None:
        self.told.append((job, bucket, length))

    def admits(self, bucket: Bucket, key: int, length: int, evicts_at: float | None = None) -> bool:
        return bucket == "good"


class TestPolicy:
    """Requests with tags, and a tier with a cache policy."""

    @pytest.fixture
    def policy(self, tier: SsdTier) -> ToldPolicy:
        policy = ToldPolicy()
        tier.policies.runner = PolicyRunner(
            PolicyChoice("historic"),
            AdmitAll(),
            now=lambda: 0.0,
            policies=lambda settings, history=None: policy,
        )
        return policy

    def ask(self, node: Node, tags: RequestTags, length: int = 1000) -> None:
        """One range of a chunk, as a connection asks for it."""
        ref = node.refs[0]
        block = CacheBlock(ref, FileExtent(ref, 0, length, 0))
        node.chunks.requested(CacheBlock(ref), length, tags)
        if node.chunks.payload(ref.id) is None and node.chunks.block(block) is None:
            node.chunks.load(block)

    def test_all_requests_are_told_and_the_ssd_counts_its_own(
        self, tier: SsdTier, policy: ToldPolicy
    ) -> None:
        node, size = Node(tier), 0
        ref = node.refs[0]
        size = ref.head_bytes + ref.payload_bytes
        for job in ("a", "b"):
            self.ask(node, RequestTags(job, 1, "good"))
        self.ask(node, NO_TAGS, ref.payload_bytes)
        assert policy.told == [("a", "good", size), ("b", "good", size), ("", DATASET.name, size)]
        assert tier.runner is not None
        assert tier.wait_until_written(30)
        all_rows = tier.runner.counts.all()
        # What is written belongs to no job.
        rows = {row: counts for row, counts in all_rows.items() if not counts.written_bytes}
        assert {row.job for row in rows} == {"a"}, "memory has answered the others"
        [counts] = rows.values()
        assert counts.admitted_bytes == size
        assert counts.filled_bytes == size - 1000
        assert (counts.hit_bytes, counts.miss_bytes) == (0, 1000)
        assert (node.parts.missed_bytes, tier.statistics().misses) == (1000, 1)

    def test_a_missed_block_of_a_large_file_counts_once(
        self, tier: SsdTier, policy: ToldPolicy
    ) -> None:
        node = Node(tier)
        file = large_file(node, bytes(20 << 20))
        for number in range(2):
            block = CacheBlock(file.chunk, file, number)
            node.chunks.requested(block, block.length, RequestTags("a", 1, "good"))
            node.chunks.load(block)
        assert tier.runner is not None
        counts = total_of(tier.runner.counts.all())
        assert (counts.miss_bytes, tier.statistics().misses) == (8 << 20, 2)
        assert node.parts.missed_bytes == 8 << 20

    def test_the_bucket_of_the_request_decides_before_the_store_is_read(
        self, tier: SsdTier, policy: ToldPolicy
    ) -> None:
        node = Node(tier)
        for tags in (RequestTags("a", 1, "bad"), NO_TAGS):
            with pytest.raises(CacheFull):
                self.ask(node, tags)
        assert node.store.gets == []
        self.ask(node, RequestTags("b", 1, "good"))
        assert len(node.store.gets) == 1
        assert tier.wait_until_written(30)
        assert tier.statistics().written_bytes > 0

    def test_what_its_client_calls_not_worth_caching_is_not_kept(
        self, tier: SsdTier, policy: ToldPolicy
    ) -> None:
        node = Node(tier)
        ref = node.refs[0]
        unwanted = RequestTags("a", 1, "good", may_keep=False)
        loads_ahead: list[bytes] = []
        node.parts.missed = lambda chunks, chunk: loads_ahead.append(chunk)
        with pytest.raises(CacheFull):
            self.ask(node, unwanted)
        node.chunks.load(CacheBlock(ref))  # a whole chunk passes through, for all who ask now
        assert tier.wait_until_written(30)
        assert (tier.statistics().written_bytes, policy.told) == (0, [])
        assert loads_ahead == [], "a node that warms up by itself does not begin with it"
        node.memory.__init__(64 << 20)  # type: ignore[misc]
        self.ask(node, unwanted._replace(may_keep=True))
        assert tier.wait_until_written(30)
        assert tier.statistics().written_bytes > 0

    def test_also_without_a_policy(self, tier: SsdTier) -> None:
        node = Node(tier)
        with pytest.raises(CacheFull):
            self.ask(node, RequestTags(may_keep=False))
        self.ask(node, NO_TAGS)
        assert len(node.store.gets) == 1

    def test_a_policy_that_fails_costs_nobody_a_read(
        self, tier: SsdTier, policy: ToldPolicy, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fails(*_: object) -> bool:
            raise RuntimeError("broken")

        policy.requested = policy.admits = fails  # type: ignore[assignment, method-assign]
        node = Node(tier)
        self.ask(node, RequestTags("a", 1, "good"))
        assert len(node.store.gets) == 1
        assert "the cache policy historic failed" in caplog.text
