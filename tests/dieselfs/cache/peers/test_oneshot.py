"""The filling of a node's share over a memory that waits and fails on command."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from chunkstore.errors import Corrupt, Unavailable
from dieselfs.cache.node.master import AlreadyLoading
from dieselfs.cache.peers import oneshot
from dieselfs.cache.peers.oneshot import Oneshot
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.task_statistics import FillingStatistics
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.errors import CacheFull, MasterGone
from tests.dieselfs.cache.made_up_source import block_of
from tests.dieselfs.cache.processes import DEADLINE_S
from tests.eventually import eventually

BLOCKS = tuple(block_of(number) for number in range(20))


class Memory:
    """The part of a `Master` and its blocks that filling needs."""

    def __init__(self, before: Callable[[CacheBlock], None] = lambda block: None) -> None:
        self.before = before
        self.blocks = self
        self.cached: set[str] = set()
        self.fetched: list[CacheBlock] = []
        self.reader_waits = False
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def is_cached(self, block: CacheBlock) -> bool:
        return block.name in self.cached

    def fetch(self, block: CacheBlock, *, ahead: bool, as_owner: bool) -> None:
        assert ahead
        assert as_owner
        with self._lock:
            self.fetched.append(block)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.before(block)
            self.cached.add(block.name)
        finally:
            with self._lock:
                self.at_once -= 1

    def readers_wait(self) -> bool:
        return self.reader_waits


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def filling(memory: Memory) -> Iterator[Oneshot]:
    filling = Oneshot(OperatingSystem(), memory, at_once=4)
    yield filling
    filling.close(DEADLINE_S)


def waited(gate: threading.Event) -> None:
    assert gate.wait(DEADLINE_S)


def met(others: threading.Barrier) -> None:
    others.wait(DEADLINE_S)


def statistics(filling: Oneshot) -> FillingStatistics:
    return filling.statistics(blocks=20, share_bytes=20_000, cached=(0, 0))


def wait_until_done(filling: Oneshot) -> None:
    eventually(lambda: statistics(filling).done, "an end of it")


def test_what_is_missing_is_fetched_in_order(filling: Oneshot, memory: Memory) -> None:
    memory.cached = {BLOCKS[3].name}
    taken: dict[int, list[int]] = defaultdict(list)
    memory.before = lambda block: taken[threading.get_ident()].append(BLOCKS.index(block))
    assert not statistics(filling).done, "it has not begun"
    filling.fill(BLOCKS)
    wait_until_done(filling)
    assert len(memory.cached) == 20
    numbers = [BLOCKS.index(block) for block in memory.fetched]
    assert sorted(numbers) == [number for number in range(20) if number != 3]
    # Each thread takes what is next; it may be late with that by any number of blocks.
    assert all(each == sorted(each) for each in taken.values())
    found = statistics(filling)
    assert found.fetched_bytes == 19_000
    assert found.rate_bytes_s > 0
    filling.fill(BLOCKS)
    wait_until_done(filling)
    assert len(memory.fetched) == 19


def test_one_at_a_time_is_in_order(memory: Memory) -> None:
    filling = Oneshot(OperatingSystem(), memory, at_once=1)
    filling.fill(BLOCKS)
    wait_until_done(filling)
    assert memory.fetched == list(BLOCKS)
    filling.close(DEADLINE_S)


def test_several_are_under_way_but_one_while_a_reader_waits(
    filling: Oneshot, memory: Memory
) -> None:
    together = threading.Barrier(4)
    memory.before = lambda block: met(together)
    filling.fill(BLOCKS[:4])
    wait_until_done(filling)
    assert memory.most_at_once == 4
    memory.most_at_once = 0
    memory.reader_waits = True
    memory.before = lambda block: None
    filling.fill(BLOCKS)
    wait_until_done(filling)
    assert memory.most_at_once == 1
    assert len(memory.cached) == 20


def test_it_ends_where_there_is_no_room(filling: Oneshot, memory: Memory) -> None:
    def full(block: CacheBlock) -> None:
        if len(memory.cached) >= 8:
            raise CacheFull("full")

    memory.before = full
    filling.fill(BLOCKS)
    wait_until_done(filling)
    assert 8 <= len(memory.cached) <= 12
    assert len(memory.fetched) <= 16


def test_what_cannot_be_had_is_left_to_its_readers(
    filling: Oneshot, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(block: CacheBlock) -> None:
        if block == BLOCKS[2]:
            raise Corrupt("damaged")
        if block == BLOCKS[3]:
            raise AlreadyLoading("from another node")
        if block in BLOCKS[4:9]:  # one more than there are threads
            raise MemoryError

    memory.before = fail
    filling.fill(BLOCKS)
    wait_until_done(filling)
    assert len(memory.cached) == 13
    assert sorted(record.levelname for record in caplog.records) == ["ERROR"] * 5 + ["WARNING"]


def test_a_store_that_is_out_is_asked_again(
    filling: Oneshot, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oneshot, "STORE_PAUSE_S", 0.01)
    failures = iter(range(6))

    def fail(block: CacheBlock) -> None:
        if next(failures, None) is not None:
            raise Unavailable("down")

    memory.before = fail
    filling.fill(BLOCKS)
    wait_until_done(filling)
    assert len(memory.cached) == 20
    assert len(memory.fetched) == 26


def test_another_share_takes_the_place_of_what_was_left(filling: Oneshot, memory: Memory) -> None:
    gate = threading.Event()
    memory.before = lambda block: waited(gate)
    filling.fill(BLOCKS[:10])
    eventually(lambda: memory.at_once == 4, "four under way")
    filling.fill(BLOCKS[10:])
    gate.set()
    wait_until_done(filling)
    assert set(memory.cached) == {block.name for block in (*BLOCKS[:4], *BLOCKS[10:])}
    filling.fill(())
    assert statistics(filling).done


def test_the_end_does_not_wait_for_the_store(memory: Memory) -> None:
    gate = threading.Event()
    memory.before = lambda block: waited(gate)
    filling = Oneshot(OperatingSystem(), memory, at_once=2)
    filling.fill(BLOCKS)
    eventually(lambda: memory.at_once == 2, "two under way")
    filling.close(0.0)
    filling.fill(BLOCKS)
    gate.set()
    filling.close(DEADLINE_S)
    assert len(memory.fetched) == 2


def test_it_ends_with_its_master(filling: Oneshot, memory: Memory) -> None:
    def gone(block: CacheBlock) -> None:
        raise MasterGone("it has ended")

    memory.before = gone
    filling.fill(BLOCKS)
    wait_until_done(filling)
    assert len(memory.fetched) <= 4
