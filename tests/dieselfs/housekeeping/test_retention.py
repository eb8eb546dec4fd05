"""What may be deleted: the rule over all small cases, then over objects in a store."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import pytest

from chunkstore import tags
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import Commit, create_dataset
from chunkstore.leases import Lease, new_lease_id, write_lease
from chunkstore.object_keys import chunk_key, lease_key, snapshot_key, tag_key
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.housekeeping.retention import (
    GRACE_S,
    Pins,
    RetiredChunk,
    may_be_deleted,
    pins,
    retired_chunks,
    stored_retired_chunks,
)

NS = 1_000_000_000
NOW_NS = 1_700_000_000 * NS
OLD_NS = NOW_NS - (GRACE_S + 1) * NS
YOUNG_NS = NOW_NS - (GRACE_S - 1) * NS


def ref(number: int) -> ChunkRef:
    return ChunkRef(ChunkId(number.to_bytes(16, "big")), 100, 900)


def commit(
    generation: int,
    added: list[int],
    retired: list[int],
    time_ns: int = OLD_NS,
    id: bytes = b"i" * 16,
) -> Commit:
    refs = tuple(ref(n) for n in added)
    return Commit(generation, id, time_ns, refs, tuple(ref(n).id for n in retired))


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def dataset(store: MemoryObjectStore) -> DatasetRef:
    return create_dataset(store, "pets")[0]


def test_protects_is_the_definition_over_all_small_cases() -> None:
    generations = range(1, 7)
    for count in range(4):
        for pinned in combinations(generations, count):
            for added, retired in product(generations, repeat=2):
                needed = any(added <= g < retired for g in pinned)
                assert Pins(pinned).protects(added, retired) == needed, (pinned, added, retired)
                assert Pins(pinned, ("why",)).protects(added, retired)


@pytest.mark.parametrize("time_ns", [OLD_NS, YOUNG_NS])
@pytest.mark.parametrize("pinned", [(), (2,), (3,), (1, 4)])
@pytest.mark.parametrize("unreadable", [(), ("tag v1",)])
def test_both_pins_and_grace_must_agree(
    time_ns: int, pinned: tuple[int, ...], unreadable: tuple[str, ...]
) -> None:
    chunk = RetiredChunk(ref(1), 2, 4, time_ns)
    allowed = time_ns == OLD_NS and pinned in ((), (1, 4)) and not unreadable
    assert may_be_deleted(chunk, Pins(pinned, unreadable), GRACE_S, NOW_NS) == allowed


def test_the_grace_period_ends_to_the_nanosecond() -> None:
    at = RetiredChunk(ref(1), 2, 4, NOW_NS - GRACE_S * NS)
    assert may_be_deleted(at, Pins(), GRACE_S, NOW_NS)
    assert not may_be_deleted(replace(at, retired_ns=at.retired_ns + 1), Pins(), GRACE_S, NOW_NS)
    future = replace(at, retired_ns=NOW_NS + GRACE_S * NS)  # a clock that is ahead
    assert not may_be_deleted(future, Pins(), 0, NOW_NS)


def test_retired_chunks() -> None:
    commits = [
        commit(1, [], []),
        commit(2, [1, 2, 3], []),
        commit(3, [4], [1, 2]),
        commit(4, [], [4, 9]),
    ]
    found = [(c.ref, c.added, c.retired) for c in retired_chunks(commits)]
    assert found == [(ref(1), 2, 3), (ref(2), 2, 3), (ref(4), 3, 4)]
    assert retired_chunks(commits)[0].size_bytes == 1000


def test_what_is_added_again_is_not_retired() -> None:
    commits = [commit(1, [], []), commit(2, [1], []), commit(3, [], [1]), commit(4, [1], [])]
    assert retired_chunks(commits) == []


@pytest.mark.parametrize("present", [[2, 3], [1, 3], [1, 3, 2]])
def test_gaps_are_refused(present: list[int]) -> None:
    with pytest.raises(ValueError, match="without gaps"):
        retired_chunks([commit(g, [], []) for g in present])


def test_what_pins(store: MemoryObjectStore, dataset: DatasetRef) -> None:
    store.create(snapshot_key("pets", f"4-{'ab' * 16}"), [b""])
    store.create(snapshot_key("pets", "notes.txt"), [b""])
    tags.tag(store, "pets", "v1", f"6-{'ab' * 16}")
    tags.tag(store, "pets", "old", f"2-{'ab' * 16}")
    tags.untag(store, "pets", "old")
    lease = Lease(new_lease_id(), 1, dataset.id, (8, 9), "host", 1, NOW_NS)
    write_lease(store, "pets", lease)
    write_lease(
        store, "pets", replace(lease, lease_id=new_lease_id(), written_ns=OLD_NS, generations=(3,))
    )
    former = replace(lease, lease_id=new_lease_id(), dataset_id=bytes(16), generations=(5,))
    write_lease(store, "pets", former)
    assert pins(store, "pets", NOW_NS) == Pins((4, 6, 8, 9))
    assert pins(store, "pets", NOW_NS + 7200 * NS) == Pins((4, 6))
    assert pins(store, "cats", NOW_NS) == Pins()


@pytest.mark.parametrize("key", [tag_key("pets", "v1", 1), lease_key("pets", "ab" * 16, 1)])
def test_what_cannot_be_read_pins_everything(
    store: MemoryObjectStore, dataset: DatasetRef, key: str
) -> None:
    store.create(key, [b"damaged"])
    found = pins(store, "pets", NOW_NS)
    assert found.everything
    assert found.protects(1, 2)
    [reason] = found.unreadable
    assert key.split("/")[3] in reason


def test_deletable_and_waiting_part_what_is_there(
    store: MemoryObjectStore, dataset: DatasetRef
) -> None:
    commits = [
        commit(1, [], []),
        commit(2, [1, 2, 3, 4], []),
        commit(3, [5], [1]),
        commit(4, [6], [2, 5]),
        commit(5, [], [3], YOUNG_NS),
    ]
    for number in (1, 2, 3, 4, 5, 6, 7):
        store.create(chunk_key("pets", ref(number).id), [bytes(1000)])
    store.create("datasets/pets/chunks/strange", [b""])
    store.delete(chunk_key("pets", ref(5).id))

    def numbers(chunks: list[RetiredChunk]) -> list[int]:
        return [int.from_bytes(chunk.ref.id.value, "big") for chunk in chunks]

    def split(*pinned: int) -> tuple[list[int], list[int]]:
        there = stored_retired_chunks(store, dataset, commits)
        deletable = [c for c in there if may_be_deleted(c, Pins(pinned), GRACE_S, NOW_NS)]
        return numbers(deletable), numbers([c for c in there if c not in deletable])

    assert split() == ([1, 2], [3])
    assert split(2) == ([], [1, 2, 3])
    assert split(3) == ([1], [2, 3])
    assert split(4, 5) == ([1, 2], [3])
