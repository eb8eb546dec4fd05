from __future__ import annotations

import pytest

from chunkstore.errors import InvalidPath
from dieselfs.dataset.parent_directories import ParentDirectories
from metadata.errors import PathConflict
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from tests.metadata.commit_histories import DATASET, history, put


@pytest.fixture
def parents() -> ParentDirectories:
    index = MemoryStore()
    history([[[put(b"cat/1.jpg"), put(b"cat/big/2.jpg"), put(b"readme")]]]).apply_to(index)
    return ParentDirectories(Namespace(index, DATASET))


@pytest.mark.parametrize(
    "path",
    [
        b"", b"/a", b"a/", b"a//b", b".", b"..", b"a/./b", b"a/../b", b"a/..", b"\0", b"a\0b", b"a\0/b",
        b"n" * 256, b"a/" + b"n" * 256, b"n" * 256 + b"/a", b"/".join([b"n" * 255] * 16) + b"/" + b"x" * 10,
        b"/", b"//", b"/a/b",
    ],
)  # fmt: skip
def test_illegal_paths(parents: ParentDirectories, path: bytes) -> None:
    with pytest.raises(InvalidPath):
        parents.check_file(path)
    if path:
        with pytest.raises(InvalidPath):
            parents.check_directory(path)


@pytest.mark.parametrize("path", [b"a", b"...", b"\xff\n", b" ", b"n" * 255, b"..a/.b"])
def test_legal_paths(parents: ParentDirectories, path: bytes) -> None:
    parents.check_file(path)
    parents.check_file(path)
    parents.check_directory(b"other/" + path)


@pytest.mark.parametrize("path", [b"cat", b"cat/big"])
def test_no_file_over_a_directory(parents: ParentDirectories, path: bytes) -> None:
    with pytest.raises(PathConflict, match="is a directory"):
        parents.check_file(path)
    parents.check_directory(path)


@pytest.mark.parametrize("path", [b"readme/x", b"cat/1.jpg/x", b"readme/x/y/z"])
def test_nothing_below_a_file(parents: ParentDirectories, path: bytes) -> None:
    with pytest.raises(PathConflict, match="is a file"):
        parents.check_file(path)
    with pytest.raises(PathConflict):
        parents.check_directory(path)


def test_what_this_writer_put_and_nobody_sees_yet(parents: ParentDirectories) -> None:
    parents.check_file(b"new/sub/x")
    for path in (b"new", b"new/sub"):
        with pytest.raises(PathConflict):
            parents.check_file(path)
    with pytest.raises(PathConflict):
        parents.check_file(b"new/sub/x/y")
    with pytest.raises(PathConflict):
        parents.check_directory(b"new/sub/x")
    parents.check_directory(b"made")
    with pytest.raises(PathConflict):
        parents.check_file(b"made")


def test_a_deleted_directory_leaves_its_name(parents: ParentDirectories) -> None:
    parents.check_file(b"new/x")
    with pytest.raises(PathConflict):
        parents.check_file(b"new")
    parents.deleted(b"new")
    parents.check_file(b"new")


def test_a_refused_path_leaves_nothing(parents: ParentDirectories) -> None:
    with pytest.raises(PathConflict):
        parents.check_file(b"readme/sub/x")
    with pytest.raises(InvalidPath):
        parents.check_file(b"bad/./x")
    parents.check_file(b"bad")


def test_the_memory_is_bounded(parents: ParentDirectories, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs.dataset.parent_directories._REMEMBERED", 50)
    for number in range(500):
        parents.check_file(b"d%d/x" % number)
        parents.check_file(b"f%d" % number)
    assert len(parents._files) <= 50
    assert len(parents._taken_in) <= 50
    with pytest.raises(PathConflict):
        parents.check_file(b"cat")
