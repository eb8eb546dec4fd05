"""The jobs for which one process fetches: a budget and a lease each, as long as they are there."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.stores.byte_budget import FLOOR_BYTES_PER_S, ByteBudget
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.readers import reader_allocation
from dieselfs.allocation.readers.job_allocations import JobAllocations
from dieselfs.allocation.readers.observed import CachedDataset
from dieselfs.allocation.readers.reader_allocation import AllocationSettings
from dieselfs.cache.node.task_folder import VARIABLE
from tests.eventually import PATIENCE_S, eventually

DATASET = DatasetRef("pets", bytes(16))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderDirectory:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(reader_allocation, "_FIRST_S", PATIENCE_S)  # budgets are looked at then
    return FolderDirectory(tmp_path / f"dieselfs-allocations-{os.geteuid()}")


@pytest.fixture
def jobs(directory: FolderDirectory) -> Iterator[JobAllocations]:
    made = JobAllocations(AllocationSettings("own", "lmdb:///nowhere"), DATASET)
    yield made
    made.close()


def leases(directory: FolderDirectory) -> list[str]:
    return sorted(lease.job for lease in directory.leases())


def rate(budget: ByteBudget | None) -> float | None:
    assert budget is not None
    return budget.bytes_per_s


def test_each_job_has_its_own_budget_while_it_has_members(
    directory: FolderDirectory, jobs: JobAllocations
) -> None:
    directory.allocate_remote_io("poor", 0, origin="hand")
    directory.allocate_remote_io("own", 5e6, origin="hand")
    jobs.reads(1000)
    jobs.caches(CachedDataset(lambda: 300))
    own, poor, again = jobs.join("own"), jobs.join("poor"), jobs.join("poor")
    assert poor == again
    assert own == jobs.join("own") == jobs.own.payer  # type: ignore[union-attr]
    assert jobs.join(None)() is None
    assert (rate(own()), rate(poor())) == (5e6, FLOOR_BYTES_PER_S)
    eventually(lambda: leases(directory) == ["own", "poor"], "both leases")
    [lease] = [lease for lease in directory.leases() if lease.job == "poor"]
    assert (lease.dataset_bytes, lease.held_bytes) == (1000, 300)
    jobs.leave("poor")
    jobs.leave("own")
    assert jobs.join("poor") == poor
    jobs.leave("poor")
    jobs.leave("poor")
    eventually(lambda: leases(directory) == ["own"], "the end of the other job")
    assert jobs.join("poor") != poor


def test_a_process_without_a_job_pays_nothing_but_its_members_do(
    directory: FolderDirectory,
) -> None:
    settings = AllocationSettings("", "lmdb:///nowhere", asks_unnamed=False)
    assert settings.member_job is None
    jobs = pickle.loads(pickle.dumps(JobAllocations(settings, DATASET)))
    assert jobs.payer() is None
    directory.allocate_remote_io("poor", 0, origin="hand")
    assert rate(jobs.join("poor")()) == FLOOR_BYTES_PER_S
    assert leases(directory) == ["poor"]
    jobs.close()


@pytest.mark.parametrize(("has_tier", "expected"), [(False, 700), (True, 0)])
def test_node_memory_is_told_its_quota_by_whichever_job_knows_it(
    directory: FolderDirectory, has_tier: bool, expected: int
) -> None:
    settings = AllocationSettings("", "lmdb:///nowhere", asks_unnamed=False)
    jobs = JobAllocations(settings, DATASET, has_tier=has_tier)
    told: list[int | None] = []
    jobs.keeps_memory(told.append, lambda: 300)
    directory.allocate_cache_size("pets", DATASET.id.hex(), 700, origin="hand")
    jobs.join("one")
    eventually(lambda: told == [expected], "the quota")
    later: list[int | None] = []
    jobs.keeps_memory(later.append, lambda: 300)
    assert later == [expected]
    directory.allocate_cache_size("pets", DATASET.id.hex(), None, origin="hand")
    eventually(lambda: told == [expected, None], "no quota any more")
    jobs.close()


def test_a_helpers_first_job_ends_with_its_members(directory: FolderDirectory) -> None:
    helper = JobAllocations(AllocationSettings("first", "lmdb:///nowhere"), DATASET)
    helper.serve_members()
    first, second = helper.join("first"), helper.join("second")
    assert (first(), second()) != (None, None)
    eventually(lambda: leases(directory) == ["first", "second"], "both leases")
    helper.leave("first")
    eventually(lambda: leases(directory) == ["second"], "the end of the first job")
    assert helper.join("first") != first
    eventually(lambda: leases(directory) == ["first", "second"], "both leases again")
    helper.close()
    eventually(lambda: leases(directory) == [], "the end")


def test_a_helper_is_told_how_large_its_dataset_is(jobs: JobAllocations) -> None:
    jobs.reads(3 << 20)
    copied = pickle.loads(pickle.dumps(jobs))
    assert copied.own.statistics().dataset_bytes == 3 << 20


def test_a_member_that_joins_as_the_last_one_of_its_job_leaves_pays(
    directory: FolderDirectory,
) -> None:
    helper = JobAllocations(AllocationSettings("first", "lmdb:///nowhere"), DATASET)
    helper.serve_members()
    first = helper.join("first")
    helper._lock = LateLock(lambda: helper.leave("first"))  # type: ignore[assignment]
    again = helper.join("first")
    assert again != first
    assert again == helper.own.payer  # type: ignore[union-attr]
    eventually(lambda: leases(directory) == ["first"], "the lease of the present member")
    helper.close()


def test_a_member_that_joins_before_its_helper_serves_stays(directory: FolderDirectory) -> None:
    helper = JobAllocations(AllocationSettings("first", "lmdb:///nowhere"), DATASET)
    early = helper.join("first")
    helper.serve_members()
    assert helper.join("first") == early
    helper.leave("first")
    assert helper.join("first") == early
    helper.leave("first")
    helper.leave("first")
    assert helper.join("first") != early
    helper.close()


class LateLock:
    """A lock that another thread gets first, once."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._lock, self._first = threading.Lock(), [first]

    def __enter__(self) -> None:
        while self._first:
            self._first.pop()()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_job_that_comes_while_the_process_ends_does_not_wait(
    directory: FolderDirectory, jobs: JobAllocations
) -> None:
    directory.allocate_remote_io("late", 1e6, origin="hand")
    jobs.release()
    budget = jobs.join("late")()
    assert budget is not None
    budget.take(1 << 40)
    budget.take(1 << 40)  # 12 days, if it waited
