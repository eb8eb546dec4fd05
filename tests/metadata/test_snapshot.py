"""A snapshot equals the dictionary it was made of, whatever is asked and however it is asked."""

import multiprocessing
import pickle
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from metadata.snapshot import ROOT, Snapshot
from metadata.snapshot_format import DIRECTORY_BASE
from tests.metadata.snapshot_trees import (
    DATASET,
    HEAD_BYTES,
    PAYLOAD_BYTES,
    PETS,
    Tree,
    build,
    chunk_id,
    paths,
    trees,
)

pytestmark = pytest.mark.usefixtures("each_path_lookup")


@pytest.fixture
def pets(tmp_path: Path) -> Iterator[Snapshot]:
    with Snapshot.open(build(PETS, tmp_path)) as snapshot:
        yield snapshot


def inode_of(snapshot: Snapshot, path: bytes) -> int:
    inode = snapshot.resolve(path)
    assert inode is not None
    return inode


@given(tree=trees(), strangers=st.lists(paths, max_size=10))
@settings(max_examples=150)
def test_equals_the_dictionary_it_was_made_of(tree: Tree, strangers: list[bytes]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Snapshot.open(build(tree, Path(folder))) as snapshot,
    ):
        Snapshot.verify(snapshot.path)
        assert snapshot.file_count == len(tree.files)
        assert snapshot.directory_count == len(tree.directories) + 1
        assert snapshot.total_bytes == sum(file.length for file in tree.files.values())
        for path, file in tree.files.items():
            inode = inode_of(snapshot, path)
            assert 0 <= inode < snapshot.file_count
            assert not snapshot.is_directory(inode)
            assert snapshot.path_of(inode) == path
            assert snapshot.name(inode) == path.rpartition(b"/")[2]
            assert snapshot.lookup(snapshot.parent(inode), snapshot.name(inode)) == inode
            assert snapshot.mode(inode) == file.mode
            assert snapshot.is_link(inode) == stat.S_ISLNK(file.mode)
            assert snapshot.size(inode) == file.length
            assert snapshot.mtime_ns(inode) == file.mtime_ns
            chunk = ChunkRef(ChunkId(chunk_id(file.chunk)), HEAD_BYTES, PAYLOAD_BYTES)
            assert snapshot.extent(inode) == FileExtent(chunk, file.offset, file.length, file.hash)
        links = [path for path, file in tree.files.items() if stat.S_ISLNK(file.mode)]
        assert snapshot.has_links == bool(links)
        regular = snapshot.regular_files()
        if regular is None:
            assert not links
        else:
            assert (np.diff(regular.astype(int)) > 0).all()
            kept = {snapshot.path_of(inode) for inode in regular.tolist()}
            assert kept == tree.files.keys() - set(links)
        for path in tree.directories:
            inode = inode_of(snapshot, path)
            assert snapshot.is_directory(inode)
            assert not snapshot.is_link(inode)
            assert snapshot.path_of(inode) == path
            assert snapshot.lookup(snapshot.parent(inode), snapshot.name(inode)) == inode
            assert snapshot.mode(inode) == 0o40750
            assert snapshot.size(inode) == 0
        for path in [b"", *tree.directories]:
            inode = inode_of(snapshot, path)
            directories, files = tree.children(path)
            listed = list(snapshot.children(inode))
            assert [name for name, _ in listed] == directories + files
            assert snapshot.child_count(inode) == len(listed)
            for start in range(len(listed) + 2):
                assert list(snapshot.children(inode, start)) == listed[start:]
            for name, child in listed:
                assert snapshot.path_of(child) == (path + b"/" + name if path else name)
        known = [b"", *tree.files, *tree.directories]
        asked = known + strangers
        assert snapshot.resolve_many(asked).tolist() == [
            -1 if inode is None else inode for inode in map(snapshot.resolve, asked)
        ]
        for path in strangers:
            assert (snapshot.resolve(path) is not None) == (path in known)
        many = [path for path in asked if path] * 32
        assert snapshot.paths.files(many) == [snapshot.paths.file(path) for path in many]
        text = snapshot.paths_text(np.arange(len(tree.files)), b"\0")
        assert sorted(text.split(b"\0")[:-1]) == sorted(tree.files)


