"""What the builder writes, to the byte, and what it will not write."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from metadata.errors import RecordCorrupt
from metadata.listing import DirectoryListing
from metadata.records import ENTRY
from metadata.snapshot import ROOT, Snapshot
from metadata.snapshot_builder import build_snapshot
from tests.metadata.snapshot_trees import DATASET, LINKS, PETS, File, Tree, build

GOLDEN = Path(__file__).parents[1] / "golden"


def test_golden_bytes(tmp_path: Path) -> None:
    """Format 1. If this fails, the format has changed: bump its version and add a file."""
    golden = GOLDEN / "snapshot-v1.snapshot"
    path = build(PETS, tmp_path)
    assert path.read_bytes() == golden.read_bytes()
    Snapshot.verify(golden)


def test_golden_bytes_of_links(tmp_path: Path) -> None:
    """Format 2. If this fails, the format has changed: bump its version and add a file."""
    golden = GOLDEN / "snapshot-v2.snapshot"
    assert build(LINKS, tmp_path).read_bytes() == golden.read_bytes()
    Snapshot.verify(golden)
    with Snapshot.open(golden) as snapshot:
        assert snapshot.has_links
        links = [path for path in LINKS.files if snapshot.is_link(snapshot.resolve(path) or 0)]
        assert links == [b"latest", b"cat/up", b"dog/a"]
        files = snapshot.regular_files()
        assert files is not None
        assert {snapshot.path_of(int(inode)) for inode in files} == set(PETS.files)


def test_one_state_gives_one_file(tmp_path: Path) -> None:
    first = build(PETS, tmp_path)
    inode = first.stat().st_ino
    second = build(PETS, tmp_path / "other")
    assert first.name == second.name
    assert build(PETS, tmp_path) == first
    assert [path.name for path in tmp_path.glob("*.*")] == [first.name]  # nothing temporary is left
    assert first.stat().st_mode & 0o222 == 0
    assert inode  # the old file may still be mapped by someone; it was replaced, not written to


def test_the_folder_is_the_owners_alone(tmp_path: Path) -> None:
    build(PETS, tmp_path / "snapshots")
    assert (tmp_path / "snapshots").stat().st_mode & 0o777 == 0o700


def test_the_roots_record(tmp_path: Path) -> None:
    root = np.zeros(1, ENTRY)[0]
    root["mode"], root["mtime_ns"] = 0o40700, 77
    path = build_snapshot(DATASET, PETS.state, root, PETS.listings(), PETS.chunks, tmp_path)
    with Snapshot.open(path) as snapshot:
        assert snapshot.mode(ROOT) == 0o40700
        assert snapshot.mtime_ns(ROOT) == 77


def test_progress_counts_files(tmp_path: Path) -> None:
    seen: list[int] = []
    build_snapshot(
        DATASET, PETS.state, None, PETS.listings(), PETS.chunks, tmp_path, progress=seen.append
    )
    assert seen[-1] == len(PETS.files)


def test_directories_may_come_depth_first(tmp_path: Path) -> None:
    listings = {listing.path: listing for listing in PETS.listings()}
    order = [b"", b"cat", b"cat/big", b"cat.d", b"empty", b"empty/inner", b"dog"]
    path = build_snapshot(
        DATASET, PETS.state, None, [listings[at] for at in order], PETS.chunks, tmp_path
    )
    Snapshot.verify(path)
    with Snapshot.open(path) as snapshot:
        assert [name for name, _ in snapshot.children(ROOT)] == [
            b"cat", b"cat.d", b"dog", b"empty", b"README",
        ]  # fmt: skip
        assert snapshot.path_of(snapshot.resolve("cat/big/1.jpg") or 0) == b"cat/big/1.jpg"


def test_an_empty_directory_needs_no_listing(tmp_path: Path) -> None:
    listings = [one for one in PETS.listings() if one.file_names or one.directory_names]
    path = build_snapshot(DATASET, PETS.state, None, listings, PETS.chunks, tmp_path)
    with Snapshot.open(path) as snapshot:
        inode = snapshot.resolve("empty/inner")
        assert inode is not None
        assert list(snapshot.children(inode)) == []


def test_offsets_beyond_4_gib(tmp_path: Path) -> None:
    tree = Tree({b"a": File(0, 0, 1 << 32, 1), b"b": File(0, 1, 5, 2)})
    with Snapshot.open(build(tree, tmp_path)) as snapshot:
        assert [snapshot.extent(inode).offset for inode in (0, 1)] == [1 << 32, 5]
        Snapshot.verify(snapshot.path)


def test_batches_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(PETS, tmp_path / "whole").read_bytes()
    monkeypatch.setattr("metadata.snapshot_builder._FILES_A_BATCH", 1)
    assert build(PETS, tmp_path / "batches").read_bytes() == whole


def listing(
    path: bytes, names: list[bytes], directories: list[bytes] | None = None
) -> DirectoryListing:
    files = np.zeros(len(names), ENTRY)
    files["mode"] = 0o100644
    files["position"] = np.arange(len(names))
    files["chunk"] = next(iter(sorted(PETS.chunks)))
    records = np.zeros(len(directories or []), ENTRY)
    records["mode"] = 0o40755
    return DirectoryListing(path, names, files, directories or [], records)


@pytest.mark.parametrize(
    ("listings", "problem"),
    [
        ([listing(b"", [b"b", b"a"])], "out of order"),
        ([listing(b"", [b"a", b"a"])], "twice"),
        ([listing(b"", [b""])], "empty"),
        ([listing(b"", [b".."])], "illegal"),
        ([listing(b"", [b"a/b"])], "'/'"),
        ([listing(b"", [b"a\0b"])], "illegal"),
        ([listing(b"", [b"n" * 256])], "illegal"),
        ([listing(b"", [], [b"."])], "illegal"),
        ([listing(b"", [b"a"], [b"a"])], "a file and a directory"),
        ([listing(b"a", [])], "before the directory above"),
        ([listing(b"", []), listing(b"", [])], "twice"),
        ([listing(b"", [b"a"]), listing(b"b", [])], "before the directory above"),
        ([listing(b"", [b"a", b"b"])], "totals say"),
    ],
)
def test_an_index_that_contradicts_itself(
    tmp_path: Path, listings: list[DirectoryListing], problem: str
) -> None:
    with pytest.raises(RecordCorrupt, match=problem):
        build_snapshot(DATASET, PETS.state, None, listings, PETS.chunks, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_outside_of_chunks(tmp_path: Path) -> None:
    for file, problem in [
        (File(1, 0, 1 << 33, 1), "beyond its chunk"),
        (File(1, 0, mode=0o40755), "mode is not a file's"),
    ]:
        with pytest.raises(RecordCorrupt, match=problem):
            build(Tree({b"a": file}), tmp_path)
    with pytest.raises(RecordCorrupt, match="one position"):
        build(Tree({b"a": File(1, 0), b"b": File(1, 0)}), tmp_path)
    tree = Tree({b"a": File(1, 0)})
    with pytest.raises(RecordCorrupt, match="not in the index"):
        build_snapshot(DATASET, tree.state, None, tree.listings(), {}, tmp_path)


def test_a_path_too_long(tmp_path: Path) -> None:
    deep = b"/".join([b"d" * 255] * 16)  # 4095 bytes
    build(Tree({deep: File(0, 0)}), tmp_path)
    with pytest.raises(RecordCorrupt, match="4095 bytes"):
        build(Tree({deep[:-255] + b"d/" + b"d" * 254: File(0, 0)}), tmp_path)


def test_totals_must_agree(tmp_path: Path) -> None:
    state = replace(PETS.state, files=5)
    with pytest.raises(RecordCorrupt, match="6 files"):
        build_snapshot(DATASET, state, None, PETS.listings(), PETS.chunks, tmp_path)
