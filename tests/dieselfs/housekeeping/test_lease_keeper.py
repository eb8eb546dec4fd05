"""A lease is kept: announced, renewed, taken back, and never in the way of what it serves."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import CommitLog, create_dataset
from chunkstore.errors import Denied, Unavailable
from chunkstore.leases import BEAT_S, Lease, read_leases
from chunkstore.removal import finish_removal, mark_removed
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.housekeeping.lease_keeper import GOODBYE_S, LeaseKeeper
from tests.chunkstore.packed import StoreWrapper
from tests.eventually import PATIENCE_S, eventually, scaled_by_load

LOGGER = "dieselfs.housekeeping.lease_keeper"


class Moody(StoreWrapper):
    """Fails, or hangs, when told to; and counts."""

    def __init__(self, inner: MemoryObjectStore) -> None:
        super().__init__(inner)
        self.failure: BaseException | None = None
        self.open = threading.Event()
        self.open.set()
        self.calls: list[str] = []

    def before(self, call: str, key: str) -> None:
        self.calls.append(call)
        self.open.wait()
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def store() -> Iterator[Moody]:
    made = Moody(MemoryObjectStore())
    yield made
    made.open.set()
    eventually(lambda: "lease" not in [t.name for t in threading.enumerate()], "the thread's end")


@pytest.fixture
def dataset(store: Moody) -> DatasetRef:
    found, _ = create_dataset(store.inner, "pets")
    return found


def patient_keeper(store: Moody, dataset: DatasetRef, beat_s: float = BEAT_S) -> LeaseKeeper:
    """Return a keeper whose end waits for the deletion, though its thread is late."""
    return LeaseKeeper(store, dataset, beat_s=beat_s, goodbye_s=lambda: PATIENCE_S)


def leases(store: Moody, dataset: DatasetRef) -> list[Lease]:
    return list(read_leases(store.inner, dataset).values.values())


def served(store: Moody, dataset: DatasetRef) -> Callable[[], list[tuple[int, ...]]]:
    return lambda: [lease.generations for lease in leases(store, dataset)]


def test_announced_and_taken_back(store: Moody, dataset: DatasetRef) -> None:
    now = served(store, dataset)
    with patient_keeper(store, dataset) as keeper:
        assert now() == []
        keeper.serve(7)
        eventually(lambda: now() == [(7,)], "the lease")
        [lease] = leases(store, dataset)
        assert (lease.pid, lease.ttl_s, lease.lease_id) == (os.getpid(), 3600, keeper.lease_id)
        assert abs(lease.written_ns - time.time_ns()) < 600 * 10**9
        keeper.serve(9)
        eventually(lambda: now() == [(7, 9)], "what a refresh adds")
        keeper.serve(7)  # says nothing new
    assert now() == []
    assert not any("leases" in info.key for info in store.inner.list(""))
    assert store.calls == ["get", "create", "get", "create", "delete", "delete"]


def test_the_first_write_can_be_waited_for(store: Moody, dataset: DatasetRef) -> None:
    with patient_keeper(store, dataset) as keeper:
        keeper.serve(7)
        assert keeper.is_written(7, PATIENCE_S)
        assert served(store, dataset)() == [(7,)]
        assert not keeper.is_written(9, PATIENCE_S)


@pytest.mark.parametrize("failure", [Denied("read-only"), ZeroDivisionError()])
def test_a_write_that_fails_is_not_waited_for(
    store: Moody, dataset: DatasetRef, failure: Exception
) -> None:
    store.failure = failure
    with patient_keeper(store, dataset) as keeper:
        keeper.serve(7)
        assert not keeper.is_written(7, PATIENCE_S)
        store.failure = None


def test_a_write_that_hangs_is_not_waited_for(store: Moody, dataset: DatasetRef) -> None:
    store.open.clear()
    with LeaseKeeper(store, dataset) as keeper:
        keeper.serve(7)
        assert not keeper.is_written(7, 0.01)
        store.open.set()


def test_renewed_at_every_beat(store: Moody, dataset: DatasetRef) -> None:
    with patient_keeper(store, dataset, beat_s=0.01) as keeper:
        keeper.serve(7)
        eventually(lambda: any(lease.number > 5 for lease in leases(store, dataset)), "renewals")
        eventually(lambda: len(list(store.inner.list("datasets/pets/leases/"))) == 1, "one number")
    assert leases(store, dataset) == []


def test_nothing_served_is_nothing_written(store: Moody, dataset: DatasetRef) -> None:
    with LeaseKeeper(store, dataset, beat_s=0.001):
        pass
    assert store.calls == []


def test_a_store_that_refuses_is_told_once(
    store: Moody, dataset: DatasetRef, caplog: pytest.LogCaptureFixture
) -> None:
    store.failure = Denied("read-only file system")
    with caplog.at_level(logging.INFO, LOGGER), LeaseKeeper(store, dataset, beat_s=0.001) as keeper:
        keeper.serve(7)
        eventually(lambda: len(store.calls) > 10, "many beats")
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "grace period" in warnings[0].getMessage()
    assert "read-only" in warnings[0].getMessage()


def test_a_store_that_comes_back_gets_the_lease_at_the_next_beat(
    store: Moody, dataset: DatasetRef, caplog: pytest.LogCaptureFixture
) -> None:
    store.failure = Unavailable("out")
    keeper = patient_keeper(store, dataset, beat_s=0.01)
    with caplog.at_level(logging.INFO, LOGGER), keeper:
        keeper.serve(7)
        eventually(lambda: len(store.calls) > 3, "tries")
        store.failure = None
        eventually(lambda: served(store, dataset)() == [(7,)], "the lease")
        eventually(lambda: "written again" in caplog.text, "the all-clear")
    assert leases(store, dataset) == []


def test_a_dead_store_delays_neither_beginning_nor_end(store: Moody, dataset: DatasetRef) -> None:
    store.open.clear()
    began = time.monotonic()
    keeper = LeaseKeeper(store, dataset)
    with keeper:
        keeper.serve(7)
        eventually(lambda: store.calls, "the call that hangs")
    keeper.close()
    assert GOODBYE_S <= time.monotonic() - began < scaled_by_load(30)


def test_a_process_ends_while_its_store_hangs() -> None:
    program = """
