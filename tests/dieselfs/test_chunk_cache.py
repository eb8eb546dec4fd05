"""The cache over a source that counts, fails and waits on command."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import xxhash

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Unavailable
from dieselfs.chunk_cache import PIECE_BYTES, ChunkCache

MIB = 1 << 20


class Source:
    """Implements `ChunkSource` with content made up from the chunk's id."""

    def __init__(self) -> None:
        self.fetched: list[tuple[int, int]] = []
        """(chunk number, bytes)."""
        self.before: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def payload(self, chunk: ChunkRef) -> memoryview:
        self._tell(chunk, chunk.payload_bytes)
        return memoryview(content(chunk))

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        self._tell(file.chunk, length)
        at = file.offset + start
        return memoryview(content(file.chunk))[at : at + length]

    def _tell(self, chunk: ChunkRef, size: int) -> None:
        with self._lock:
            self.fetched.append((number_of(chunk), size))
        self.before()


_contents: dict[ChunkRef, bytes] = {}


def content(chunk: ChunkRef) -> bytes:
    if chunk not in _contents:
        _contents[chunk] = random.Random(number_of(chunk)).randbytes(chunk.payload_bytes)
    return _contents[chunk]


def number_of(chunk: ChunkRef) -> int:
    return int.from_bytes(chunk.id.value, "big")


def chunk(number: int, size: int = 1000) -> ChunkRef:
    return ChunkRef(ChunkId(number.to_bytes(16, "big")), 64, size)


def extent(ref: ChunkRef, offset: int = 0, length: int | None = None) -> FileExtent:
    length = ref.payload_bytes - offset if length is None else length
    data = content(ref)[offset : offset + length]
    return FileExtent(ref, offset, length, xxhash.xxh3_64_intdigest(data))


def test_a_chunk_is_fetched_once_for_all_its_files() -> None:
    source = Source()
    cache = ChunkCache(source)
    ref = chunk(1)
    for offset in range(0, 1000, 10):
        file = extent(ref, offset, 10)
        assert cache.read(file, 3, 5) == content(ref)[offset + 3 : offset + 8]
    assert source.fetched == [(1, 1000)]
    found = cache.statistics()
    assert (found.hits, found.misses, found.fetches) == (99, 1, 1)
    assert (found.fetched_bytes, found.cached_bytes) == (1000, 1000)
    assert cache.payload(ref) == content(ref)
    assert len(source.fetched) == 1


def test_the_budget_is_kept_and_the_least_recently_used_leaves_first() -> None:
    source = Source()
    cache = ChunkCache(source, budget_bytes=3500)
    held = {number: cache.read(extent(chunk(number)), 0, 1000) for number in (1, 2, 3)}
    cache.read(extent(chunk(1)), 0, 1)
    cache.read(extent(chunk(4)), 0, 1)  # 2 leaves
    assert cache.peek(extent(chunk(2)), 0, 1) is None
    for number in (1, 3, 4):
        assert cache.peek(extent(chunk(number)), 0, 1000) == content(chunk(number))
    draw = random.Random(0)
    for _ in range(500):
        cache.read(extent(chunk(draw.randint(1, 20))), 0, 1000)
        assert cache.statistics().cached_bytes <= 3500
    assert cache.statistics().evictions > 100
    for number, view in held.items():
        assert view == content(chunk(number)), "evicted, but still valid for who holds it"


def test_a_chunk_above_the_budget_is_served_and_the_only_one() -> None:
    source = Source()
    cache = ChunkCache(source, budget_bytes=1500)
    cache.read(extent(chunk(1)), 0, 1)
    big = chunk(2, 5000)
    assert cache.read(extent(big), 0, 5000) == content(big)
    assert cache.statistics().cached_bytes == 5000
    cache.read(extent(chunk(1)), 0, 1)
    assert cache.statistics().cached_bytes == 1000


def test_a_large_chunk_is_cached_in_pieces() -> None:
    source = Source()
    cache = ChunkCache(source)
    ref = chunk(7, MAX_WHOLE_BYTES + 3 * MIB)
    file = extent(ref)
    assert cache.read(file, 10, 100) == content(ref)[10:110]
    assert source.fetched == [(7, PIECE_BYTES)]
    over = PIECE_BYTES - 50  # the border of two pieces
    assert cache.peek(file, over, 100) is None
    assert cache.read(file, over, 100) == content(ref)[over : over + 100]
    assert source.fetched == [(7, PIECE_BYTES)] * 2
    assert cache.peek(file, over, 100) == content(ref)[over : over + 100]
    assert cache.read(file, 0, file.length) == content(ref)
    assert sum(size for _, size in source.fetched) == ref.payload_bytes
    assert cache.peek(file, 0, file.length) == content(ref)
    end = file.length - 1
    assert cache.read(file, end, 1) == content(ref)[end:]
    assert cache.read(file, file.length, 0) == b""
    assert sum(size for _, size in source.fetched) == ref.payload_bytes


