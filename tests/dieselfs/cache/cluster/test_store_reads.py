"""How a cache node reads the store: who waits for a turn, who does not, and what the node's log
says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkstore.errors import NotFound, Unavailable
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import Buffer
from chunkstore.stores.paused_time import paused
from chunkstore.stores.read import Read
from chunkstore.stores.read_meter import ReadMeter, of_thread
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cache.cluster import store_reads
from dieselfs.cache.cluster.store_reads import STORE_READS, StoreReads
from dieselfs.cache.ports.fetched_bytes import fetched_bytes
from dieselfs.errors import CacheFull

FOR_EVER_S = 1000.0


class SlowStore(MemoryObjectStore):
    """Each read waits until it is let through, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.create("object", [b"content"])
        self.begun, self.lets = threading.Semaphore(0), threading.Semaphore(0)
        self.fails = False

    def get(self, key: str) -> bytes:
        self.begun.release()
        assert self.lets.acquire(timeout=60)
        if self.fails:
            raise Unavailable("out")
        return super().get(key)


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(STORE_READS + 4) as found:
        yield found


def test_nobody_waits_for_a_store_of_which_nothing_comes(
    store: SlowStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "WAIT_S", FOR_EVER_S)
    monkeypatch.setattr(store_reads, "HANGS_S", 0.3)
    reads = StoreReads(store, lambda seconds, length: None)
    under_way = [threads.submit(reads.get, "object") for _ in range(STORE_READS)]
    for _ in under_way:
        assert store.begun.acquire(timeout=60)
    with pytest.raises(CacheFull):
        reads.get("object")
    store.lets.release(STORE_READS + 1)
    assert {bytes(one.result(60)) for one in under_way} == {b"content"}
    assert reads.get("object") == b"content", "it answers again"
    assert reads.bytes == (STORE_READS + 1) * len(b"content")


def test_who_finds_all_turns_taken_waits_for_one(
    store: SlowStore, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "WAIT_S", FOR_EVER_S)
    monkeypatch.setattr(store_reads, "HANGS_S", FOR_EVER_S)
    reads = StoreReads(store, lambda seconds, length: None)
    wanted = [threads.submit(reads.get, "object") for _ in range(STORE_READS + 4)]
    for _ in range(STORE_READS):
        assert store.begun.acquire(timeout=60)
    assert not store.begun.acquire(timeout=0.05), "so many at a time"
    store.lets.release(len(wanted))
    assert all(one.result(60) == b"content" for one in wanted)


def test_the_log_says_once_that_the_store_fails_and_that_it_answers(
    store: SlowStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reads = StoreReads(store, lambda seconds, length: None)
    store.lets.release(4)
    store.fails = True
    for _ in range(2):
        with pytest.raises(Unavailable):
            reads.get("object")
    store.fails = False
    for _ in range(2):
        reads.get("object")
    failed, again = caplog.messages
    assert "the store fails" in failed
    assert "answers again" in again


def test_the_log_says_that_this_store_lacks_what_clients_ask_for(
    store: SlowStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reads = StoreReads(store, lambda seconds, length: None)
    store.lets.release(2)
    for _ in range(2):
        with pytest.raises(NotFound):
            reads.get("datasets/d/chunks/gone")
    [said] = caplog.messages
    assert "datasets/d/chunks/gone" in said


def test_a_pause_for_a_byte_budget_is_not_the_stores_time() -> None:
    inner, took = MemoryObjectStore(), list[float]()
    inner.create("object", [b"content"])

    class Pausing(ReadWrapper):
        def _read(self, read: Read) -> Buffer:
            paused(1000)
            return read.of(self._wrapped)

    StoreReads(Pausing(inner), lambda seconds, length: took.append(seconds)).get("object")
    assert -1000 <= took[0] < -900  # the pause took no time


class HedgingStore(MemoryObjectStore):
    """Each read is answered twice: its hedge may be answered after the read has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.create("object", [b"content"])
        self.hedges: list[ReadMeter] = []

    def get(self, key: str) -> bytes:
        meter = of_thread.meter
        assert meter is not None
        meter.answered(7)
        self.hedges.append(meter)
        return super().get(key)


def test_what_a_hedge_brings_is_counted_for_the_read_or_for_the_next_one() -> None:
    store, before = HedgingStore(), fetched_bytes()
    reads = StoreReads(store, lambda seconds, length: None)
    reads.get("object")
    assert fetched_bytes() - before == 7
    store.hedges.pop().answered(7)  # late
    reads.get("object")
    assert fetched_bytes() - before == 21
    reads.get("object")
    assert fetched_bytes() - before == 28
    assert of_thread.meter is None