@given(tree=trees())
@settings(max_examples=50)
def test_inodes_follow_chunks_and_positions(tree: Tree) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Snapshot.open(build(tree, Path(folder))) as snapshot,
    ):
        ranked = sorted(
            tree.files, key=lambda path: (tree.files[path].chunk, tree.files[path].position)
        )
        assert [snapshot.path_of(inode) for inode in range(snapshot.file_count)] == ranked
        chunks = sorted({file.chunk for file in tree.files.values()})
        assert snapshot.chunk_count == len(chunks)  # a chunk without live files is left out
        for number, chunk in enumerate(chunks):
            inodes = snapshot.files_in_chunk(number)
            assert [tree.files[snapshot.path_of(i)].chunk for i in inodes] == [chunk] * len(inodes)
            assert snapshot.chunk(number).id.value == chunk_id(chunk)
            assert all(snapshot.chunk_number(inode) == number for inode in inodes)
        assert snapshot.chunk_first_inode.tolist() == [
            *(snapshot.files_in_chunk(number).start for number in range(len(chunks))),
            len(tree.files),
        ]


@given(tree=trees())
@settings(max_examples=50)
def test_a_file_is_found_by_its_place(tree: Tree) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Snapshot.open(build(tree, Path(folder))) as snapshot,
    ):
        for path in tree.files:
            extent = snapshot.extent(inode_of(snapshot, path))
            if extent.length:
                found = snapshot.file_at(extent.chunk.id, extent.offset)
                assert found is not None
                at = snapshot.extent(found)
                assert (at.chunk, at.offset) == (extent.chunk, extent.offset)
                assert snapshot.file_at(extent.chunk.id, PAYLOAD_BYTES + 1) is None
        assert snapshot.file_at(ChunkId(b"x" * 16), 0) is None


def test_what_it_says_of_itself(pets: Snapshot) -> None:
    assert pets.dataset == DATASET
    assert (pets.generation, pets.updated_ns) == (7, 1234)
    assert pets.path.name == f"pets-{pets.id}.snapshot"
    assert pets.id.startswith("7-")


def test_root(pets: Snapshot) -> None:
    for path in ("", "/", b"", b"/"):
        assert pets.resolve(path) == ROOT == DIRECTORY_BASE
    assert pets.resolve_many(["", "/"]).tolist() == [ROOT, ROOT]
    assert pets.parent(ROOT) == ROOT
    assert pets.name(ROOT) == pets.path_of(ROOT) == b""
    assert pets.mode(ROOT) == 0o40755
    assert pets.mtime_ns(ROOT) == pets.updated_ns


@pytest.mark.parametrize(
    "path",
    [
        "cat/",
        "/cat",
        "cat//1.jpg",
        "cat/1.jpg/",
        ".",
        "cat/.",
        "cat/\0",
        "\0",
        "//",
        "1.jpg",
        "ca",
        "cat/1.jp",
    ],
)
def test_only_the_exact_path_is_found(pets: Snapshot, path: str) -> None:
    assert pets.resolve(path) is None
    assert pets.resolve_many([path, "cat/1.jpg"]).tolist() == [-1, pets.resolve("cat/1.jpg")]


def test_look_up_takes_one_component(pets: Snapshot) -> None:
    assert pets.lookup(ROOT, b"cat/1.jpg") is None
    assert pets.lookup(ROOT, b"cat/") is None
    assert pets.lookup(ROOT, b"cat/big") is None
    assert pets.lookup(ROOT, b"") is None
    assert pets.lookup(inode_of(pets, b"cat"), b"1.jpg") == pets.resolve("cat/1.jpg")
    assert pets.lookup(inode_of(pets, b"cat"), b"big") == pets.resolve("cat/big")


