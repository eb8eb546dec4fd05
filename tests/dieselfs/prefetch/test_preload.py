"""Preloading: the chunks in their order, as many as fit, a few at a time, and one that fails is
left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Unavailable
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.errors import CacheFull
from dieselfs.prefetch.preload import FETCHES, Preload
from tests.eventually import PATIENCE_S, scaled_by_load


class Chunks:
    """As much of a snapshot as preloading sees."""

    def __init__(self, sizes: list[int]) -> None:
        self.chunk_count = len(sizes)
        self._sizes = sizes

    def chunk(self, number: int) -> ChunkRef:
        return ChunkRef(ChunkId(number.to_bytes(16, "big")), 64, self._sizes[number])


class Source:
    def __init__(self, during: Callable[[int], None] = lambda number: None) -> None:
        self.fetched: list[int] = []
        self.most_at_once = 0
        self._at_once = 0
        self._during = during
        self._lock = threading.Lock()

    def fetch_blocks(self, blocks: Sequence[CacheBlock]) -> None:
        [block] = blocks
        number = int.from_bytes(block.chunk.id.value, "big")
        with self._lock:
            self.fetched.append(number)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            self._during(number)
        finally:
            with self._lock:
                self._at_once -= 1


def begun(sizes: list[int], budget_bytes: int, source: Source) -> Preload:
    preload = Preload(Chunks(sizes), source, budget_bytes)  # type: ignore[arg-type]
    preload.start()
    return preload


def join(preload: Preload) -> None:
    for thread in preload.threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def preloaded(sizes: list[int], budget_bytes: int, source: Source | None = None) -> list[int]:
    source = source or Source()
    join(begun(sizes, budget_bytes, source))
    return sorted(source.fetched)


@pytest.mark.parametrize(
    ("sizes", "budget_bytes", "expected"),
    [
        ([], 100, []),
        ([10] * 5, 0, []),
        ([10] * 5, 9, []),
        ([10] * 5, 10, [0]),
        ([10] * 5, 39, [0, 1, 2]),
        ([10] * 5, 1000, [0, 1, 2, 3, 4]),
        ([10, 50, 10], 30, [0]),
        ([MAX_WHOLE_BYTES + 1, 10, MAX_WHOLE_BYTES + 1, 10], 20, [1, 3]),
    ],
)
def test_whole_chunks_are_fetched_in_order_until_the_budget_is_used(
    sizes: list[int], budget_bytes: int, expected: list[int]
) -> None:
    assert preloaded(sizes, budget_bytes) == expected


def test_some_are_fetched_at_a_time_and_each_once() -> None:
    together = threading.Barrier(FETCHES)
    source = Source(lambda number: together.wait(60) and None)
    assert preloaded([1] * 5 * FETCHES, 1000, source) == list(range(5 * FETCHES))
    assert source.most_at_once == FETCHES


def test_one_that_fails_is_logged_and_left_to_its_readers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(number: int) -> None:
        if number == 3:
            raise Unavailable("no store")

    assert preloaded([1] * 10, 100, Source(fail)) == list(range(10))
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert warning.getMessage().startswith("cannot preload chunk ")
    assert warning.getMessage().endswith(": no store")


def test_it_ends_where_others_have_taken_the_room(caplog: pytest.LogCaptureFixture) -> None:
    def fail(number: int) -> None:
        if number >= FETCHES:
            raise CacheFull("others are there")

    assert len(preloaded([1] * 100, 1000, Source(fail))) == 2 * FETCHES
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_bug_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    def fail(number: int) -> None:
        raise ZeroDivisionError

    preloaded([1] * 10, 100, Source(fail))
    assert caplog.text.count("the preload has failed") == FETCHES
    assert "ZeroDivisionError" in caplog.text


def test_a_mount_that_ends_does_not_wait_for_it() -> None:
    ended, entered = threading.Event(), threading.Event()

    def hang(number: int) -> None:
        entered.set()
        assert ended.wait(PATIENCE_S)

    source = Source(hang)
    preload = begun([1] * 10, 100, source)
    assert entered.wait(60)
    began = time.monotonic()
    preload.stop()
    assert time.monotonic() - began < scaled_by_load(5)
    ended.set()
    join(preload)
    assert len(source.fetched) <= FETCHES


def test_one_that_was_not_begun_can_be_stopped() -> None:
    Preload(Chunks([1]), Source(), 10).stop()  # type: ignore[arg-type]
