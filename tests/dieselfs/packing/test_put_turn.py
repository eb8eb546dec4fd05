"""Whose turn it is among puts into one dataset: who waits for whom, and which puts are dead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import machine_field
from chunkstore.commit_log import create_dataset
from chunkstore.errors import NotFound
from chunkstore.object_keys import commit_key
from chunkstore.put_leases import PutLease, PutState, read_put_leases, write_put_lease
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.errors import Conflict
from dieselfs.packing.put_request import Beside, FileList
from dieselfs.packing.put_turn import PutTurn, started_ticks, targets_of
from dieselfs.packing.source_tree import SourceTree
from tests.eventually import eventually

CAT = (b"cat",)
NEVER_S = 1e9


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def dataset(store: MemoryObjectStore) -> DatasetRef:
    return create_dataset(store, "pets")[0]


def turn(
    store: MemoryObjectStore,
    dataset: DatasetRef,
    targets: tuple[bytes, ...] = CAT,
    clock_s: Callable[[], float] = time.monotonic,
) -> PutTurn:
    return PutTurn(store, dataset, targets, [b"abc"], beat_s=NEVER_S, poll_s=0.01, clock_s=clock_s)


def lease(dataset: DatasetRef, **changed: object) -> PutLease:
    """Of a put on another machine, an hour ago by its clock."""
    hour_ago_ns = time.time_ns() - 3600 * 10**9
    made = PutLease(
        "f" * 32,
        1,
        dataset.id,
        PutState.RUNNING,
        "node-2",
        1,
        1,
        b"others",
        (b"xyz",),
        hour_ago_ns,
        hour_ago_ns,
        CAT,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def leases(store: MemoryObjectStore, dataset: DatasetRef) -> list[PutLease]:
    return list(read_put_leases(store, dataset).values.values())


def test_a_put_alone_takes_its_turn_and_leaves_nothing(
    store: MemoryObjectStore, dataset: DatasetRef
) -> None:
    own = turn(store, dataset)
    assert own.take(Beside.WAIT, pytest.fail) == []
    [shown] = leases(store, dataset)
    assert (shown.state, shown.targets, shown.writers) == (PutState.RUNNING, CAT, (b"abc",))
    assert (shown.pid, shown.started_ticks) == (os.getpid(), started_ticks(os.getpid()))
    own.finish(())
    assert not list(store.list("datasets/pets/puts/"))


def test_a_put_that_fails_leaves_a_lease_that_is_dead(
    store: MemoryObjectStore, dataset: DatasetRef
) -> None:
    failed, later = turn(store, dataset), turn(store, dataset)
    failed.take(Beside.WAIT, pytest.fail)
    failed.fail()
    [dead] = later.take(Beside.WAIT, pytest.fail)
    assert dead.state is PutState.ENDED
    later.finish([dead])
    assert leases(store, dataset) == []


def test_the_second_put_says_so_and_waits(store: MemoryObjectStore, dataset: DatasetRef) -> None:
    first, second = turn(store, dataset), turn(store, dataset)
    first.take(Beside.WAIT, pytest.fail)
    notes: list[str] = []
    taken = threading.Event()

    def wait() -> None:
        second.take(Beside.WAIT, notes.append)
        taken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: bool(notes), "the note")
    assert not taken.is_set()
    first.finish(())
    waiter.join()
    [note] = notes
    assert (
        f"another put into the same paths of pets, on this machine (process {os.getpid()}" in note
    )
    assert "waiting for its end" in note
    second.finish(())


def test_a_put_can_refuse_or_go_on(store: MemoryObjectStore, dataset: DatasetRef) -> None:
    first = turn(store, dataset)
    first.take(Beside.WAIT, pytest.fail)
    second, third = turn(store, dataset), turn(store, dataset)
    with pytest.raises(Conflict, match="is under way"):
        second.take(Beside.REFUSE, pytest.fail)
    second.finish(())
    notes: list[str] = []
    third.take(Beside.ANYWAY, notes.append)
    assert ["stored twice" in note for note in notes] == [True]
    third.finish(())
    first.finish(())


@pytest.mark.parametrize(
    "other",
    [
        {"targets": (b"dog",)},
        {"dataset_id": bytes(16)},
        {"state": PutState.ENDED},
        {"state": PutState.WAITING, "began_ns": 1 << 62},
        {"written_ns": time.time_ns() - 3 * 3600 * 10**9},
        {"machine": machine_field(), "pid": os.getpid(), "started_ticks": 1},
    ],
    ids=["other paths", "former dataset", "ended", "waits behind", "long silent", "pid used again"],
)
def test_nobody_waits_for_these(
    store: MemoryObjectStore, dataset: DatasetRef, other: dict[str, object]
) -> None:
    write_put_lease(store, "pets", lease(dataset, **other))
    own = turn(store, dataset)
    own.take(Beside.REFUSE, pytest.fail)
    own.finish(())


def test_a_process_that_was_killed_here_is_dead_at_once(
    store: MemoryObjectStore, dataset: DatasetRef
) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with sleeper:
        here = lease(
            dataset,
            machine=machine_field(),
            pid=sleeper.pid,
            started_ticks=started_ticks(sleeper.pid),
        )
        write_put_lease(store, "pets", here)
        own = turn(store, dataset)
        with pytest.raises(Conflict):
            own.take(Beside.REFUSE, pytest.fail)
        own.finish(())
        sleeper.kill()
    own = turn(store, dataset)
    assert own.take(Beside.REFUSE, pytest.fail) == [here]
    own.finish(())


def test_a_lease_that_is_not_renewed_ends_after_thirty_seconds(
    store: MemoryObjectStore, dataset: DatasetRef
) -> None:
    now = [100.0]
    write_put_lease(store, "pets", lease(dataset))
    own = turn(store, dataset, clock_s=lambda: now[0])
    notes: list[str] = []
    waiter = threading.Thread(target=own.take, args=(Beside.WAIT, notes.append))
    waiter.start()
    eventually(lambda: bool(notes), "the note")
    now[0] += 29
    write_put_lease(store, "pets", lease(dataset, number=2))  # it lives; seen at this time
    eventually(lambda: own._seen["f" * 32][0] == 2, "a look at the next number")
    now[0] += 29
    assert waiter.is_alive()
    now[0] += 2
    waiter.join()
    assert "on node-2" in notes[0]
    own.finish(())


def test_a_lease_is_renewed(store: MemoryObjectStore, dataset: DatasetRef) -> None:
    own = PutTurn(store, dataset, CAT, [b"abc"], beat_s=0.001)
    own.take(Beside.WAIT, pytest.fail)
    eventually(lambda: leases(store, dataset)[0].number > 5, "renewals")
    own.finish(())
    assert leases(store, dataset) == []


def test_a_dataset_that_is_removed_ends_the_wait(
    store: MemoryObjectStore, dataset: DatasetRef
) -> None:
    write_put_lease(store, "pets", lease(dataset))
    store.delete(commit_key("pets", 1))
    own = turn(store, dataset)
    with pytest.raises(NotFound):
        own.take(Beside.WAIT, lambda note: None)
    own.finish(())


def test_targets_are_the_names_at_the_top(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "few" / name).mkdir(parents=True)
    (tmp_path / "many").mkdir()
    for number in range(300):
        (tmp_path / f"many/{number}").touch()

    def targets(*sources: SourceTree | FileList, delete: bool = False) -> Sequence[bytes]:
        return targets_of(sources, delete=delete)

    few = SourceTree(os.fsencode(tmp_path / "few"), b"")
    assert targets(few) == (b"cat", b"dog")
    assert targets(few, delete=True) == (b"",)
    assert targets(replace(few, target=b"a")) == (b"a/cat", b"a/dog")
    assert targets(SourceTree(os.fsencode(tmp_path / "many"), b"b")) == (b"b",)
    assert targets(SourceTree(os.fsencode(tmp_path / "many/1"), b"c/1")) == (b"c/1",)
    listed = FileList(b".", b"d", [b"x/1", b"x/2", b".y"])
    assert targets(listed, few) == (b"cat", b"d/.y", b"d/x", b"dog")
    assert targets(SourceTree(b"/missing", b"e")) == (b"e",)
