"""Snapshots of a dataset that changes meanwhile, and their way through the store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore.errors import Denied, StoreFull, Unavailable
from chunkstore.object_keys import snapshot_key
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.dataset.dataset import Dataset, open_dataset, remove_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.errors import SnapshotNotFound
from dieselfs.snapshots import lifecycle, snapshot_choice
from metadata import keys
from metadata.errors import DatasetNotFound, IndexBehind, SnapshotRefused, SnapshotStale
from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from metadata.snapshot import Snapshot
from tests.chunkstore.packed import StoreWrapper
from tests.metadata.stepped_index import Piecewise


class Hooked:
    """Implements `KeyValueStore`; calls `before_scan` with the number of the scan."""

    def __init__(self, inner: KeyValueStore) -> None:
        self.inner = inner
        self.scans = 0
        self.before_scan: Callable[[int], None] = lambda number: None

    def get_many(self, lookups: Sequence[MapFields]) -> list[list[bytes | None]]:
        return self.inner.get_many(lookups)

    def scan(self, key: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        self.scans += 1
        self.before_scan(self.scans)
        yield from self.inner.scan(key)

    def put(self, phases: Sequence[Sequence[MapUpdate]]) -> None:
        self.inner.put(phases)

    def remove(self, removals: Sequence[MapFields]) -> None:
        self.inner.remove(removals)

    def remove_exactly(self, removals: Sequence[MapUpdate]) -> None:
        self.inner.remove_exactly(removals)

    def drop(self, keys: Sequence[bytes]) -> None:
        self.inner.drop(keys)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def index() -> Hooked:
    return Hooked(MemoryStore())


@pytest.fixture
def dataset(store: MemoryObjectStore, index: Hooked) -> Dataset:
    dataset = open_dataset(store, index, "pets", create=True)
    put(dataset, *(f"{n % 4}/{n % 3}/{n}" for n in range(50)))
    return dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


def put(dataset: Dataset, *paths: str) -> None:
    with DatasetWriter(dataset, target_bytes=4096) as writer:
        for path in paths:
            writer.put(path.encode(), path.encode() * 20, 0o644, len(path))


def paths_in(path: Path) -> tuple[int, list[bytes]]:
    """(generation, files) of a snapshot, verified."""
    Snapshot.verify(path)
    with Snapshot.open(path) as snapshot:
        return snapshot.generation, sorted(snapshot.path_of(n) for n in range(snapshot.file_count))


def paths_in_store(dataset: Dataset) -> tuple[int, list[bytes]]:
    """The same of the commits alone."""
    replayed = Namespace(MemoryStore(), dataset.ref)
    state = replayed.catch_up(dataset.log, dataset.reader)
    files = [
        (listing.path + b"/" if listing.path else b"") + name
        for listing in replayed.walk()
        for name in listing.file_names
    ]
    return state.generation, sorted(files)


def test_a_snapshot_is_what_the_commits_say(dataset: Dataset, folder: Path) -> None:
    path = lifecycle.build(dataset, folder)
    assert paths_in(path) == paths_in_store(dataset)
    assert path.parent == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert re.fullmatch(r"pets-2-\w+\.snapshot", path.name)
    assert lifecycle.build(dataset, folder) == path
    replayed = open_dataset(dataset.store, MemoryStore(), "pets")
    assert lifecycle.build(replayed, folder) == path, "equal content has an equal name"


@pytest.mark.parametrize("at", [1, 2, 3, 8, 15])
def test_a_commit_during_the_scan(dataset: Dataset, index: Hooked, folder: Path, at: int) -> None:
    """A first scan that was disturbed is thrown away; the second one has the new file."""

    def disturb(number: int) -> None:
        if number == index_at:
            index.before_scan = lambda number: None
            put(dataset, "0/0/new", "new/directory/x")

    index_at = index.scans + at
    index.before_scan = disturb
    path = lifecycle.build(dataset, folder)
    assert paths_in(path) == paths_in_store(dataset)
    assert paths_in(path)[0] == 3
    assert lifecycle.list_local(folder, "pets") == [path]


def test_commits_during_every_scan(dataset: Dataset, index: Hooked, folder: Path) -> None:
    """After two disturbed scans the snapshot is made from commits and heads, which nobody
    disturbs."""
    made = [0]

    def disturb(number: int) -> None:
        made[0] += 1
        before, index.before_scan = index.before_scan, lambda number: None
        put(dataset, f"late/{made[0]}")
        index.before_scan = before

    index.before_scan = disturb
    path = lifecycle.build(dataset, folder)
    index.before_scan = lambda number: None
    assert made[0] > 4
    assert paths_in(path) == paths_in_store(dataset)


def test_a_commit_of_which_only_a_part_is_applied(
    dataset: Dataset, index: Hooked, folder: Path
) -> None:
    """The generation applied does not tell of it: what is put first does."""
    for calls in range(40):
        before = dataset.catch_up()
        writer = DatasetWriter(dataset)
        writer._commits._publish = lambda commit, heads: None
        writer.put(b"half/%d" % calls, b"x", 0o644, 1)
        start = index.scans + 3

        def half(
            number: int, start: int = start, calls: int = calls, writer: DatasetWriter = writer
        ) -> None:
            if number == start:
                writer.close()  # now the commit is in the store
                slow = Piecewise.failing_after(index.inner, calls, seed=calls)
                namespace = Namespace(slow, dataset.ref)
                slow.stopped(lambda: namespace.catch_up(dataset.log, dataset.reader))

        index.before_scan = half
        path = lifecycle.build(dataset, folder)
        index.before_scan = lambda number: None
        generation, files = paths_in(path)
        expected_generation, expected = paths_in_store(dataset)
        assert generation in (before.generation, expected_generation)
        there = b"half/%d" % calls in files
        assert there == (generation == expected_generation), calls
        if there:
            assert files == expected


def test_a_damaged_index_is_told_and_the_snapshot_made_from_the_store(
    dataset: Dataset, index: Hooked, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = keys.files_of(dataset.ref.id, b"0/0")
    [[value]] = index.get_many([MapFields(key, [b"0"])])
    assert value is not None
    damages: list[Callable[[], None]] = [
        lambda: index.remove([MapFields(key, [b"0"])]),
        lambda: index.put([[MapUpdate(key, [b"0"], [value[:-1] + bytes([value[-1] ^ 1])])]]),
    ]
    for damage in damages:
        damage()
        caplog.clear()
        assert paths_in(lifecycle.build(dataset, folder)) == paths_in_store(dataset)
        assert "index of pets is damaged" in caplog.text
    assert len(list(folder.iterdir())) == 1


def test_local_snapshots_of_a_former_life_are_told_apart(
    dataset: Dataset, store: MemoryObjectStore, index: Hooked, folder: Path
) -> None:
    put(dataset, "later")  # so that the old life got further than the new one
    old = lifecycle.create(dataset, folder)
    remove_dataset(store, index, "pets")
    again = open_dataset(store, index, "pets", create=True)
    put(again, "x")
    new = lifecycle.create(again, folder)
    assert lifecycle.list_local(folder, "pets") == [new, old]
    assert lifecycle.list_local(folder, "pets", again.ref.id) == [new]
    assert snapshot_choice.newest_known("pets", folder, store) == new
    assert snapshot_choice.newest_fresh("pets", folder, store, index) == new
    with pytest.raises(SnapshotNotFound):
        snapshot_choice.find_snapshot("3", "pets", folder, store)

    class Down(StoreWrapper):
        def before(self, call: str, key: str) -> None:
            raise Unavailable("down")

    assert snapshot_choice.newest_known("pets", folder, Down(store)) == old


def test_what_a_snapshot_is_called() -> None:
    for which in ("25", "25-abc", "25-abcdef0", "abcdef0"):
        assert lifecycle.is_called("25-abcdef0123", which), which
    for which in ("2", "abc", "2-abc", "bcdef0", ""):
        assert not lifecycle.is_called("25-abcdef0123", which), which


def test_publishing_and_pulling(
    dataset: Dataset, store: MemoryObjectStore, folder: Path, tmp_path: Path
) -> None:
    made = []
    for number in range(3):
        put(dataset, f"more/{number}")
        made.append(lifecycle.create(dataset, folder))
    assert lifecycle.publish_snapshot(store, made[0]) == made[0].stem.removeprefix("pets-")
    published = lifecycle.list_published(store, "pets")
    assert [found.generation for found in published] == [3, 4, 5]
    assert [found.size_bytes for found in published] == [path.stat().st_size for path in made]
    assert lifecycle.list_local(folder, "pets") == made
    assert lifecycle.list_local(folder, "pet") == lifecycle.list_local(tmp_path / "none", "x") == []
    other = tmp_path / "other"
    for which, path in (
        (None, made[2]),
        ("3", made[0]),
        (published[1].snapshot_id, made[1]),
        (published[1].snapshot_id[:5], made[1]),
    ):
        pulled = lifecycle.pull(store, "pets", which, other)
        assert pulled.name == path.name
        assert pulled.read_bytes() == path.read_bytes()
    assert other.stat().st_mode & 0o777 == 0o700
    assert lifecycle.pull(store, "pets", None, other) == other / made[2].name
    for which, name in (("9", "pets"), (None, "cars"), ("zzz", "pets")):
        with pytest.raises(SnapshotNotFound, match=f"of {name}") as refused:
            lifecycle.pull(store, name, which, other)
        assert "dlcmd snapshot create" in str(refused.value.hint)
    unpublished = lifecycle.create(dataset, tmp_path / "third", publish=False)
    assert unpublished.name == made[2].name
    assert len(lifecycle.list_published(store, "pets")) == 3


class Takes(StoreWrapper):
    """A store that creates nothing, for a reason."""

    def __init__(self, inner: MemoryObjectStore, error: Exception) -> None:
        super().__init__(inner)
        self.error = error

    def before(self, call: str, key: str) -> None:
        if call == "create":
            raise self.error


@pytest.mark.parametrize("error", [Denied("no; check"), StoreFull("full; free space")])
def test_a_snapshot_that_the_store_does_not_take_stays_here_for_who_reads(
    dataset: Dataset, store: MemoryObjectStore, folder: Path, error: Exception
) -> None:
    refusing = replace(dataset, store=Takes(store, error))
    with pytest.raises(type(error)):
        lifecycle.create(refusing, folder)
    said: list[str] = []
    path = lifecycle.create(refusing, folder, unpublished=said.append)
    assert paths_in(path) == paths_in_store(dataset)
    assert said == [
        "cannot publish the snapshot, which stays on this machine: " + str(error).partition(";")[0]
    ]
    assert lifecycle.list_published(store, "pets") == []
    index = dataset.index
    assert snapshot_choice.newest_fresh("pets", folder, refusing.store, index) == path
    with pytest.raises(Unavailable):  # nothing is known of what was stored
        lifecycle.create(
            replace(dataset, store=Takes(store, Unavailable("out"))),
            folder,
            unpublished=said.append,
        )


def test_an_exact_generation_is_not_a_prefix(
    dataset: Dataset, store: MemoryObjectStore, folder: Path
) -> None:
    lifecycle.create(dataset, folder)
    while dataset.namespace.state().generation < 20:
        put(dataset, f"g{dataset.namespace.state().generation}")
    lifecycle.create(dataset, folder)
    assert paths_in(lifecycle.pull(store, "pets", "2", folder))[0] == 2
    assert paths_in(lifecycle.pull(store, "pets", "20", folder))[0] == 20
    with pytest.raises(SnapshotNotFound):
        lifecycle.pull(store, "pets", "1", folder)


@pytest.mark.parametrize("how", ["flipped", "short", "empty", "foreign"])
def test_a_damaged_published_snapshot_is_refused_and_not_kept(
    dataset: Dataset, store: MemoryObjectStore, folder: Path, tmp_path: Path, how: str
) -> None:
    path = lifecycle.create(dataset, folder)
    [found] = lifecycle.list_published(store, "pets")
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 4
    elif how == "short":
        del data[-100:]
    elif how == "empty":
        data.clear()
    else:
        other = open_dataset(store, MemoryStore(), "cars", create=True)
        data = bytearray(lifecycle.build(other, folder).read_bytes())
    key = snapshot_key("pets", found.snapshot_id)
    store.delete(key)
    store.create(key, [bytes(data)])
    target = tmp_path / "target"
    with pytest.raises(SnapshotRefused):
        lifecycle.pull(store, "pets", None, target)
    assert list(target.iterdir()) == []


def test_a_damaged_local_file_is_pulled_again(
    dataset: Dataset, store: MemoryObjectStore, folder: Path
) -> None:
    path = lifecycle.create(dataset, folder)
    good = path.read_bytes()
    with Snapshot.open(path) as cached:
        path.unlink()  # never written to: somebody may have it mapped
        path.write_bytes(good[:-7] + b"damaged")
        assert lifecycle.pull(store, "pets", None, folder) == path
        assert path.read_bytes() == good
        assert cached.resolve(b"0/0/0") is not None
    assert list(folder.iterdir()) == [path]


def test_freshness(dataset: Dataset, store: MemoryObjectStore, index: Hooked, folder: Path) -> None:
    with Snapshot.open(lifecycle.build(dataset, folder)) as snapshot:
        lifecycle.check_fresh(snapshot, index)
        with pytest.raises(IndexBehind, match="check --index"):
            lifecycle.check_fresh(snapshot, MemoryStore())
        put(dataset, "new")
        with pytest.raises(
            SnapshotStale,
            match="generation 2, but the dataset is at 3: create a new one with --refresh",
        ):
            lifecycle.check_fresh(snapshot, index)
        remove_dataset(store, index, "pets")
        with pytest.raises(IndexBehind):
            lifecycle.check_fresh(snapshot, index)
        again = open_dataset(store, index, "pets", create=True)
        put(again, "x")
        with pytest.raises(SnapshotStale, match="belongs to a removed dataset"):
            lifecycle.check_fresh(snapshot, index)
    assert lifecycle.list_published(store, "pets") == []


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_snapshot_of_a_removed_dataset_is_not_published(
    tmp_path: Path, *, is_made_again: bool
) -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    path = lifecycle.build(open_dataset(store, index, "pets", create=True), tmp_path)
    remove_dataset(store, index, "pets")
    if is_made_again:
        open_dataset(store, index, "pets", create=True)
    with pytest.raises(DatasetNotFound, match="has been removed"):
        lifecycle.publish_snapshot(store, path)
    assert lifecycle.list_published(store, "pets") == []


def test_a_published_snapshot_of_a_former_life_goes_with_it(
    dataset: Dataset, store: MemoryObjectStore, index: Hooked, folder: Path
) -> None:
    lifecycle.create(dataset, folder)
    remove_dataset(store, index, "pets")
    with pytest.raises(SnapshotNotFound):
        lifecycle.pull(store, "pets", None, folder)


def test_an_empty_dataset(store: MemoryObjectStore, folder: Path) -> None:
    dataset = open_dataset(store, MemoryStore(), "empty", create=True)
    assert paths_in(lifecycle.create(dataset, folder)) == (1, [])
