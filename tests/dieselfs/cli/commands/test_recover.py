"""`dlcmd recover`: what it prints, asks and answers with, and that a mount does not notice."""

import json
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chunkstore.chunk_id import ChunkId, ChunkIdGenerator, print_id
from chunkstore.chunk_writer import ChunkWriter, SealedChunk
from chunkstore.object_keys import chunk_key, commit_key
from dieselfs.client import Client
from metadata import keys
from metadata.kv.key_value_store import MapFields
from tests.dieselfs.cli.conftest import FILES, TIME_NS, Dlcmd


def leave_uncommitted(pets: Client, *, cut_short: int = 0, flip: bool = False) -> str:
    """Store a chunk with the file `orphan` that no commit names; its id."""
    sealed: list[SealedChunk] = []
    writer = ChunkWriter(pets.dataset.ref, ChunkIdGenerator(), sealed.append)
    writer.add_file(b"orphan", b"o" * 100, 0o644, TIME_NS)
    writer.flush()
    [chunk] = sealed
    data = bytearray(chunk.head + b"o" * (100 - cut_short))
    if flip:
        data[-1] ^= 1
    pets.dataset.store.create(chunk_key("pets", chunk.ref.id), [data])
    return str(chunk.ref.id)


def test_nothing_is_wrong(dlcmd: Dlcmd, pets: Client) -> None:
    result = dlcmd("recover", "pets")
    assert result.code == 0
    assert result.lines == [
        "pets, generation 2: 6 files, 4 directories, 1 chunk",
        "the index needed no repair",
    ]
    assert dlcmd("recover", "pets", "--check").lines[-1] == "no differences found"


def test_an_empty_index_is_filled(dlcmd: Dlcmd, pets: Client) -> None:
    empty = f"memory://{print_id(pets.dataset.ref.id)}"
    check = dlcmd("recover", "pets", "--index", empty, "--check", "--json")
    assert check.code == 10
    [record] = check.records
    assert record["was_empty"]
    assert record["differences"] == len(record["different"]) + 1  # and the name
    result = dlcmd("recover", "pets", "--index", empty, "--json")
    assert result.code == 0
    [record] = result.records
    assert record | {"files": 6, "commits_read": 2, "commits_lost": [], "generation": 2} == record
    assert dlcmd("recover", "pets", "--index", empty).code == 0
    assert dlcmd("cat", "pets:cat/1.jpg", "--index", empty).out == FILES["cat/1.jpg"]


def test_differences_are_listed_and_mended(dlcmd: Dlcmd, pets: Client) -> None:
    key = keys.files_of(pets.dataset.ref.id, b"cat")
    pets.dataset.index.remove([MapFields(key, [b"1.jpg"])])
    for flag in ("--check", "-n"):
        result = dlcmd("recover", "pets", flag)
        assert result.code == 10
        assert result.lines[0] == "missing file cat/1.jpg"
        assert result.lines[-1] == "the index differs in 1 record"
    result = dlcmd("recover", "pets")
    assert result.code == 0
    assert result.lines[-1].startswith("repaired: 1 record")
    assert dlcmd("recover", "pets", "--check").code == 0


def test_since_and_until(dlcmd: Dlcmd, pets: Client, tmp_path: Path) -> None:
    client = Client.connect(
        "pets",
        store=pets.dataset.store,
        index=pets.dataset.index,
        snapshot_folder=tmp_path / "s",
    )
    with client:
        client.delete("cat/1.jpg")
    key = keys.files_of(pets.dataset.ref.id, b"cat")
    pets.dataset.index.remove([MapFields(key, [b"1.jpg"])])  # the deletion is forgotten
    for since, said in (
        ("2", "repaired: "),
        ("2", "the index needed no repair"),
        ("1h", "the index needed no repair"),
    ):
        result = dlcmd("recover", "pets", "--since", since)
        assert result.code == 0
        assert result.lines[1].startswith(said)
    result = dlcmd("recover", "pets", "--until", "2")
    assert result.code == 0
    assert "next: dlcmd mount pets@2 MOUNTPOINT" in result.lines[-1]
    assert dlcmd("cat", "pets@2:cat/1.jpg").out == FILES["cat/1.jpg"]
    assert dlcmd("cat", "pets:cat/1.jpg").code == 4
    second = [f"memory://{print_id(pets.dataset.ref.id)}"]
    to = dlcmd("recover", "pets", "--until", "2", "--to", *second)
    assert (to.code, to.lines[-1]) == (0, "the index stays at this generation")
    assert dlcmd("cat", "pets:cat/1.jpg", "--index", *second).out == FILES["cat/1.jpg"]
    assert dlcmd("recover", "pets", "--to", *second).code == 0
    assert dlcmd("cat", "pets:cat/1.jpg", "--index", *second).code == 4
    now = datetime.now(UTC).isoformat()
    assert dlcmd("recover", "pets", "--until", now).lines[0].startswith("pets, generation 3")


