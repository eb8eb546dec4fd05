"""fsck over chunks, commits and a sound index: what is found, and exactly which files it hits."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkstore.commit_log import Commit
from chunkstore.errors import Corrupt, Unavailable
from chunkstore.object_keys import commit_key
from chunkstore.stores.object_store import ObjectStore
from dieselfs.checking import Finding, FindingKind, FsckReport, Verdict, fsck
from dieselfs.client import Client
from dieselfs.snapshots import lifecycle
from metadata.errors import DatasetNotFound
from metadata.kv.memory import MemoryStore
from tests.chunkstore.packed import CountingStore, StoreWrapper
from tests.dieselfs.checking.made_dataset import NAME, MadeDataset, some_files


@pytest.fixture
def made() -> MadeDataset:
    made = MadeDataset()
    made.put(some_files())
    return made


def check(made: MadeDataset, store: ObjectStore | None = None) -> FsckReport:
    return fsck(store or made.store, made.index, NAME)


def only(report: FsckReport) -> Finding:
    [finding] = report.findings
    assert report.verdict is Verdict.DAMAGED
    return finding


def test_a_sound_dataset_is_clean(made: MadeDataset, tmp_path: Path) -> None:
    lifecycle.create(made.open(), tmp_path / "snapshots")
    made.put(some_files(10, "more/"))
    report = fsck(made.store, made.index, NAME, snapshot_folder=tmp_path / "snapshots")
    assert (report.findings, report.verdict) == ((), Verdict.CLEAN)
    assert (report.generation, report.chunks) == (3, len(made.objects()))
    assert (report.snapshots, report.local_snapshots) == (1, 1)


def test_it_reads_each_head_once_and_changes_nothing(made: MadeDataset) -> None:
    counted = CountingStore(made.store)
    check(made, counted)
    assert counted.calls.count("get_range") == len(made.objects())
    assert not {"create", "delete", "stat"} & set(counted.calls)
    assert counted.calls.count("list") <= 5


def test_there_is_no_such_dataset(made: MadeDataset) -> None:
    with pytest.raises(DatasetNotFound):
        fsck(made.store, made.index, "cows")


def test_one_flipped_bit_in_every_byte_of_a_head_is_found() -> None:
    made = MadeDataset()
    made.put({"a/1": b"one", "a/2": b"two", "b": b"three"})
    [key] = made.objects()
    chosen = random.Random(1)
    for at in range(made.head_bytes(key)):
        sound = made.store.get(key)
        made.flip(key, at, chosen.randrange(8))
        finding = only(check(made))
        assert finding.kind in (FindingKind.CHUNK_HEAD, FindingKind.CHUNK_FOREIGN), f"byte {at}"
        assert (finding.object, finding.files) == (key, (b"a/1", b"a/2", b"b"))
        made.replace(key, sound)
    assert check(made).verdict is Verdict.CLEAN


DAMAGE: dict[str, tuple[FindingKind, Callable[[MadeDataset, str, str], bytes | None]]] = {
    "missing": (FindingKind.CHUNK_MISSING, lambda made, key, other: None),
    "empty": (FindingKind.CHUNK_LENGTH, lambda made, key, other: b""),
    "truncated in its head": (
        FindingKind.CHUNK_LENGTH,
        lambda made, key, other: made.store.get(key)[:100],
    ),
    "truncated after its head": (
        FindingKind.CHUNK_LENGTH,
        lambda made, key, other: made.store.get(key)[: made.head_bytes(key)],
    ),
    "another valid chunk": (
        FindingKind.CHUNK_FOREIGN,
        lambda made, key, other: made.store.get(other),
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_chunk_hits_the_files_in_it_and_no_others(made: MadeDataset, case: str) -> None:
    kind, damaged = DAMAGE[case]
    key, other = made.objects()[1:3]
    paths = made.paths(key)
    made.replace(key, damaged(made, key, other))
    finding = only(check(made))
    assert (finding.kind, finding.object, finding.files) == (kind, key, paths)
    assert finding.repair is None
    assert "restore" in finding.advice


def test_a_chunk_of_another_dataset_under_the_name(made: MadeDataset) -> None:
    cows = MadeDataset(made.store, made.index, "cows")
    cows.put(some_files())
    key = made.objects()[0]
    paths = made.paths(key)
    made.replace(key, made.store.get(cows.objects()[0]))
    assert only(check(made)).files == paths


def test_the_same_chunk_of_a_dataset_with_another_id(made: MadeDataset) -> None:
    """Its id, lengths and checksums are right: only the dataset's id is not."""
    import struct

    import xxhash

    key = made.objects()[0]
    paths = made.paths(key)
    data = bytearray(made.store.get(key))
    head = made.head_bytes(key)
    data[64] ^= 1  # the dataset's id is the header's first field
    struct.pack_into("<Q", data, 40, xxhash.xxh3_64_intdigest(bytes(data[64:head])))
    data[56:64] = xxhash.xxh3_64_digest(bytes(data[:56]))
    made.replace(key, bytes(data))
    finding = only(check(made))
    assert (finding.kind, finding.files) == (FindingKind.CHUNK_FOREIGN, paths)


