"""Reads of chunks are paid for, whatever becomes of them, and nothing takes their waits for the
store's."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.errors import NotFound, Unavailable
from chunkstore.object_keys import chunk_key, commit_key, dataset_of_chunk, snapshot_key
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.ssd.tier import SsdTier
from chunkstore.ssd.tiered_store import TieredStore
from chunkstore.stores.budgeted import BudgetedStore
from chunkstore.stores.byte_budget import ByteBudget
from chunkstore.stores.hedging import HedgePolicy
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_turn import current_turn
from chunkstore.stores.read_wrapper import ReadWrapper
from chunkstore.stores.resilient import ResiliencePolicy, ResilientStore
from chunkstore.stores.retrying import RetryingStore, RetryPolicy
from tests.chunkstore.stores.budget_clocks import Takers, WaitingClock
from tests.chunkstore.stores.faulty_store import FaultyStore, hanging
from tests.contracts.object_store_contract import OpenStore, SharedObjectStoreContract
from tests.eventually import PATIENCE_S, eventually

KEY = chunk_key("d", ChunkId(bytes(16)))
SIZE = 1000


def unknown(chunk: ChunkId) -> None:
    """No sizes are known."""


def known(chunk: ChunkId) -> int:
    return SIZE


def free() -> None:
    """Nobody pays."""


def filled(store: ObjectStore) -> ObjectStore:
    store.create(KEY, [bytes(SIZE)])
    return store


def used(budget: ByteBudget) -> int:
    return budget.statistics().used_bytes


class TestTheContract(SharedObjectStoreContract):
    """With a budget that is paid, and processes that fork."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        budget = ByteBudget(1 << 40)
        inner = partial(LocalDirectory, tmp_path / "store")
        return lambda: BudgetedStore(ResilientStore(inner()), lambda: budget, unknown)


class TestWhoPays:
    @pytest.mark.parametrize("key", [commit_key("d", 1), snapshot_key("d", "1-00"), "config/x"])
    def test_only_chunks_are_paid_for(self, key: str) -> None:
        clock = WaitingClock()
        budget = ByteBudget(1, clock=clock, wait=clock.wait)
        store = BudgetedStore(filled(MemoryObjectStore()), lambda: budget, known)
        store.create(key, [bytes(SIZE)])
        store.get(KEY)
        store.get(key)
        store.get_range(key, 0, 10)
        store.stat(KEY)
        list(store.list(""))
        store.delete(KEY)
        assert clock.now == 0
        assert used(budget) == SIZE
        assert (dataset_of_chunk(key), dataset_of_chunk(KEY)) == (None, "d")

    def test_without_a_payer_reads_are_free(self) -> None:
        store = BudgetedStore(filled(MemoryObjectStore()), free, known)
        assert store.get(KEY) == bytes(SIZE)

    @pytest.mark.parametrize("size_of", [known, unknown])
    def test_what_came_is_paid(self, size_of: object) -> None:
        budget = ByteBudget(1 << 40)
        store = BudgetedStore(filled(MemoryObjectStore()), lambda: budget, size_of)  # type: ignore[arg-type]
        store.get(KEY)
        assert used(budget) == SIZE
        store.get_range(KEY, SIZE - 10, 1 << 20)
        store.get_range(KEY, 0, 7)
        assert used(budget) == SIZE + 10 + 7

    def test_it_is_paid_before_it_is_read(self) -> None:
        clock = WaitingClock()
        budget = ByteBudget(SIZE, clock=clock, wait=clock.wait)
        at: list[float] = []
        faulty = FaultyStore(lambda *_: at.append(clock.now))
        filled(faulty.inner)
        store = BudgetedStore(faulty, lambda: budget, known)
        for _ in range(3):
            store.get(KEY)
        assert at == pytest.approx([0, 1, 2], abs=0.26)

    def test_it_pickles_with_its_arguments(self, tmp_path: Path) -> None:
        store = BudgetedStore(filled(LocalDirectory(tmp_path)), free, unknown)
        assert pickle.loads(pickle.dumps(store)).get(KEY) == bytes(SIZE)