def test_two_large_files_of_one_chunk_do_not_meet() -> None:
    ref = chunk(8, 20 * MIB)
    cache = ChunkCache(Source())
    first, second = extent(ref, 0, 10 * MIB), extent(ref, 10 * MIB, 10 * MIB)
    assert cache.read(first, 0, 9 * MIB) == content(ref)[: 9 * MIB]
    assert cache.read(second, 0, 9 * MIB) == content(ref)[10 * MIB : 19 * MIB]


def test_the_largest_whole_chunk() -> None:
    source = Source()
    ref = chunk(9, MAX_WHOLE_BYTES)
    cache = ChunkCache(source)
    assert cache.read(extent(ref), MAX_WHOLE_BYTES - 1, 1) == content(ref)[-1:]
    assert source.fetched == [(9, MAX_WHOLE_BYTES)]


def misses_of_many(cache: ChunkCache, source: Source, threads: int) -> list[object]:
    """What each of several threads gets that read one chunk; its fetch ends when all have asked."""
    asking = threading.Barrier(threads)
    entered, release = threading.Event(), threading.Event()
    results: list[object] = []

    def hold() -> None:
        entered.set()
        assert release.wait(30)

    before, source.before = source.before, lambda: (hold(), before())[0]

    def read() -> None:
        asking.wait(30)
        try:
            results.append(bytes(cache.read(extent(chunk(1)), 0, 10)))
        except Unavailable as error:
            results.append(error)

    workers = [threading.Thread(target=read) for _ in range(threads)]
    for worker in workers:
        worker.start()
    assert entered.wait(30)
    peeked = cache.peek(extent(chunk(1)), 0, 10)  # while the fetch is under way
    assert peeked is None
    while cache.statistics().misses < threads:  # all are counted before they wait
        assert not release.is_set()
    release.set()
    for worker in workers:
        worker.join(30)
    source.before = before
    return results


def test_of_many_that_miss_one_fetches() -> None:
    source = Source()
    cache = ChunkCache(source)
    results = misses_of_many(cache, source, 8)
    assert results == [content(chunk(1))[:10]] * 8
    assert source.fetched == [(1, 1000)]


def test_a_failed_fetch_fails_all_who_wait_and_the_next_read_tries_again() -> None:
    source = Source()
    cache = ChunkCache(source)
    failing = [True]

    def fail() -> None:
        if failing[0]:
            raise Unavailable("no store")

    source.before = fail
    results = misses_of_many(cache, source, 6)
    assert len(results) == 6
    # A thread may come to the cache only when the failed fetch is over; then it fetches, and fails, itself.
    assert all(isinstance(result, Unavailable) for result in results)
    assert 1 <= len(source.fetched) <= 6
    failing[0] = False
    assert cache.read(extent(chunk(1)), 0, 10) == content(chunk(1))[:10]
    assert cache.statistics().cached_bytes == 1000


def test_threads_at_random() -> None:
    source = Source()
    cache = ChunkCache(source, budget_bytes=5_000)
    wrong: list[object] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(2_000):
            ref = chunk(draw.randint(1, 12), 700)
            start = draw.randint(0, 699)
            length = draw.randint(0, 700 - start)
            try:
                if cache.read(extent(ref), start, length) != content(ref)[start : start + length]:
                    wrong.append((ref, start, length))
            except BaseException as error:
                wrong.append(error)

    for number in range(1, 13):
        content(chunk(number, 700))
    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert wrong == []
    found = cache.statistics()
    assert found.cached_bytes <= 5_000
    assert found.fetched_bytes == 700 * found.fetches


@pytest.mark.parametrize("length", [0, 1, 1000])
def test_peek_asks_nobody(length: int) -> None:
    source = Source()
    cache = ChunkCache(source)
    assert cache.peek(extent(chunk(1)), 0, length) is None
    assert source.fetched == []
    assert cache.statistics().hits == 0


