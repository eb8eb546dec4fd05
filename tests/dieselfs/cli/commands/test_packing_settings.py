"""What a dataset remembers of its packing: `put` and `purge` keep to it, and samples stay whole."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest

from chunkstore.commit_log import BIRTH_GENERATION, Commit, find_dataset
from chunkstore.keep_together import sample_key
from chunkstore.object_keys import commit_key
from dieselfs.assembly import open_index, open_store
from dieselfs.client import Client
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.errors import Refused
from tests.dieselfs.cli.conftest import Dlcmd, Result

SAMPLES = 300


@pytest.fixture
def url(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Places on disk, which packing processes open too."""
    monkeypatch.setenv("DIESELFS_STORE", f"file://{tmp_path}/store")
    monkeypatch.setenv("DIESELFS_INDEX", f"lmdb://{tmp_path}/index")
    return url


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Images and texts whose names the disk has in any order."""
    source = tmp_path / "pairs"
    for name in ("a", "b"):
        (source / name).mkdir(parents=True)
    for part, size in (("jpg", 700), ("json", 40), ("cls", 1)):
        for number in range(SAMPLES):
            folder = source / "ab"[number % 2]
            (folder / f"{number:04}.{part}").write_bytes(bytes([number % 251]) * size)
    return source


def opened() -> Dataset:
    store = open_store(os.environ["DIESELFS_STORE"])
    return open_dataset(store, open_index(os.environ["DIESELFS_INDEX"]), "pairs")


def chunks_of_samples() -> dict[bytes, set[bytes]]:
    dataset = opened()
    found = defaultdict(set)
    try:
        for listing in dataset.namespace.walk(b""):
            for name, row in zip(listing.file_names, listing.files, strict=True):
                found[sample_key(listing.path + b"/" + name)].add(bytes(row["chunk"]))
    finally:
        dataset.index.close()
    return found


def largest_chunk() -> int:
    dataset = opened()
    try:
        records = dataset.namespace.chunks().values()
        return max(record.payload_bytes for record in records if record.file_count)
    finally:
        dataset.index.close()


def packing(dlcmd: Dlcmd) -> object:
    return dlcmd("dataset", "info", "pairs", "--json").records[0]["packing"]


def put(dlcmd: Dlcmd, *arguments: str | Path) -> Result:
    result = dlcmd("put", "--no-publish", "-j", "3", *arguments, "pairs")
    assert result.code == 0, result.err
    return result


SMALL = ("--chunk-size", "16KiB", "--keep-together", "sample")


@pytest.mark.parametrize("order", ["scatter", "path", "given"])
def test_samples_are_whole_whatever_process_packs_them(
    dlcmd: Dlcmd, pairs: Path, order: str
) -> None:
    put(dlcmd, *SMALL, "--order", order, f"{pairs}/")
    found = chunks_of_samples()
    assert len(found) == SAMPLES
    assert {len(chunks) for chunks in found.values()} == {1}
    assert len(set.union(*found.values())) > 10
    assert packing(dlcmd) == {"chunk_bytes": 16384, "order": order, "keep_together": "sample"}
    assert largest_chunk() <= 16384


def test_without_it_they_are_not(dlcmd: Dlcmd, pairs: Path) -> None:
    put(dlcmd, "--chunk-size", "16KiB", f"{pairs}/")
    assert max(len(chunks) for chunks in chunks_of_samples().values()) > 1


def test_files_named_one_by_one_and_in_a_list(dlcmd: Dlcmd, pairs: Path, tmp_path: Path) -> None:
    put(dlcmd, *SMALL, *sorted((pairs / "a").iterdir(), key=lambda path: path.suffix))
    names = sorted(
        (f"b/{path.name}" for path in (pairs / "b").iterdir()), key=lambda name: name[7:]
    )
    (tmp_path / "names").write_text("\n".join(names))
    put(dlcmd, "--files-from", tmp_path / "names", pairs)
    found = chunks_of_samples()
    assert len(found) == SAMPLES
    assert {len(chunks) for chunks in found.values()} == {1}


def test_later_puts_and_purges_keep_to_what_the_first_put_said(dlcmd: Dlcmd, pairs: Path) -> None:
    put(dlcmd, *SMALL, "--order", "path", f"{pairs}/a")
    put(dlcmd, f"{pairs}/b")
    found = chunks_of_samples()
    assert {len(chunks) for chunks in found.values()} == {1}
    assert largest_chunk() <= 16384
    assert "packed by path" in dlcmd("put", f"{pairs}/b", "pairs").err
    gone = [f"pairs:a/{number:04}.{part}" for number in range(0, 300, 6) for part in ("jpg", "cls")]
    assert dlcmd("rm", "-y", *gone).code == 0
    assert dlcmd("purge", "pairs", "--leave", "0", "--json").records[0]["files_moved"] > 0
    purged = chunks_of_samples()
    assert purged != found
    assert {len(chunks) for chunks in purged.values()} == {1}
    assert 8192 < largest_chunk() <= 16384


def test_an_option_counts_for_its_command_alone(dlcmd: Dlcmd, pairs: Path) -> None:
    put(dlcmd, *SMALL, f"{pairs}/a")
    remembered = packing(dlcmd)
    put(dlcmd, "--chunk-size", "64KiB", "--keep-together", "none", f"{pairs}/b")
    assert largest_chunk() > 16384
    assert packing(dlcmd) == remembered


def test_info_says_it(dlcmd: Dlcmd, pairs: Path) -> None:
    put(dlcmd, *SMALL, f"{pairs}/a")
    line = next(line for line in dlcmd("dataset", "info", "pairs").lines if "packing" in line)
    assert line.split(":")[1].strip() == (
        "chunks of 16.0 KiB, order scatter, files of a sample together"
    )


def remember(record: int) -> None:
    """Put other bytes in the place of the record, as a damaged or later release would."""
    store = open_store(os.environ["DIESELFS_STORE"])
    ref = find_dataset(store, "pairs")
    assert ref is not None
    store.delete(commit_key("pairs", BIRTH_GENERATION))
    birth = Commit(BIRTH_GENERATION, ref.id, 5, packing=record)
    store.create(commit_key("pairs", BIRTH_GENERATION), [birth.encode()])


def test_a_dataset_of_an_older_release_goes_on_as_ever(dlcmd: Dlcmd, pairs: Path) -> None:
    put(dlcmd, *SMALL, f"{pairs}/a")
    remember(0)
    assert packing(dlcmd) is None
    assert "not remembered" in dlcmd("dataset", "info", "pairs").out.decode()
    put(dlcmd, f"{pairs}/b")
    assert largest_chunk() > 16384  # all of b in one
    assert dlcmd("purge", "pairs").code == 0


@pytest.mark.parametrize(("record", "reason"), [(1, "chunks of 64 bytes"), (0xFFFF02, "version 2")])
def test_an_absurd_record_is_refused_where_it_matters(
    dlcmd: Dlcmd, pairs: Path, record: int, reason: str
) -> None:
    put(dlcmd, *SMALL, f"{pairs}/a")
    remember(record)
    for command in (("put", f"{pairs}/b", "pairs"), ("put", "-n", f"{pairs}/b", "pairs")):
        result = dlcmd(*command)
        assert result.code == 1
        assert reason in result.err
        assert "--chunk-size" in result.err
    assert reason in dlcmd("purge", "pairs").err
    assert dlcmd("cat", "pairs:a/0000.json").code == 0
    assert reason in dlcmd("dataset", "info", "pairs").out.decode()
    whole = ("--chunk-size", "16KiB", "--keep-together", "none")
    put(dlcmd, *whole, "--order", "path", f"{pairs}/b")
    assert dlcmd("rm", "-y", "pairs:a/0000.json").code == 0
    assert dlcmd("purge", *whole, "pairs").code == 0


def connected(**options: object) -> Client:
    return Client.connect(
        "pairs",
        store=open_store(os.environ["DIESELFS_STORE"]),
        index=open_index(os.environ["DIESELFS_INDEX"]),
        snapshot_folder=Path("/nowhere"),
        **options,  # type: ignore[arg-type]
    )


def put_pairs(client: Client, folder: str) -> None:
    with client:
        for number in range(100):
            for part, size in (("jpg", 700), ("json", 40)):
                client.put(bytes(size), f"{folder}/{number:04}.{part}")


def test_the_client_remembers_and_keeps_to_it(dlcmd: Dlcmd) -> None:
    put_pairs(connected(create=True, target_bytes=16384, keep_together="sample"), "a")
    expected = {"chunk_bytes": 16384, "order": "scatter", "keep_together": "sample"}
    assert packing(dlcmd) == expected
    put_pairs(connected(), "b")
    assert {len(chunks) for chunks in chunks_of_samples().values()} == {1}
    assert largest_chunk() <= 16384
    remember(1)
    with connected() as client:
        client.delete("a/0000.jpg")
        with pytest.raises(Refused, match="chunks of 64 bytes"):
            client.put(b"", "a/x.jpg")
    with connected(target_bytes=8192, open_chunks=1, keep_together="none") as client:
        client.put(b"", "a/x.jpg")


def test_one_open_chunk_is_the_order_given(dlcmd: Dlcmd) -> None:
    put_pairs(connected(create=True, open_chunks=1), "a")
    assert packing(dlcmd) == {"chunk_bytes": 4 << 20, "order": "given", "keep_together": "none"}