class TestAfterwards:
    def test_a_repeated_request_is_charged(self) -> None:
        budget = ByteBudget(1 << 40)

        class Refused(ReadWrapper):
            calls = 0

            def _read(self, read: Read) -> Buffer:
                data = read.of(self._wrapped)
                self.calls += 1
                if self.calls == 1:
                    raise Unavailable("lost on the way")
                return data

        resilient = ResilientStore(filled(MemoryObjectStore()))
        store = BudgetedStore(
            RetryingStore(Refused(resilient), sleep=lambda _: None), lambda: budget, known
        )
        store.get(KEY)
        assert used(budget) == resilient.chunk_bytes_left == 2 * SIZE

    def test_a_hedge_is_charged_though_it_comes_late(self) -> None:
        budget = ByteBudget(1 << 40)
        with hanging() as hang:
            faulty = FaultyStore(lambda call, key, number: hang() if number == 5 else None)
            filled(faulty.inner)
            hedge = HedgePolicy(shortest_s=0.01, extra_share=1.0, enough=4)
            resilient = ResilientStore(faulty, ResiliencePolicy(hedge=hedge))
            store = BudgetedStore(resilient, lambda: budget, known)
            for _ in range(5):
                store.get(KEY)
            hedges = resilient.statistics().hedge.hedges
            assert hedges >= 1
        eventually(lambda: used(budget) == (5 + hedges) * SIZE)
        assert resilient.chunk_bytes_left == used(budget)

    def test_what_a_failed_read_took_is_given_back(self) -> None:
        clock = WaitingClock()
        budget = ByteBudget(1, clock=clock, wait=clock.wait)

        def fail(call: str, key: str, number: int) -> None:
            raise Unavailable("away")

        store = BudgetedStore(FaultyStore(fail), lambda: budget, known)
        for _ in range(3):
            with pytest.raises(Unavailable):
                store.get(KEY)
        with pytest.raises(NotFound):
            BudgetedStore(MemoryObjectStore(), lambda: budget, known).get(KEY)
        assert (clock.now, used(budget)) == (0, 0)

    def test_without_a_budget_nothing_is_counted(self) -> None:
        store = ResilientStore(filled(MemoryObjectStore()))
        store.get(KEY)
        assert store.chunk_bytes_left == 0