def test_a_longer_chunk_hits_no_file(made: MadeDataset) -> None:
    key = made.objects()[0]
    made.replace(key, made.store.get(key) + b"?")
    finding = only(check(made))
    assert (finding.kind, finding.files) == (FindingKind.CHUNK_LENGTH, ())


def test_files_deleted_or_replaced_since_are_not_hit(made: MadeDataset) -> None:
    key = made.objects()[0]
    deleted, replaced, *left = (path.decode() for path in made.paths(key))
    with Client(made.open(), snapshot_folder=Path("/nonexistent")) as client:
        client.delete(deleted)
        client.put(b"newer", replaced)
    made.replace(key, None)
    assert only(check(made)).files == tuple(path.encode() for path in left)


def test_each_kept_snapshot_tells_how_many_of_its_files_are_hit(
    made: MadeDataset, tmp_path: Path
) -> None:
    key = made.objects()[0]
    paths = made.paths(key)
    older = lifecycle.create(made.open(), tmp_path)
    made.put({paths[0].decode(): b"newer"})
    newer = lifecycle.create(made.open(), tmp_path)
    made.replace(key, None)
    finding = only(check(made))
    assert finding.files == paths[1:]
    names = [path.stem.removeprefix(f"{NAME}-") for path in (older, newer)]
    assert [(hit.snapshot_id, hit.files) for hit in finding.snapshots] == [
        (names[0], len(paths)),
        (names[1], len(paths) - 1),
    ]


class TestWithoutAnIndexThatKnows:
    """The files are found by heads and, where a head is gone, by a snapshot."""

    def test_a_sound_head_tells(self, made: MadeDataset) -> None:
        key = made.objects()[0]
        data = made.store.get(key)
        made.replace(key, data[:-1])
        made.index = MemoryStore()
        [chunk, index] = check(made).findings
        assert (chunk.kind, index.kind) == (FindingKind.CHUNK_LENGTH, FindingKind.INDEX_BEHIND)
        assert chunk.files == (made_last_file(made, key, data),)

    def test_a_snapshot_tells(self, made: MadeDataset, tmp_path: Path) -> None:
        key = made.objects()[0]
        paths = made.paths(key)
        lifecycle.create(made.open(), tmp_path)
        made.put({paths[0].decode(): b"newer"})
        made.replace(key, None)
        made.index = MemoryStore()
        assert check(made).findings[0].files == paths[1:]

    def test_a_file_here_tells(self, made: MadeDataset, tmp_path: Path) -> None:
        key = made.objects()[0]
        paths = made.paths(key)
        lifecycle.create(made.open(), tmp_path, publish=False)
        made.replace(key, None)
        report = fsck(made.store, MemoryStore(), NAME, snapshot_folder=tmp_path)
        assert report.findings[0].files == paths


