"""fsck over the index: every record damaged, missing, wrong or too much is found, and mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dieselfs.checking import FindingKind, FsckReport, Verdict, fsck, repair
from metadata import keys
from metadata.kv.key_value_store import MapFields, MapUpdate
from metadata.kv.memory import MemoryStore
from tests.dieselfs.checking.made_dataset import NAME, MadeDataset, flipped, some_files


@pytest.fixture
def made() -> MadeDataset:
    made = MadeDataset()
    made.put(some_files())
    made.put({"a/000.jpg": b"newer", "new/directory/file": b"1"})
    return made


def everything(made: MadeDataset) -> dict[bytes, dict[bytes, bytes]]:
    """Every map that the index holds of the dataset."""
    ref = made.open().ref
    found = {
        keys.DATASETS: _map(made, keys.DATASETS),
        keys.state_of(ref.id): _map(made, keys.state_of(ref.id)),
        keys.chunks_of(ref.id): _map(made, keys.chunks_of(ref.id)),
    }
    for directory in (b"", b"a", b"b", b"c", b"new", b"new/directory"):
        for key in (keys.files_of(ref.id, directory), keys.directories_of(ref.id, directory)):
            found[key] = _map(made, key)
    return found


def _map(made: MadeDataset, key: bytes) -> dict[bytes, bytes]:
    return {field: value for batch in made.index.scan(key) for field, value in batch}


def put(made: MadeDataset, key: bytes, field: bytes, value: bytes) -> None:
    """Whatever is there."""
    made.index.remove([MapFields(key, [field])])
    made.index.put([[MapUpdate(key, [field], [value])]])


def check_and_repair(made: MadeDataset, folder: Path) -> FsckReport:
    """Check, see that only the index is concerned, mend, and see that it is as before."""
    report = fsck(made.store, made.index, NAME)
    assert report.verdict is Verdict.REPAIRABLE
    assert {finding.kind for finding in report.findings} <= {
        FindingKind.INDEX_RECORD,
        FindingKind.INDEX_BEHIND,
    }
    done = repair(made.store, made.index, report, folder)
    assert (len(done.repaired), done.left) == (len(report.findings), ())
    assert fsck(made.store, made.index, NAME).verdict is Verdict.CLEAN
    return report


def records(made: MadeDataset) -> list[tuple[bytes, bytes]]:
    return [(key, field) for key, fields in everything(made).items() for field in fields]


def one_bit(number: int, value: bytes) -> bytes:
    return flipped(value, number % len(value), number % 8)


def cut_short(number: int, value: bytes) -> bytes:
    """No database takes less than a stamp."""
    return value[: 16 + number % (len(value) - 16)]


def longer(number: int, value: bytes) -> bytes:
    return value + bytes(1 + number % 9)


@pytest.mark.parametrize("damaged", [one_bit, cut_short, longer])
def test_damage_in_any_record_is_found_and_mended(
    made: MadeDataset, tmp_path: Path, damaged: Callable[[int, bytes], bytes]
) -> None:
    before = everything(made)
    # Every record but those of files, of which a part will do.
    for number, (key, field) in enumerate(records(made)):
        if len(before[key]) > 5 and number % 5:
            continue
        put(made, key, field, damaged(number, before[key][field]))
        check_and_repair(made, tmp_path)
        assert everything(made) == before, (key, field)


def test_a_missing_record_is_found_and_put(made: MadeDataset, tmp_path: Path) -> None:
    before = everything(made)
    for key, field in records(made):
        made.index.remove([MapFields(key, [field])])
        check_and_repair(made, tmp_path)
        assert everything(made) == before, (key, field)


def test_a_record_too_many_is_found_and_removed(made: MadeDataset, tmp_path: Path) -> None:
    ref = made.open().ref
    before = everything(made)
    source = keys.files_of(ref.id, b"b")
    value = next(iter(before[source].values()))
    put(made, source, b"strange name", value)
    report = check_and_repair(made, tmp_path)
    assert report.findings[0].files == (b"b/strange name",)
    assert everything(made) == before


def test_a_wrong_but_sound_record_is_found(made: MadeDataset, tmp_path: Path) -> None:
    """An older state of the same record, as a database that was restored from a backup has."""
    ref = made.open().ref
    key = keys.files_of(ref.id, b"a")
    before = everything(made)
    # The record of the file's former version.
    former = MadeDataset(made.store, MemoryStore())
    commit = made.replace("datasets/pets/commits/0000000000000003", None)
    former.open()
    made.store.create("datasets/pets/commits/0000000000000003", [commit])
    put(made, key, b"000.jpg", _map(former, key)[b"000.jpg"])
    report = check_and_repair(made, tmp_path)
    assert [finding.files for finding in report.findings] == [(b"a/000.jpg",)]
    assert everything(made) == before


def test_the_files_of_damaged_records_are_listed(made: MadeDataset) -> None:
    ref = made.open().ref
    for directory, name in ((b"a", b"003.jpg"), (b"new/directory", b"file")):
        key = keys.files_of(ref.id, directory)
        put(made, key, name, flipped(_map(made, key)[name], -1))
    [finding] = fsck(made.store, made.index, NAME).findings
    assert finding.files == (b"a/003.jpg", b"new/directory/file")
    assert "damaged" in finding.what


def test_an_index_that_is_behind(made: MadeDataset, tmp_path: Path) -> None:
    behind = MadeDataset(made.store, MemoryStore())
    commit = made.replace("datasets/pets/commits/0000000000000003", None)
    behind.open()
    made.store.create("datasets/pets/commits/0000000000000003", [commit])
    report = check_and_repair(behind, tmp_path)
    assert [finding.kind for finding in report.findings] == [FindingKind.INDEX_BEHIND]
    assert everything(behind) == everything(made)


def test_an_index_that_knows_nothing(made: MadeDataset, tmp_path: Path) -> None:
    empty = MadeDataset(made.store, MemoryStore())
    report = check_and_repair(empty, tmp_path)
    assert [finding.kind for finding in report.findings] == [FindingKind.INDEX_BEHIND]
    assert everything(empty) == everything(made)


def test_an_index_is_not_mended_where_the_store_has_lost_a_chunk(
    made: MadeDataset, tmp_path: Path
) -> None:
    """It may be the last that knows what was in it."""
    ref = made.open().ref
    chunk = made.objects()[0]
    lost = made.paths(chunk)
    made.replace(chunk, None)
    key = keys.files_of(ref.id, b"new/directory")
    put(made, key, b"file", flipped(_map(made, key)[b"file"], -1))
    report = fsck(made.store, made.index, NAME)
    assert report.verdict is Verdict.DAMAGED
    kinds = {finding.kind: finding for finding in report.findings}
    assert set(kinds) == {FindingKind.CHUNK_MISSING, FindingKind.INDEX_RECORD}
    assert set(kinds[FindingKind.CHUNK_MISSING].files) == set(lost) - {b"a/000.jpg"}
    assert kinds[FindingKind.INDEX_RECORD].repair is None
    before = everything(made)
    assert repair(made.store, made.index, report, tmp_path).repaired == ()
    assert everything(made) == before


def test_an_index_in_which_a_commit_is_half_applied(made: MadeDataset, tmp_path: Path) -> None:
    """Totals come first: whoever put them was killed before the rest."""
    expected = everything(made)
    key = keys.state_of(made.open().ref.id)
    half = MadeDataset(made.store, MemoryStore())
    commit = made.replace("datasets/pets/commits/0000000000000003", None)
    half.open()
    made.store.create("datasets/pets/commits/0000000000000003", [commit])
    put(half, key, keys.TOTALS, expected[key][keys.TOTALS])
    [finding] = check_and_repair(half, tmp_path).findings
    assert "in part" in finding.what
    assert everything(half) == expected


class TestAnIndexOfOnePointInTime:
    @pytest.fixture
    def held(self, made: MadeDataset) -> MadeDataset:
        held = MadeDataset(made.store, MemoryStore())
        held.open().namespace.hold(3)
        made.put({"later.jpg": b"later"})
        return held

    def test_it_is_not_behind(self, held: MadeDataset) -> None:
        assert fsck(held.store, held.index, NAME).findings == ()

    def test_it_is_not_mended_to_another(self, held: MadeDataset, made: MadeDataset) -> None:
        key = keys.files_of(made.open().ref.id, b"a")
        put(held, key, b"003.jpg", flipped(_map(held, key)[b"003.jpg"], -1))
        report = fsck(held.store, held.index, NAME)
        [finding] = report.findings
        assert (finding.files, finding.repair) == ((b"a/003.jpg",), None)
        assert report.verdict is Verdict.DAMAGED

    def test_files_committed_later_are_hit_too(self, held: MadeDataset, made: MadeDataset) -> None:
        [chunk] = [key for key in made.objects() if b"later.jpg" in made.paths(key)]
        made.replace(chunk, made.store.get(chunk)[:-1])
        [finding] = fsck(held.store, held.index, NAME).findings
        assert finding.files == (b"later.jpg",)

    def test_a_damaged_record_of_the_point_in_time(
        self, held: MadeDataset, made: MadeDataset
    ) -> None:
        key = keys.state_of(made.open().ref.id)
        put(held, key, keys.HELD, flipped(_map(held, key)[keys.HELD], -1))
        findings = fsck(held.store, held.index, NAME).findings
        assert findings[0].kind is FindingKind.INDEX_RECORD
        assert findings[0].repair is None