class Jumps:
    """A clock of the whole process that jumps when a budget waits: a wait of minutes takes none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jumped_s = 0.0
        monotonic = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self.jumped_s)

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        assert seconds is not None
        self.jumped_s += seconds

    def budget(self, bytes_per_s: float) -> ByteBudget:
        return ByteBudget(bytes_per_s, clock=lambda: time.monotonic(), wait=self.wait)


@pytest.fixture
def jumps(monkeypatch: pytest.MonkeyPatch) -> Jumps:
    return Jumps(monkeypatch)


class TestAJobHeldTo50KB:
    """A chunk of 4 MB takes it 80 s, over which the clock jumps.

    A busy machine takes seconds besides, which all limits leave it.
    """

    RATE, CHUNK = 50e3, 4_000_000
    POLICY = ResiliencePolicy(
        RetryPolicy(tries=1, operation_timeout_s=60),
        hedge=HedgePolicy(extra_share=1.0, enough=4, shortest_s=20.0),
        request_timeout_s=40,
    )

    @pytest.fixture
    def inner(self) -> ObjectStore:
        store = MemoryObjectStore()
        for number in range(8):
            store.create(self.key(number), [bytes(self.CHUNK)])
        return store

    @staticmethod
    def key(number: int) -> str:
        return chunk_key("d", ChunkId(number.to_bytes(16, "big")))

    def size_of(self, chunk: ChunkId) -> int:
        return self.CHUNK

    def test_no_read_fails_is_hedged_or_holds_a_place(
        self, inner: ObjectStore, jumps: Jumps
    ) -> None:
        budget = jumps.budget(self.RATE)
        resilient = ResilientStore(inner, self.POLICY)
        store = BudgetedStore(resilient, lambda: budget, self.size_of)
        began = time.monotonic()
        for number in range(8):
            assert len(store.get(self.key(number))) == self.CHUNK
        # A busy machine's own seconds pass for waits.
        assert time.monotonic() - began > 0.95 * 7 * 80
        assert jumps.jumped_s < 1.05 * 7 * 80
        found = resilient.statistics()
        assert (found.retry.given_up, found.retry.retries) == (0, 0)
        assert (found.hedge.reads, found.hedge.hedges, found.hedge.refused) == (8, 0, 0)
        assert (found.limit.waited, found.limit.decreases) == (0, 0)
        assert found.deadline.abandoned == 0

    def test_a_budget_inside_the_clock_of_an_operation_would_fail(self, jumps: Jumps) -> None:
        """Else the test above proves nothing. An answer may take half of a request's time."""
        budget, failed = jumps.budget(self.RATE), threading.Event()
        inner = FaultyStore(
            lambda call, key, number: call == "get" and number == 2 and failed.wait(20)
        )
        for number in range(2):
            inner.create(self.key(number), [bytes(self.CHUNK)])
        resilient = ResilientStore(inner, self.POLICY)
        store = RetryingStore(
            BudgetedStore(resilient, lambda: budget, self.size_of), self.POLICY.retry
        )
        store.get(self.key(0))
        with pytest.raises(Unavailable):
            store.get(self.key(1))
        failed.set()

    def test_waiting_reads_have_no_thread_of_the_store(self, inner: ObjectStore) -> None:
        budget, takers = ByteBudget(self.RATE), Takers()
        resilient = ResilientStore(inner, self.POLICY)
        store = BudgetedStore(resilient, lambda: budget, self.size_of)
        budget.take(1 << 40)
        before = set(threading.enumerate())  # some may still be ending
        for number in range(16):
            takers.start(str(number), partial(store.get, self.key(number % 8)))
        eventually(lambda: budget.statistics().waiting == 16)
        assert len(set(threading.enumerate()) - before) == 16
        found = resilient.statistics()
        assert (found.deadline.threads, found.limit.in_flight, found.limit.waiting) == (0, 0, 0)
        budget.close()
        takers.join()

    def test_the_ssd_is_compared_with_the_store_alone(
        self, inner: ObjectStore, jumps: Jumps, tier: SsdTier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        budget = jumps.budget(self.RATE)
        store = BudgetedStore(ResilientStore(inner, self.POLICY), lambda: budget, self.size_of)
        tiered = TieredStore(store, DatasetRef("d", b"d" * 16), tier)
        took: list[float] = []
        monkeypatch.setattr(tier, "store_took", lambda seconds, length: took.append(seconds))
        tiered.get(self.key(0))
        tiered.get(self.key(1))
        tiered.get_range(self.key(2), 0, 3 << 20)
        tiered.get_range(self.key(3), 0, 1000)  # the last one: another thread loads the rest
        assert jumps.jumped_s > 156
        assert len(took) == 4
        assert all(0 <= seconds < 40 for seconds in took)
        assert tier.is_in_service()
        # Without the jumps its thread would wait for real, and never sleep.
        eventually(lambda: not tiered._warming._flights)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[SsdTier]:
    folder = tmp_path / "ssd"
    made = SsdTier(lambda: SegmentStore(folder, tmp_path / "index", 60 << 20), folder)
    assert made.wait_until_open(PATIENCE_S)
    yield made
    made.close()


class TestTurns:
    def test_a_tier_loads_the_rest_of_a_chunk_ahead(self, tier: SsdTier) -> None:
        turns: list[tuple[str, bool]] = []
        inner = MemoryObjectStore()
        inner.create(KEY, [bytes(1 << 20)])

        class Noting(ReadWrapper):
            def _read(self, read: Read) -> Buffer:
                turns.append((threading.current_thread().name, current_turn().ahead))
                return read.of(self._wrapped)

        tiered = TieredStore(Noting(inner), DatasetRef("d", b"d" * 16), tier, lambda _: 1 << 20)
        tiered.get_range(KEY, 0, 1000)
        eventually(lambda: len(turns) == 2)
        assert turns[0] == (threading.current_thread().name, False)
        assert turns[1][1]
