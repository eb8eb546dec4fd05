"""Processes that read for a job: a forked one shares its parent's budget or is a reader of its own,
as a spawned one is, and never are there two budgets for one reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from chunkstore.chunk_format import DatasetRef
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.readers import reader_allocation
from dieselfs.allocation.readers.reader_allocation import AllocationSettings, ReaderAllocation
from dieselfs.cache.node.task_folder import VARIABLE
from tests.contracts.key_value_store_contract import fork
from tests.eventually import PATIENCE_S, eventually

SETTINGS = AllocationSettings("resnet", "lmdb:///nowhere")
DATASET = DatasetRef("pets", bytes(16))
RATE = 8e6


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderDirectory:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(reader_allocation, "_FIRST_S", PATIENCE_S)  # then the rate is known
    made = FolderDirectory(tmp_path / f"dieselfs-allocations-{os.geteuid()}")
    made.allocate_remote_io("resnet", RATE, origin="hand")
    return made


def take(allocation: ReaderAllocation) -> None:
    budget = allocation.payer()
    assert budget is not None
    assert budget.bytes_per_s is not None
    budget.take(1000)


def ended(child: int) -> None:
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_of_a_reader_shares_its_budget_and_its_lease(directory: FolderDirectory) -> None:
    allocation = ReaderAllocation(SETTINGS, DATASET)
    take(allocation)
    for _ in range(3):
        ended(fork(lambda: take(allocation)))
    [lease] = directory.leases()
    assert (lease.reader, lease.pid) == (allocation.id, os.getpid())
    assert allocation.statistics().used_bytes == 4000
    allocation.close()


def test_a_child_that_is_forked_while_its_parent_asks_does_not_hang(
    directory: FolderDirectory,
) -> None:
    allocation = ReaderAllocation(SETTINGS, DATASET)
    for _ in range(20):
        allocation.begin()
        ended(fork(lambda: allocation.payer() and None))
    allocation.close()


def read_until(allocation: ReaderAllocation, ready: Event, stop: Event) -> None:
    """Read as a worker does, in a process of its own."""
    reader_allocation._FIRST_S = PATIENCE_S  # type: ignore[misc]  # as in this one, if spawned
    take(allocation)
    ready.set()
    stop.wait(PATIENCE_S)
    allocation.close()


def start_forked(allocation: ReaderAllocation, ready: Event, stop: Event) -> Callable[[], None]:
    child = fork(lambda: read_until(allocation, ready, stop))
    return lambda: ended(child)


def start_spawned(allocation: ReaderAllocation, ready: Event, stop: Event) -> Callable[[], None]:
    process = get_context("spawn").Process(target=read_until, args=(allocation, ready, stop))
    process.start()

    def join() -> None:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
        process.close()

    return join


@pytest.mark.parametrize("start", [start_forked, start_spawned])
def test_processes_of_their_own_divide_what_their_job_has(
    directory: FolderDirectory, start: Callable[..., Callable[[], None]]
) -> None:
    allocation = ReaderAllocation(SETTINGS, DATASET)
    context = get_context("spawn")
    stop, readies = context.Event(), [context.Event() for _ in range(2)]
    joins = [start(allocation, ready, stop) for ready in readies]
    for ready in readies:
        assert ready.wait(PATIENCE_S)

    def is_divided() -> bool:
        leases = directory.leases()
        assert len({lease.reader for lease in leases}) == len(leases)
        rates = [lease.allowed_bytes_per_s for lease in leases]
        return len(leases) == 2 and min(rates) > 0 and sum(rates) <= RATE * 1.01

    eventually(is_divided, "two readers that divide the rate")
    stop.set()
    for join in joins:
        join()
    eventually(lambda: directory.leases() == [], "no reader")
