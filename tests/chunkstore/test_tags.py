"""Tags: what their bytes are, what the greatest number means, and that of racing taggers the later
number stands."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import xxhash

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import create_dataset
from chunkstore.errors import Corrupt, NotFound, Unavailable
from chunkstore.object_keys import tag_key, tags_prefix
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.tags import (
    MAX_BYTES,
    Tag,
    check_tag_name,
    current,
    is_like_an_id,
    read_tags,
    resolve,
    tag,
    untag,
)
from tests.chunkstore.packed import CountingStore, StoreWrapper

ONE, TWO, THREE = (f"{n}-{n:032x}" for n in (1, 2, 3))


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def ref(store: MemoryObjectStore) -> DatasetRef:
    return create_dataset(store, "pets")[0]


def keys(store: MemoryObjectStore) -> list[str]:
    return sorted(info.key for info in store.list(tags_prefix("pets")))


def damage(store: MemoryObjectStore, key: str, data: bytes) -> None:
    store.delete(key)
    store.create(key, [data])


def test_bytes_by_the_document() -> None:
    body = b"DIESELTG" + struct.pack("<HHHHQq", 1, 0, 2, len(TWO), 7, -5) + bytes(range(16))
    body += b"v1" + TWO.encode()
    data = body + xxhash.xxh3_64(body).digest()
    found = Tag("v1", 7, bytes(range(16)), -5, TWO)
    assert found.encode() == data
    assert Tag.decode(data, "v1", 7) == found
    assert found.generation == 2


@pytest.mark.parametrize("snapshot_id", [TWO, ""])
def test_every_flipped_byte_and_every_length_is_found(snapshot_id: str) -> None:
    data = Tag("v1", 7, bytes(16), 5, snapshot_id).encode()
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :]
        with pytest.raises(Corrupt):
            Tag.decode(flipped, "v1", 7)
        with pytest.raises(Corrupt):
            Tag.decode(data[:at], "v1", 7)
    with pytest.raises(Corrupt):
        Tag.decode(data + b"\0", "v1", 7)


@pytest.mark.parametrize(("name", "number"), [("v2", 7), ("v1", 8)])
def test_another_sound_object_is_refused(name: str, number: int) -> None:
    data = Tag("v1", 7, bytes(16), 5, TWO).encode()
    with pytest.raises(Corrupt, match="contains another"):
        Tag.decode(data, name, number)


def test_what_is_no_snapshot_id_is_refused() -> None:
    with pytest.raises(Corrupt, match="which is not a snapshot id"):
        Tag.decode(Tag("v1", 7, bytes(16), 5, "../x").encode(), "v1", 7)


@pytest.mark.parametrize(
    "name", ["v1", "a", "2024-01-15", "ABCDEF", "best.model", "x" * 128, "cafe"]
)
def test_legal_names(name: str) -> None:
    check_tag_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "7",
        "0012",
        "12-8d3f",
        "12-",
        "deadbeef",
        "decade",
        "f" * 32,
        "a/b",
        "-x",
        "x" * 129,
        "ü",
    ],
)
def test_illegal_names(name: str) -> None:
    with pytest.raises(ValueError, match="illegal tag"):
        check_tag_name(name)


@pytest.mark.parametrize("text", ["7", "12-", "12-8d3f", "8d3f01", ONE])
def test_what_an_id_may_be_is_no_tag(text: str) -> None:
    assert is_like_an_id(text)


def tags_of(store: MemoryObjectStore, ref: DatasetRef) -> list[Tag]:
    return current(read_tags(store, ref), ref)


def test_a_tag_is_set_moved_and_removed(store: MemoryObjectStore, ref: DatasetRef) -> None:
    tag(store, "pets", "v1", ONE)
    tag(store, "pets", "best", TWO)
    assert [(t.name, t.snapshot_id) for t in tags_of(store, ref)] == [
        ("best", TWO),
        ("v1", ONE),
    ]
    tag(store, "pets", "v1", THREE)
    assert resolve(store, "pets", "v1").snapshot_id == THREE
    assert keys(store) == [tag_key("pets", "best", 1), tag_key("pets", "v1", 2)]
    untag(store, "pets", "v1")
    assert [t.name for t in tags_of(store, ref)] == ["best"]
    for attempt in (lambda: resolve(store, "pets", "v1"), lambda: untag(store, "pets", "v1")):
        with pytest.raises(NotFound, match="no tag v1"):
            attempt()
    tag(store, "pets", "v1", TWO)
    assert resolve(store, "pets", "v1").number == 4


def test_without_a_dataset(store: MemoryObjectStore) -> None:
    with pytest.raises(NotFound, match="no dataset"):
        tag(store, "pets", "v1", ONE)
    assert list(store.list("")) == []


def test_only_whole_ids(store: MemoryObjectStore, ref: DatasetRef) -> None:
    with pytest.raises(ValueError, match="full id"):
        tag(store, "pets", "v1", "12-8d3f")


def test_a_damaged_tag_is_told_and_never_an_older_number(
    store: MemoryObjectStore, ref: DatasetRef
) -> None:
    tag(store, "pets", "v1", ONE)
    data = store.get(tag_key("pets", "v1", 1))
    tag(store, "pets", "v1", TWO)
    store.create(tag_key("pets", "v1", 1), [data])  # as if it had not been deleted
    tag(store, "pets", "sound", THREE)
    damage(store, tag_key("pets", "v1", 2), store.get(tag_key("pets", "v1", 2))[:-1])
    with pytest.raises(Corrupt, match="dlcmd snapshot untag"):
        resolve(store, "pets", "v1")
    found = read_tags(store, ref)
    assert [t.name for t in current(found, ref)] == ["sound"]
    assert list(found.damaged) == ["v1"]
    assert resolve(store, "pets", "sound").snapshot_id == THREE
    untag(store, "pets", "v1")
    assert [t.name for t in tags_of(store, ref)] == ["sound"]
    assert keys(store) == [tag_key("pets", "sound", 1), tag_key("pets", "v1", 3)]


def test_an_object_that_is_too_long_is_not_read(store: MemoryObjectStore, ref: DatasetRef) -> None:
    class Bounded(StoreWrapper):
        def get_range(self, key: str, offset: int, length: int) -> bytes:
            assert length <= MAX_BYTES + 1
            return super().get_range(key, offset, length)

    store.create(tag_key("pets", "v1", 1), [bytes(1 << 20)])
    with pytest.raises(Corrupt, match="longer than"):
        resolve(Bounded(store), "pets", "v1")


def test_tags_of_a_former_life_mean_nothing(store: MemoryObjectStore, ref: DatasetRef) -> None:
    store.create(tag_key("pets", "v1", 5), [Tag("v1", 5, bytes(16), 0, ONE).encode()])
    assert tags_of(store, ref) == []
    tag(store, "pets", "v1", TWO)
    assert resolve(store, "pets", "v1").number == 6


def test_strange_keys_are_ignored(store: MemoryObjectStore, ref: DatasetRef) -> None:
    for key in (
        "v1/7",
        "v1/x/0000000000000001",
        "0000000000000001",
        "v1/0000000000000001.bak",
        "\x1b[31m/0000000000000001",
    ):
        store.create(tags_prefix("pets") + key, [b"?"])
    assert tags_of(store, ref) == []


def test_of_racing_taggers_the_later_number_stands(
    store: MemoryObjectStore, ref: DatasetRef
) -> None:
    start = threading.Barrier(8)

    def race(number: int) -> Tag:
        start.wait()
        return [tag(store, "pets", "v1", f"{number}-{turn:032x}") for turn in range(20)][-1]

    with ThreadPoolExecutor(8) as pool:
        last = list(pool.map(race, range(8)))
    assert resolve(store, "pets", "v1") == max(last, key=lambda made: made.number)


def test_a_tagger_that_is_late_takes_the_next_number(
    store: MemoryObjectStore, ref: DatasetRef
) -> None:
    class Overtaken(StoreWrapper):
        turns = 3

        def before(self, call: str, key: str) -> None:
            if call == "create" and self.turns:
                self.turns -= 1
                tag(store, "pets", "v1", TWO)

    made = tag(Overtaken(store), "pets", "v1", ONE)
    assert made.number == 4
    assert resolve(store, "pets", "v1") == made


def test_a_tagger_whose_number_is_free_again_takes_a_later_one(
    store: MemoryObjectStore, ref: DatasetRef
) -> None:
    """Two others have moved the tag meanwhile, the second of which has deleted that number."""

    class Overtaken(StoreWrapper):
        turns = 2

        def before(self, call: str, key: str) -> None:
            while call == "create" and self.turns:
                self.turns -= 1
                tag(store, "pets", "v1", TWO)

    tag(store, "pets", "v1", THREE)
    made = tag(Overtaken(store), "pets", "v1", ONE)
    assert resolve(store, "pets", "v1") == made
    assert keys(store) == [tag_key("pets", "v1", made.number)]


def test_a_crash_at_every_call_leaves_the_old_tag_or_the_new_one(
    store: MemoryObjectStore, ref: DatasetRef
) -> None:
    class Dies(StoreWrapper):
        left = 0

        def before(self, call: str, key: str) -> None:
            if not self.left:
                raise Unavailable("dead")
            self.left -= 1

    tag(store, "pets", "v1", ONE)
    seen = set()
    for calls in range(10):
        dying = Dies(store)
        dying.left = calls
        try:
            tag(dying, "pets", "v1", TWO)
        except Unavailable:
            seen.add(resolve(store, "pets", "v1").snapshot_id)
        else:
            break
        tag(store, "pets", "v1", ONE)
    assert seen == {ONE, TWO}
    assert len(keys(store)) == 1


def test_a_tag_that_moves_while_it_is_read(store: MemoryObjectStore, ref: DatasetRef) -> None:
    class Moving(StoreWrapper):
        moves = 5

        def before(self, call: str, key: str) -> None:
            if call == "get_range" and self.moves:
                self.moves -= 1
                tag(store, "pets", "v1", TWO)

    tag(store, "pets", "v1", ONE)
    assert resolve(Moving(store), "pets", "v1").snapshot_id == TWO
    forever = Moving(store)
    forever.moves = 1 << 30
    with pytest.raises(Unavailable, match="try again"):
        resolve(forever, "pets", "v1")


def test_the_cost_of_tagging(store: MemoryObjectStore, ref: DatasetRef) -> None:
    tag(store, "pets", "v1", ONE)
    counting = CountingStore(store)
    tag(counting, "pets", "v1", TWO)
    assert counting.calls == ["get", "list", "create", "list", "delete"]
