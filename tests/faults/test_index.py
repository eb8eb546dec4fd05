"""The index is damaged or incomplete: a record, some of them, the LMDB file, the disk below it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dieselfs.assembly import open_index, open_store
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.client import Client
from dieselfs.snapshots import lifecycle
from metadata import keys
from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate
from tests.faults.case import Measured, fault_case
from tests.faults.forked_dlcmd import Ended, start_dlcmd
from tests.faults.kept_dataset import Places, files_of, index_differences
from tests.faults.repeated_put import folder_in_memory

FILES = {b"%c/%d" % (97 + i % 3, i): b"file %d " % i * 40 for i in range(30)}


@dataclass(frozen=True, slots=True)
class Kept:
    """A dataset of FILES with an index in LMDB, and a snapshot of it."""

    folder: Path
    places: Places
    snapshot: Path
    dataset_id: bytes
    chunk: bytes

    def dlcmd(self, *arguments: str) -> Ended:
        return start_dlcmd(self.folder, [*arguments, *self.places.flags]).end()

    def change(self, work: Callable[[KeyValueStore], None]) -> None:
        index = open_index(self.places.index)
        work(index)
        index.close()

    def check_snapshot_serves(self) -> None:
        """As a mount reads: names from a snapshot, bytes from the store, the index never asked."""
        index = open_index("memory://empty")
        client = Client.connect(
            "d", store=open_store(self.places.store), index=index, snapshot_folder=self.folder
        )
        client.load_meta(self.snapshot, check_fresh=False)
        for path, data in FILES.items():
            assert client.get(path) == data
        client.close()

    def check_mended(self) -> None:
        with self.places.opened() as dataset:
            assert files_of(dataset) == FILES
            assert index_differences(dataset) == []


@pytest.fixture
def kept() -> Iterator[Kept]:
    with folder_in_memory() as folder:
        (folder / "store").mkdir()
        places = Places(f"file://{folder}/store", f"lmdb://{folder}/index")
        index = open_index(places.index)
        client = Client.connect(
            "d", store=open_store(places.store), index=index, snapshot_folder=folder, create=True
        )
        for path, data in FILES.items():
            client.put(data, path)
        client.flush()
        dataset = client.dataset
        snapshot = lifecycle.build(dataset, folder / "snapshots")
        [chunk] = dataset.namespace.chunks()
        client.close()
        index.close()
        yield Kept(folder, places, snapshot, dataset.ref.id, chunk)


RECORDS: dict[str, tuple[Callable[[Kept], tuple[bytes, bytes]], list[str]]] = {
    "a file's entry": (
        lambda kept: (keys.files_of(kept.dataset_id, b"a"), b"0"),
        ["ls", "dl://d/a"],
    ),
    "a directory's entry": (
        lambda kept: (keys.directories_of(kept.dataset_id, b""), b"a"),
        ["ls", "dl://d"],
    ),
    "a chunk's record": (
        lambda kept: (keys.chunks_of(kept.dataset_id), kept.chunk),
        ["cat", "dl://d/a/0"],
    ),
    "the totals": (
        lambda kept: (keys.state_of(kept.dataset_id), keys.TOTALS),
        ["put", "{new}", "d"],
    ),
    "the state applied": (
        lambda kept: (keys.state_of(kept.dataset_id), keys.APPLIED),
        ["ls", "dl://d"],
    ),
    "the dataset's name": (lambda kept: (keys.DATASETS, b"d"), ["ls", "dl://d"]),
}
ENTRIES = "metadata.records:_verify_entries=none + metadata.complete_listing:is_sealed=true"
COMPARED = "metadata.rebuild.compared_index:ComparedIndex._note=none"
TOLD = "metadata.kv.lmdb_environment:LmdbEnvironment._unavailable=first"
FOUND_BY_ITSELF = ("the dataset's name", "the totals")
"""Missing, they are put again by whoever opens the dataset, or by the next writer."""
ONLY_FOUND_BY_FSCK = ("a file's entry", "a directory's entry")
"""Missing, nothing says so: that is what fsck is for."""


def command_of(kept: Kept, arguments: list[str]) -> list[str]:
    new = kept.folder / "new"
    new.mkdir(exist_ok=True)
    (new / "more").write_bytes(b"more")
    return [argument.format(new=f"{new}/") for argument in arguments]


@pytest.mark.parametrize("record", RECORDS)
@fault_case(
    "one bit of a record of the index is flipped: an entry of a file, of a directory, a chunk's record, the totals, the state, the name",
    promise="who reads it is refused and told of `dlcmd recover`, which puts it right; a mounted snapshot does not notice",
    bound_s=30,
    check={
        **dict.fromkeys(("a file's entry", "a directory's entry"), ENTRIES),
        **dict.fromkeys(("a chunk's record", "the totals"), "metadata.records:_verify_seal=none"),
        "the state applied": "metadata.records:_verify_seal=none"
        " + metadata.complete_listing:is_sealed=true",
        "the dataset's name": "metadata.dataset_state:_verify_name=none",
    },
)
def test_a_flipped_bit(kept: Kept, record: str, measured: Measured) -> None:
    where, command = RECORDS[record]
    key, field = where(kept)

    def damage(index: KeyValueStore) -> None:
        [[value]] = index.get_many([MapFields(key, [field])])
        assert value is not None
        damaged = bytearray(value)
        damaged[20] ^= 4
        index.remove([MapFields(key, [field])])
        index.put([[MapUpdate(key, [field], [bytes(damaged)])]])

    kept.change(damage)
    with measured.felt():
        ended = kept.dlcmd(*command_of(kept, command))
    assert ended.code == ExitCode.INTEGRITY, ended
    assert "dlcmd recover" in ended.errors, ended
    kept.check_snapshot_serves()
    check_recovered(kept, record, measured)


@pytest.mark.parametrize("record", [name for name in RECORDS if name not in FOUND_BY_ITSELF])
@fault_case(
    "a record of the index is missing: an entry of a file, of a directory, a chunk's record, the state",
    promise="`dlcmd fsck` finds it, `dlcmd recover` puts it right; who needs the chunk or the state is told so",
    bound_s=30,
    check={
        **dict.fromkeys(("a file's entry", "a directory's entry", "a chunk's record"), COMPARED),
        "the state applied": "metadata.application:_check_applied=none",
    },
)
def test_a_missing_record(kept: Kept, record: str, measured: Measured) -> None:
    where, command = RECORDS[record]
    key, field = where(kept)
    kept.change(lambda index: index.remove([MapFields(key, [field])]))
    if record not in ONLY_FOUND_BY_FSCK:
        with measured.felt():
            ended = kept.dlcmd(*command_of(kept, command))
        assert ended.code == ExitCode.INTEGRITY, ended
        assert "dlcmd recover" in ended.errors, ended
    with measured.felt():
        checked = kept.dlcmd("fsck", "d")
    assert checked.code == ExitCode.FOUND, checked
    kept.check_snapshot_serves()
    check_recovered(kept, record, measured)


@fault_case(
    "the totals of the index are missing",
    promise="the next put says so and puts all commits again",
    bound_s=30,
    check="dieselfs.dataset.publisher:Publisher._repair=none",
)
def test_missing_totals(kept: Kept, measured: Measured) -> None:
    key, field = RECORDS["the totals"][0](kept)
    kept.change(lambda index: index.remove([MapFields(key, [field])]))
    with measured.felt():
        ended = kept.dlcmd(*command_of(kept, RECORDS["the totals"][1]))
    assert ended.code == 0, ended
    assert "the index has lost recent records" in ended.errors
    with kept.places.opened() as dataset:
        assert files_of(dataset) == {**FILES, b"more": b"more"}
        assert index_differences(dataset) == []
    measured.note("put right by the writer")


def check_recovered(kept: Kept, record: str, measured: Measured) -> None:
    with measured.felt():
        recovered = kept.dlcmd("recover", "d", "--yes")
    assert recovered.code == ExitCode.OK, recovered
    with kept.places.opened() as dataset:
        found = files_of(dataset)
        assert {path: data for path, data in found.items() if path != b"more"} == FILES
        assert index_differences(dataset) == []
    measured.note(f"{record}: refused, recovered")


@fault_case(
    "a third of all records of the index is missing",
    promise="`dlcmd fsck` finds it, `dlcmd recover` puts it right",
    bound_s=30,
    check=COMPARED,
)
def test_a_partly_lost_index(kept: Kept, measured: Measured) -> None:
    def lose(index: KeyValueStore) -> None:
        for directory in (b"", b"a", b"b", b"c"):
            for key_of in (keys.files_of, keys.directories_of):
                key = key_of(kept.dataset_id, directory)
                fields = sorted(field for batch in index.scan(key) for field, _ in batch)
                index.remove([MapFields(key, fields[::3])])

    kept.change(lose)
    with measured.felt():
        checked = kept.dlcmd("fsck", "d")
    assert checked.code == ExitCode.FOUND, checked
    check_recovered(kept, "a third", measured)


@pytest.mark.parametrize("damage", ["garbage", "truncated", "empty", "lock is a folder"])
@fault_case(
    "the LMDB file is overwritten with garbage, cut to a page or to nothing; its lock file cannot be opened",
    promise="an error says what to do, and doing it brings the index back from the store; or the index is made anew at once",
    bound_s=30,
    check={
        **dict.fromkeys(("garbage", "truncated", "lock is a folder"), TOLD),
        "empty": "dieselfs.dataset.dataset:_catches_up=true",
    },
)
def test_a_damaged_lmdb_file(kept: Kept, damage: str, measured: Measured) -> None:
    file, lock = kept.folder / "index/data.mdb", kept.folder / "index/lock.mdb"
    if damage == "garbage":
        file.write_bytes(os.urandom(file.stat().st_size))
    elif damage == "lock is a folder":
        lock.unlink()
        lock.mkdir()
    else:
        os.truncate(file, 4096 if damage == "truncated" else 0)
    with measured.felt():
        ended = kept.dlcmd("ls", "dl://d/a")
    if ended.code == ExitCode.INTEGRITY:
        assert "`dlcmd recover DATASET` moves it away" in ended.errors
        kept.check_snapshot_serves()
        assert kept.dlcmd("recover", "d", "--yes").code == 0
        assert kept.dlcmd("recover", "d", "--check").code == 0
    elif ended.code:
        assert ended.code == ExitCode.TEMPORARY, ended
        assert "index" in ended.errors
        kept.check_snapshot_serves()
        shutil.rmtree(kept.folder / "index")
    assert kept.dlcmd("ls", "dl://d/a").code == 0
    kept.check_mended()
    measured.note(f"{damage}: {ended.errors.strip() if ended.code else 'made anew'}")


@fault_case(
    "the LMDB file is cut in the middle: its first pages are whole, others are gone",
    promise="no wrong name and no wrong bytes; an error says what to do",
    bound_s=30,
    check="metadata.kv.lmdb_environment:_fill_up=none"
    " + metadata.kv.crash_report:CrashReport.__enter__=none",
)
def test_an_lmdb_file_cut_in_the_middle(kept: Kept, measured: Measured) -> None:
    file = kept.folder / "index/data.mdb"
    whole = file.read_bytes()
    refused = 0
    pages = range(2, len(whole) // 4096)
    for page in pages:
        file.write_bytes(whole[: page * 4096])
        with measured.felt():
            ended = kept.dlcmd("ls", "dl://d/a")
        if ended.code:
            assert ended.code in (ExitCode.TEMPORARY, ExitCode.INTEGRITY), (page, ended)
            assert "dlcmd recover" in ended.errors
            refused += 1
        else:  # what was cut off was not in use, or had nothing to do with what was asked
            names = {name.decode()[2:] for name in FILES if name.startswith(b"a/")}
            assert set(ended.errors.split()) == names, page
    kept.check_snapshot_serves()
    shutil.rmtree(kept.folder / "index")
    kept.check_mended()
    measured.note(f"refused at {refused} of {len(pages)} lengths, else right")


@fault_case(
    "the folder of the LMDB file can only be read",
    promise="an error that says so; nothing else happens, and all is as before when it can be written again",
    bound_s=30,
    check=TOLD,
)
def test_a_read_only_folder(kept: Kept, tmp_path: Path, measured: Measured) -> None:
    if os.geteuid():
        pytest.skip("mounts a small tmpfs")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small], check=True)
    try:
        places = replace(kept.places, index=f"lmdb://{small}/index")
        listing = ["ls", "dl://d/a", *places.flags]
        assert start_dlcmd(kept.folder, listing).end().code == 0
        subprocess.run(["mount", "-o", "remount,ro", small], check=True)
        with measured.felt():
            ended = start_dlcmd(kept.folder, listing).end()
        assert ended.code == ExitCode.TEMPORARY, ended
        assert "Read-only file system: check the folder" in ended.errors
        subprocess.run(["mount", "-o", "remount,rw", small], check=True)
        assert start_dlcmd(kept.folder, listing).end().code == 0
    finally:
        subprocess.run(["umount", small], check=True)
    kept.check_snapshot_serves()
    measured.note("refused with the reason")


@fault_case(
    "the disk below the LMDB file is full",
    promise="the put ends with an error that says so; what is committed is there when there is room; the same command finishes",
    bound_s=60,
    check="metadata.kv.lmdb_environment:LmdbEnvironment._disk_is_full=false",
)
def test_a_full_disk(kept: Kept, tmp_path: Path, measured: Measured) -> None:
    if os.geteuid():
        pytest.skip("mounts a small tmpfs")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], check=True)
    try:
        places = replace(kept.places, index=f"lmdb://{small}/index")
        source = kept.folder / "many"
        source.mkdir()
        for number in range(3000):
            (source / f"a-name-of-some-length-{number}").write_bytes(b"x")
        command = ["put", "-j", "1", f"{source}/", "d", *places.flags]
        with measured.felt():
            ended = start_dlcmd(kept.folder, command).end()
        assert ended.code == ExitCode.TEMPORARY, ended
        assert "the disk is full" in ended.errors, ended
        subprocess.run(["mount", "-o", "remount,size=16m", small], check=True)
        with measured.felt():
            assert start_dlcmd(kept.folder, command).end().code == 0
        with places.opened() as dataset:
            assert len(files_of(dataset)) == len(FILES) + 3000
            assert index_differences(dataset) == []
    finally:
        subprocess.run(["umount", small], check=True)
    measured.note("refused; the same command finished")