class Observer:
    """Implements `CacheObserver`; reads behind the cache's back are told to it by `use`."""

    def __init__(self) -> None:
        self.held: dict[ChunkId, memoryview] = {}
        self.told: list[tuple[str, int]] = []
        self._used: set[ChunkId] = set()

    def hold(self, chunk: ChunkId, payload: memoryview) -> None:
        self.held[chunk] = payload
        self.told.append(("hold", int.from_bytes(chunk.value, "big")))

    def release(self, chunk: ChunkId) -> None:
        del self.held[chunk]
        self.told.append(("release", int.from_bytes(chunk.value, "big")))

    def was_used(self, chunk: ChunkId) -> bool:
        was = chunk in self._used
        self._used.discard(chunk)
        return was

    def use(self, *numbers: int) -> None:
        self._used |= {chunk(number).id for number in numbers}


def observed(budget_bytes: int) -> tuple[ChunkCache, Observer, Source]:
    source, observer = Source(), Observer()
    cache = ChunkCache(source, budget_bytes)
    cache.observe(observer)
    return cache, observer, source


def test_an_observer_is_told_what_comes_and_goes_in_that_order() -> None:
    cache, observer, _ = observed(2500)
    for number in (1, 2, 2, 3, 1):
        cache.payload(chunk(number))
    assert observer.told == [
        *(("hold", 1), ("hold", 2), ("hold", 3), ("release", 1)),
        *(("hold", 1), ("release", 2)),
    ]
    assert observer.held == {chunk(n).id: content(chunk(n)) for n in (3, 1)}


def test_a_chunk_that_the_observer_used_gets_a_second_chance() -> None:
    cache, observer, _ = observed(3500)
    for number in (1, 2, 3):
        cache.payload(chunk(number))
    observer.use(1, 2)
    cache.payload(chunk(4))
    assert set(observer.held) == {chunk(n).id for n in (1, 2, 4)}, "3 was not used"
    cache.payload(chunk(5))
    assert set(observer.held) == {chunk(n).id for n in (1, 2, 5)}, "4 is older than those"
    cache.payload(chunk(6))
    assert set(observer.held) == {chunk(n).id for n in (2, 5, 6)}, "a second, and no third"


def test_where_all_are_used_the_oldest_leaves() -> None:
    cache, observer, _ = observed(3500)
    for number in (1, 2, 3):
        cache.payload(chunk(number))
    observer.use(1, 2, 3, 4)
    cache.payload(chunk(4))
    assert set(observer.held) == {chunk(n).id for n in (2, 3, 4)}
    assert cache.statistics().evictions == 1


def test_pieces_of_large_chunks_are_not_observed() -> None:
    cache, observer, _ = observed(2 * PIECE_BYTES)
    large = extent(chunk(7, MAX_WHOLE_BYTES + 1))
    for number in range(4):
        cache.read(large, number * PIECE_BYTES, 1)
    assert cache.statistics().evictions == 2
    assert observer.told == []


def test_a_discarded_chunk_is_gone_and_is_no_eviction() -> None:
    cache, observer, source = observed(3500)
    kept = cache.payload(chunk(1))
    cache.payload(chunk(2))
    cache.discard(chunk(1).id)
    cache.discard(chunk(1).id)
    cache.discard(chunk(9).id)
    assert observer.told[2:] == [("release", 1)]
    assert cache.peek(extent(chunk(1)), 0, 1) is None
    assert cache.statistics().cached_bytes == 1000
    assert cache.statistics().evictions == 0
    assert kept == content(chunk(1))
    cache.payload(chunk(1))
    assert [number for number, _ in source.fetched] == [1, 2, 1]
    assert cache.statistics().cached_bytes == 2000


def test_a_discard_while_the_chunk_is_fetched_is_not_for_what_comes() -> None:
    cache, observer, source = observed(3500)
    source.before = lambda: cache.discard(chunk(1).id)
    assert cache.payload(chunk(1)) == content(chunk(1))
    assert observer.told == [("hold", 1)]
    assert cache.statistics().cached_bytes == 1000


def test_an_observer_and_the_cache_agree_after_threads_at_random() -> None:
    cache, observer, _ = observed(5000)
    wrong: list[BaseException] = []
    for number in range(1, 13):
        content(chunk(number, 700))

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            for _ in range(1000):
                ref = chunk(draw.randint(1, 12), 700)
                if draw.random() < 0.2:
                    cache.discard(ref.id)
                elif draw.random() < 0.2:
                    observer.use(number_of(ref))
                else:
                    assert cache.read(extent(ref), 0, 700) == content(ref)
        except BaseException as error:
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert wrong == []
    assert cache.statistics().cached_bytes == sum(map(len, observer.held.values())) <= 5000
    for number in range(1, 13):
        peeked = cache.peek(extent(chunk(number, 700)), 0, 700)
        assert (peeked is not None) == (chunk(number).id in observer.held)
