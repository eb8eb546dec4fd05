"""A file is in a local folder whole, with its mode and mtime, or it is not there."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.client.extraction.local_folder import LocalFolder
from dieselfs.errors import LocalFileError

TIME_NS = 1_577_840_523_123_456_789


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LocalFolder]:
    folder = LocalFolder(tmp_path / "out")
    yield folder
    folder.close()


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("mode", [0o100644, 0o100777, 0o104755, 0o100400, 0o100000])
def test_modes_are_restored_whatever_the_umask(folder: LocalFolder, mode: int) -> None:
    with folder.directory("a/b") as directory:
        assert directory.write_file("file", mode, TIME_NS, [b"one", memoryview(b"two")]) == 6
    path = folder.root / "a/b/file"
    status = path.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (mode & 0o777, TIME_NS)
    assert path.read_bytes() == b"onetwo"


def test_nothing_is_left_of_a_file_whose_content_fails(folder: LocalFolder) -> None:
    def content() -> Iterator[bytes]:
        yield b"beginning"
        raise ValueError("damaged")

    with folder.directory("") as directory:
        directory.write_file("file", 0o644, 0, [b"before"])
        with pytest.raises(ValueError, match="damaged"):
            directory.write_file("file", 0o644, 0, content())
    assert os.listdir(folder.root) == ["file"]
    assert (folder.root / "file").read_bytes() == b"before"


def test_a_file_is_not_visible_before_it_is_whole(folder: LocalFolder) -> None:
    def content() -> Iterator[bytes]:
        yield b"beginning"
        assert not (folder.root / "file").exists()

    with folder.directory("") as directory:
        directory.write_file("file", 0o644, 0, content())
    assert (folder.root / "file").read_bytes() == b"beginning"


def test_a_directory_in_the_place_of_a_file_is_named(folder: LocalFolder) -> None:
    folder.make_directory("a/file")
    with folder.directory("a") as directory:
        with pytest.raises(LocalFileError, match="out/a/file: Is a directory"):
            directory.write_file("file", 0o644, 0, [b"content"])
    assert os.listdir(folder.root / "a") == ["file"]


def test_what_was_made_here_is_known(tmp_path: Path, folder: LocalFolder) -> None:
    (folder.root / "old").mkdir()
    folder.make_directory("old/new")
    made = [folder.was_made(path) for path in ("", "old", "old/new")]
    assert made == [True, False, True]
    again = LocalFolder(folder.root)
    assert not again.was_made("")
    again.close()


def test_only_a_regular_file_of_size_and_time_is_the_same(folder: LocalFolder) -> None:
    with folder.directory("") as directory:
        directory.write_file("file", 0o644, TIME_NS, [b"four"])
        (folder.root / "link").symlink_to("file")
        found = [
            directory.is_same(name, size, time_ns)
            for name, size, time_ns in (
                ("file", 4, TIME_NS),
                ("file", 5, TIME_NS),
                ("file", 4, TIME_NS + 1),
                ("link", 4, TIME_NS),
                ("none", 4, TIME_NS),
            )
        ]
    assert found == [True, False, False, False, False]


def test_a_link_in_the_way_is_refused_while_it_runs(tmp_path: Path, folder: LocalFolder) -> None:
    (tmp_path / "outside").mkdir()
    folder.make_directory("a")
    (folder.root / "a").rmdir()
    (folder.root / "a").symlink_to(tmp_path / "outside")
    with pytest.raises(LocalFileError, match="out/a is a symbolic link"):
        with folder.directory("a"):
            pass
    assert os.listdir(tmp_path / "outside") == []
