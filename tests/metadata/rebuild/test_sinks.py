"""What a rebuilt index is put into: an empty one, one with faults of every kind, one that is only
looked at; cut off at every call."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata import keys
from metadata.dataset_state import is_rebuilding
from metadata.errors import IndexBehind
from metadata.kv.key_value_store import KeyValueStore, MapUpdate
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.kv.memory import MemoryStore
from metadata.kv.redis_server import RedisServerStore
from metadata.rebuild.compared_index import ComparedIndex
from metadata.rebuild.empty_index import EmptyIndex
from metadata.rebuild.index_difference import Fault, IndexDifference
from metadata.rebuild.map_sink import MapKind
from metadata.rebuild.repaired_index import RepairedIndex
from tests.metadata.commit_histories import (
    DATASET,
    chunk_id,
    delete,
    dump,
    history,
    make_directory,
    put,
    random_purged_history,
)
from tests.metadata.rebuild.histories import Maps, followed, maps_of, rebuild_into, store_of
from tests.metadata.stepped_index import Piecewise

TALE = history(
    [
        [[put(b"a/b/x", 3), put(b"a/y", 5), make_directory(b"c", 0o700)]],
        [[put(b"a/y", 7), put(b"top", 1)], [delete(b"a/b/x", 2), put(b"a/b/z", 2)]],
        [[put(b"c/d/e/w", 9)]],
    ]
)
LATER = history([*TALE.entries[1:], [[put(b"a/y", 1), put(b"n/e/w", 2), delete(b"top", 4)]]])
TOP_FILES = keys.files_of(DATASET.id, b"")
A_FILES = keys.files_of(DATASET.id, b"a")
STATE = keys.state_of(DATASET.id)
CHUNKS = keys.chunks_of(DATASET.id)


@pytest.fixture(params=["lmdb", "redis"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueStore]:
    if request.param == "lmdb":
        store: KeyValueStore = LmdbFileStore(tmp_path / "index")
    else:
        store = RedisServerStore(request.getfixturevalue("redis_url"), split_above=4)
    yield store
    store.close()


def test_into_a_real_database(index: KeyValueStore) -> None:
    rebuild_into(EmptyIndex(index), TALE)
    assert dump(index, TALE) == maps_of(followed(TALE))


def test_mending_in_a_real_database(index: KeyValueStore) -> None:
    LATER.apply_to(index)
    rebuild_into(RepairedIndex(index), TALE)
    assert dump(index, LATER) == maps_of(followed(TALE))


def test_any_damage_is_found_and_mended() -> None:
    """Every record once: a flipped bit, gone, a value of a later commit, too short to have a
    stamp."""
    right = maps_of(followed(TALE))
    places = [(key, field) for key, fields in right.items() for field in fields]
    for key, field in places:
        value = right[key][field]
        late = (2**50).to_bytes(8, "big") + value[8:]
        flipped = bytes([*value[:30], value[30] ^ 4, *value[31:]])
        for wrong, fault in (
            (None, Fault.MISSING),
            (late, Fault.DAMAGED),
            (flipped, Fault.DAMAGED),
            (b"short", Fault.DAMAGED),
            (b"", Fault.DAMAGED),
        ):
            damaged = {k: dict(fields) for k, fields in right.items()}
            if wrong is None:
                del damaged[key][field]
            else:
                damaged[key][field] = wrong
            index = store_of(damaged)
            rebuild_into(compared := ComparedIndex(index), TALE)
            assert [(d.fault) for d in compared.differences] == [fault]
            assert compared.counts.total() == 1
            assert maps_of(index) == damaged  # looking changes nothing
            rebuild_into(repaired := RepairedIndex(index), TALE)
            assert maps_of(index) == right
            assert (repaired.changed, repaired.removed) == (1, 0)


def test_differences_say_what_and_where() -> None:
    index = followed(LATER)
    rebuild_into(compared := ComparedIndex(index), TALE)
    assert set(compared.differences) == {
        IndexDifference(Fault.DIFFERENT, MapKind.FILES, b"a/y"),
        IndexDifference(Fault.DIFFERENT, MapKind.FILES, b"top"),
        IndexDifference(Fault.DIFFERENT, MapKind.DIRECTORIES, b"a"),
        IndexDifference(Fault.EXTRA, MapKind.DIRECTORIES, b"n"),
        IndexDifference(Fault.EXTRA, MapKind.DIRECTORIES, b"n/e"),
        IndexDifference(Fault.EXTRA, MapKind.FILES, b"n/e/w"),
        IndexDifference(Fault.DIFFERENT, MapKind.CHUNKS, str(chunk_id(2)).encode()),
        IndexDifference(Fault.EXTRA, MapKind.CHUNKS, str(chunk_id(5)).encode()),
        IndexDifference(Fault.DIFFERENT, MapKind.STATE, b"applied"),
        IndexDifference(Fault.DIFFERENT, MapKind.STATE, b"totals"),
    }
    assert compared.counts[Fault.EXTRA, MapKind.DIRECTORIES] == 2
    rebuild_into(short := ComparedIndex(index, listed=3), TALE)
    assert (len(short.differences), short.counts) == (3, compared.counts)


class Watched(MemoryStore):
    """Notes what is put and removed."""

    def __init__(self, maps: Maps) -> None:
        super().__init__()
        self._maps = {key: dict(fields) for key, fields in maps.items()}
        self.puts: list[tuple[bytes, bytes]] = []

    def put(self, phases) -> None:
        self.puts += [(u.key, field) for updates in phases for u in updates for field in u.fields]
        super().put(phases)


def test_what_is_right_is_not_written_again_and_the_state_comes_last() -> None:
    damaged = maps_of(followed(TALE))
    del damaged[A_FILES][b"y"]
    del damaged[STATE]
    index = Watched(damaged)
    rebuild_into(RepairedIndex(index), TALE)
    assert index.puts[:2] == [(STATE, keys.REBUILDING), (A_FILES, b"y")]
    assert sorted(index.puts[2:]) == [(STATE, keys.APPLIED), (STATE, keys.TOTALS)]
    whole = Watched(maps_of(index))
    rebuild_into(RepairedIndex(whole), TALE)
    assert whole.puts == []


def test_what_is_right_stays_readable_at_every_moment() -> None:
    right = maps_of(followed(TALE))
    index = followed(LATER)
    stays = {
        (key, field, value)
        for key, fields in maps_of(index).items()
        for field, value in fields.items()
        if right.get(key, {}).get(field) == value
    }
    assert len(stays) > 8

    def step() -> None:
        for key, field, value in stays:
            assert index._maps[key][field] == value

    rebuild_into(RepairedIndex(Piecewise(index, step)), TALE)
    assert maps_of(index) == right


def test_others_fields_of_the_state_are_let_alone() -> None:
    index = followed(TALE)
    index.put([[MapUpdate(STATE, [keys.HELD], [bytes(24)])]])
    rebuild_into(compared := ComparedIndex(index), TALE)
    rebuild_into(repaired := RepairedIndex(index), TALE)
    assert compared.is_equal
    assert (repaired.changed, repaired.removed) == (0, 0)
    assert index._maps[STATE][keys.HELD] == bytes(24)


@pytest.mark.parametrize("seed", range(2))
def test_an_interrupted_rebuild_is_never_taken_for_an_index(seed: int) -> None:
    """Stopped before every single read, put and removal: nobody applies a commit to what is there,
    and another one finishes it."""
    tale = random_purged_history(random.Random(seed), 5)
    right = maps_of(followed(tale))
    for present in (MemoryStore(), followed(LATER)):
        before = maps_of(present)
        for limit in range(1000):
            index = store_of(before)
            failing = Piecewise.failing_after(index, limit)
            sink = RepairedIndex(failing) if before else EmptyIndex(failing)
            if not failing.stopped(lambda sink=sink: rebuild_into(sink, tale)):
                assert maps_of(index) == right
                break
            if maps_of(index) not in (before, right):
                assert is_rebuilding(index, DATASET.id)
                with pytest.raises(IndexBehind):
                    tale.apply_one(index, len(tale.commits) - 1)
                rebuild_into(compared := ComparedIndex(index), tale)
                assert not compared.is_equal
            rebuild_into(RepairedIndex(index), tale)
            assert maps_of(index) == right
        else:
            raise AssertionError("the limit was never reached")


def test_counts_of_a_wholly_other_index() -> None:
    other = history([[[put(b"o/p/q"), put(b"o/r")]]])
    index = followed(other)
    rebuild_into(repaired := RepairedIndex(index), TALE)
    assert maps_of(index) == maps_of(followed(TALE))
    assert repaired.removed == 4  # o, o/p, o/p/q, o/r