def test_until_reaches_a_published_snapshot_behind_a_purge(dlcmd: Dlcmd, pets: Client) -> None:
    assert dlcmd("snapshot", "create", "pets").code == 0
    for path in ("cat/1.jpg", "cat/2.jpg"):
        assert dlcmd("rm", "-y", f"pets:{path}").code == 0
        assert dlcmd("purge", "--leave", "0", "--grace", "0", "pets").code == 0
    result = dlcmd("recover", "pets", "--until", "2")
    assert result.code == 0, result.err
    assert dlcmd("cat", "pets@2:cat/1.jpg").out == FILES["cat/1.jpg"]
    [record] = dlcmd("recover", "pets", "--until", "2", "-n", "--json").records
    reachable = record["reachable_generations"]
    assert record["earliest_generation"] == reachable[-1][0] > 3
    assert reachable[0] == [1, 2]
    refused = dlcmd("recover", "pets", "--until", str(reachable[-1][0] - 1))
    assert refused.code == 1
    assert "purged and deleted" in refused.err
    assert "choose one that still has all of its chunks: 1 to 2, " in refused.err


def test_what_makes_no_sense_is_refused(dlcmd: Dlcmd, pets: Client, url: str) -> None:
    for arguments in (
        ["--until", "2", "--to", url],
        ["--until", "2", "--since", "1"],
        ["--check", "--adopt"],
        ["--since", "yesterday"],
        ["--dataset-id", "short"],
    ):
        result = dlcmd("recover", "pets", *arguments)
        assert (result.code, result.err.count("\n")) == (2, 1), arguments
    assert dlcmd("recover", "pets", "--until", "9").code == 1
    assert dlcmd("recover", "nobody").code == 3
    early = dlcmd("recover", "pets", "--until", "1h")  # before there was anything
    born = datetime.fromtimestamp(pets.dataset.log.read(1).time_ns // 10**9, UTC)
    assert (early.code, f"created at {born:%Y-%m-%dT%H:%M:%S}Z" in early.err) == (1, True)
    assert dlcmd("recover").code == dlcmd("recover", "pets", "--all").code == 2
    assert dlcmd("recover", "--all", "--until", "2").code == 2


@pytest.fixture
def damaged_index(tmp_path: Path, pets: Client) -> Path:
    """The folder of an LMDB database that is damaged as a whole."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "data.mdb").write_bytes(b"damaged" * 4096)
    return folder


def test_a_damaged_lmdb_file_is_moved_away_and_rebuilt(dlcmd: Dlcmd, damaged_index: Path) -> None:
    index = f"lmdb://{damaged_index}"
    refused = dlcmd("ls", "pets:cat", "--index", index)
    assert (refused.code, "`dlcmd recover DATASET` moves it away" in refused.err) == (7, True)
    for flags in (["--check"], ["-n"], ["--since", "1"]):
        assert dlcmd("recover", "pets", "--index", index, *flags).code == 7
    asked = dlcmd("recover", "pets", "--index", index)
    assert (asked.code, "--yes" in asked.err) == (2, True)
    assert [path.name for path in damaged_index.glob("data*")] == ["data.mdb"]
    result = dlcmd("recover", "pets", "--index", index, "--yes")
    assert (result.code, result.lines[-1]) == (0, "the index was empty and has been filled")
    assert "dlcmd recover --all" in result.err
    [kept] = damaged_index.glob("data.mdb.damaged-*")
    assert str(kept) in result.err
    assert kept.read_bytes() == b"damaged" * 4096
    assert dlcmd("ls", "pets:cat", "--index", index).lines == ["1.jpg", "2.jpg"]


def test_all_datasets_are_recovered_at_once(
    dlcmd: Dlcmd, pets: Client, damaged_index: Path, tmp_path: Path
) -> None:
    index = f"lmdb://{damaged_index}"
    other = Client.connect(
        "cows", store=pets.dataset.store, index=pets.dataset.index, create=True,
        snapshot_folder=tmp_path / "s",
    )  # fmt: skip
    with other:
        other.put(b"moo", "cow")
    records = dlcmd("recover", "--all", "--index", index, "--yes", "--json").records
    assert [(r["dataset"], r["files"], r["was_empty"]) for r in records] == [
        ("cows", 1, True),
        ("pets", 6, True),
    ]
    assert dlcmd("recover", "--all", "--check", "--index", index).code == 0
    key = keys.files_of(pets.dataset.ref.id, b"cat")
    pets.dataset.index.remove([MapFields(key, [b"1.jpg"])])
    assert dlcmd("recover", "--all", "--check").code == 10
    other.dataset.store.delete(chunk_key("cows", str_chunk(other)))
    failed = dlcmd("recover", "--all")
    assert (failed.code, "--without-chunks" in failed.err) == (6, True)
    assert dlcmd("recover", "pets", "--check").code == 0


def str_chunk(client: Client) -> ChunkId:
    [chunk_id] = client.dataset.namespace.chunks()
    return ChunkId(chunk_id)


def test_uncommitted_chunks_are_shown_and_adopted_when_asked(dlcmd: Dlcmd, pets: Client) -> None:
    leave_uncommitted(pets)
    short, flipped = leave_uncommitted(pets, cut_short=1), leave_uncommitted(pets, flip=True)
    result = dlcmd("recover", "pets", "-v")
    assert result.code == 0
    [summary] = [line for line in result.lines if "named by no commit" in line]
    assert summary.startswith("3 chunks")
    assert "2 whole" in summary
    [line] = [line for line in result.lines if line.startswith(f"  {short}")]
    assert "bytes instead of" in line
    assert dlcmd("cat", "pets:orphan").code == 4
    dry = dlcmd("recover", "pets", "--adopt", "-n", "--json")
    assert (dry.code, len(dry.records[0]["adopted"])) == (10, 1)
    refused = dlcmd("recover", "pets", "--adopt")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert dlcmd("cat", "pets:orphan").code == 4
    adopted = dlcmd("recover", "pets", "--adopt", "--yes", "--json")
    assert adopted.code == 0
    [record] = adopted.records
    assert record["adopted"] == dry.records[0]["adopted"]
    assert flipped not in record["adopted"]
    assert record["uncommitted"]["chunks"] == 2
    assert dlcmd("cat", "pets:orphan").out == b"o" * 100
    assert dlcmd("recover", "pets", "--adopt", "--yes").code == 0


def test_lost_commits_are_said_and_made_again_when_told(dlcmd: Dlcmd, pets: Client) -> None:
    for generation in (1, 2):
        pets.dataset.store.delete(commit_key("pets", generation))
    result = dlcmd("recover", "pets")
    assert (result.code, result.err.count("\n")) == (7, 1)
    assert "commit 1 is missing" in result.err
    assert "--without-commits" in result.err
    dry = dlcmd("recover", "pets", "--without-commits", "-n")
    assert dry.code == 10
    assert dry.lines[0] == "2 commits would be rebuilt from 1 chunk with 6 files"
    assert any("never acknowledged" in line for line in dry.lines)
    assert dlcmd("recover", "pets", "--without-commits").code == 2
    assert dlcmd("recover", "pets", "--without-commits", "--yes").code == 0
    for path, data in FILES.items():
        if isinstance(path, str):
            assert dlcmd("cat", f"pets:{path}").out == data
    assert dlcmd("recover", "pets").code == 0


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
def test_a_mount_goes_on_serving(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path
) -> None:
    """The index is gone, then being made again, and readers of the mount do not notice."""
    assert dlcmd("mount", "pets", mountpoint).code == 0
    shutil.rmtree(tmp_path / "data/dieselfs/index")
    failures: list[object] = []
    reads, ended = [0], threading.Event()

    def read() -> None:
        while not (ended.is_set() and reads[0] > 10):
            try:
                assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100
                json.loads((mountpoint / ".dieselfs/stats.json").read_text())
                reads[0] += 1
            except BaseException as error:
                failures.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    first, second = (dlcmd("recover", "pets") for _ in range(2))
    ended.set()
    reader.join()
    assert (first.code, second.code, failures) == (0, 0, [])
    assert first.lines[1] == "the index was empty and has been filled"
    assert second.lines[1].startswith("the index needed no repair")
    assert dlcmd("umount", mountpoint).code == 0