import threading
from chunkstore.chunk_format import DatasetRef
from dieselfs.housekeeping.lease_keeper import LeaseKeeper

hangs = threading.Event()
class Hanging:
    def __getattr__(self, name):
        return lambda *arguments: (hangs.set(), threading.Event().wait())

with LeaseKeeper(Hanging(), DatasetRef("pets", bytes(16))) as keeper:
    keeper.serve(1)
    assert hangs.wait(60)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_a_removed_dataset_does_not_come_to_life_again(store: Moody, dataset: DatasetRef) -> None:
    with LeaseKeeper(store, dataset, beat_s=0.01) as keeper:
        keeper.serve(7)
        eventually(lambda: leases(store, dataset), "the lease")
        mark_removed(store.inner, CommitLog(store.inner, dataset))
        finish_removal(store.inner, "pets")
        calls = len(store.calls)
        eventually(lambda: len(store.calls) > calls + 5, "more beats")
        create_dataset(store.inner, "pets")
        eventually(lambda: len(store.calls) > calls + 10, "beats in the next life")
        eventually(
            lambda: not any("leases" in info.key for info in store.inner.list("")),
            "no lease, also none that was being written when the dataset was removed",
        )


def test_a_forked_child_leaves_the_lease_alone(store: Moody, dataset: DatasetRef) -> None:
    with LeaseKeeper(store, dataset) as keeper:
        keeper.serve(7)
        eventually(lambda: leases(store, dataset), "the lease")
        child = os.fork()
        if not child:
            keeper.close()
            os._exit(0 if len(leases(store, dataset)) == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(leases(store, dataset)) == 1