def made_last_file(made: MadeDataset, key: str, data: bytes) -> bytes:
    """The file that has the last byte of a chunk that held `data`."""
    before = made.replace(key, data)
    path = made.file_at(key, len(data) - 1)
    made.replace(key, before)
    return path


@pytest.mark.parametrize("generation", [1, 2, 3])
def test_a_missing_commit(made: MadeDataset, generation: int) -> None:
    made.put({"later.jpg": b"later"})
    made.put({"last.jpg": b"last"})
    made.replace(commit_key(NAME, generation), None)
    finding = only(check(made))
    assert (finding.kind, finding.object) == (
        FindingKind.COMMIT_MISSING,
        commit_key(NAME, generation),
    )
    expected = {1: (), 2: tuple(sorted(map(str.encode, some_files()))), 3: (b"later.jpg",)}
    assert finding.files == expected[generation]


@pytest.mark.parametrize("at", [0, 9, 30, 60, -1])
def test_a_damaged_commit(made: MadeDataset, at: int) -> None:
    made.put({"later.jpg": b"later"})
    made.flip(commit_key(NAME, 2), at)
    finding = only(check(made))
    assert finding.kind is FindingKind.COMMIT_DAMAGED
    assert finding.files == tuple(sorted(map(str.encode, some_files())))


def test_another_commit_under_the_name(made: MadeDataset) -> None:
    made.put({"later.jpg": b"later"})
    made.replace(commit_key(NAME, 3), made.store.get(commit_key(NAME, 2)))
    finding = only(check(made))
    assert (finding.kind, finding.files) == (FindingKind.COMMIT_DAMAGED, (b"later.jpg",))


def test_a_commit_of_another_dataset(made: MadeDataset) -> None:
    made.put({"later.jpg": b"later"})
    made.put({"last.jpg": b"last"})
    foreign = Commit(3, bytes(16), 0)
    made.replace(commit_key(NAME, 3), foreign.encode())
    finding = only(check(made))
    assert (finding.kind, finding.files) == (FindingKind.COMMIT_DAMAGED, (b"later.jpg",))


def test_the_newest_commit_lost(made: MadeDataset) -> None:
    """Nothing after it shows that it has been, but the index does."""
    made.put({"later.jpg": b"later"})
    made.replace(commit_key(NAME, 3), None)
    finding = only(check(made))
    assert (finding.kind, finding.repair) == (FindingKind.INDEX_AHEAD, None)
    assert finding.files == (b"later.jpg",)


def test_no_commit_is_sound(made: MadeDataset) -> None:
    for key in made.objects("commits"):
        made.flip(key, 0)
    with pytest.raises(Corrupt, match="dlcmd recover"):
        check(made)


def test_a_chunk_without_a_commit_is_counted_and_no_fault(made: MadeDataset) -> None:
    other = MadeDataset(name="cows")
    other.put({"a": b"a"})
    [key] = other.objects()
    made.store.create(key.replace("cows", NAME), [other.store.get(key)])
    report = check(made)
    assert (report.findings, report.uncommitted_chunks) == ((), 1)


def test_a_store_that_does_not_answer_is_no_damage(made: MadeDataset) -> None:
    class Silent(StoreWrapper):
        def before(self, call: str, key: str) -> None:
            if call == "get_range":
                raise Unavailable("no answer")

    with pytest.raises(Unavailable):
        check(made, Silent(made.store))


def test_a_writer_at_work_is_no_damage(made: MadeDataset) -> None:
    """It commits while the heads are read: the index is then ahead of what was listed."""

    class Busy(StoreWrapper):
        left = 1

        def before(self, call: str, key: str) -> None:
            if call == "get_range" and self.left:
                self.left -= 1
                made.put({"while/it/was/checked.jpg": b"?"})

    report = check(made, Busy(made.store))
    assert (report.findings, report.generation) == ((), 3)