def test_text_is_encoded_as_the_file_system_does(pets: Snapshot) -> None:
    assert pets.resolve("dog/\udcff\n") == pets.resolve(b"dog/\xff\n") is not None
    assert pets.resolve_many(["dog/\udcff\n", "dög"]).tolist() == [pets.resolve(b"dog/\xff\n"), -1]


def test_no_paths(pets: Snapshot) -> None:
    assert pets.resolve_many([]).tolist() == []
    assert pets.paths_text(np.zeros(0, np.uint32)) == b""


def test_paths_as_text(pets: Snapshot) -> None:
    wanted = [b"cat/2.jpg", b"README", b"cat/2.jpg"]
    inodes = pets.resolve_many(wanted)
    expected = b"cat/2.jpg\nREADME\ncat/2.jpg\n"
    assert pets.paths_text(inodes) == pets.paths_text(inodes.astype(np.uint32)) == expected
    assert pets.paths_text(inodes, b"\t") == expected.replace(b"\n", b"\t")


def test_a_path_with_a_newline_has_no_line(pets: Snapshot) -> None:
    inodes = pets.resolve_many([b"README", b"dog/\xff\n"])
    with pytest.raises(ValueError, match=r"dog.*NUL"):
        pets.paths_text(inodes)
    assert pets.paths_text(inodes, b"\0") == b"README\0dog/\xff\n\0"


def test_only_files_have_a_line(pets: Snapshot) -> None:
    for inode in (ROOT, -1, pets.file_count):
        with pytest.raises(IndexError):
            pets.paths_text(np.array([0, inode]))
    for separator in (b"", b"/", b"\r\n"):
        with pytest.raises(ValueError, match="one byte"):
            pets.paths_text(np.array([0]), separator)


def test_inodes_that_do_not_exist(pets: Snapshot) -> None:
    for inode in (-1, pets.file_count, DIRECTORY_BASE - 1, DIRECTORY_BASE + pets.directory_count):
        for ask in (pets.mode, pets.size, pets.mtime_ns, pets.parent, pets.name, pets.path_of):
            with pytest.raises(IndexError):
                ask(inode)
    for inode in (0, DIRECTORY_BASE + pets.directory_count):
        with pytest.raises(IndexError):
            list(pets.children(inode))
    with pytest.raises(IndexError):
        pets.extent(ROOT)


def test_a_large_directory_is_listed_from_anywhere(tmp_path: Path) -> None:
    from tests.metadata.snapshot_trees import File

    names = sorted(b"%d" % number for number in range(5000))
    tree = Tree({b"d/" + name: File(at // 9, at % 9) for at, name in enumerate(names)})
    with Snapshot.open(build(tree, tmp_path)) as snapshot:
        directory = inode_of(snapshot, b"d")
        assert [name for name, _ in snapshot.children(directory)] == names
        for start in (1, 1023, 1024, 1025, 4999, 5000, 6000):
            assert [name for name, _ in snapshot.children(directory, start)] == names[start:]


def test_pickles_as_its_path(pets: Snapshot) -> None:
    with pickle.loads(pickle.dumps(pets)) as copy:
        assert copy.id == pets.id
        assert copy.resolve("cat/1.jpg") == pets.resolve("cat/1.jpg")


def test_works_in_a_forked_process(pets: Snapshot) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(pets.resolve, ("cat/1.jpg",)) == pets.resolve("cat/1.jpg")


def test_columns_outlive_the_snapshot(tmp_path: Path) -> None:
    snapshot = Snapshot.open(build(PETS, tmp_path))
    column = snapshot.columns.length
    snapshot.close()
    snapshot.close()
    assert int(column.sum()) == PETS.state.bytes
    with pytest.raises(AttributeError):
        snapshot.resolve("cat")
