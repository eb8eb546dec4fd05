"""Pieces as files: whole or not there, never changed, and nothing left of those that did not
fit."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.cache.node.block_checksums import BlockChecksums
from dieselfs.cache.node.chunk_files import ChunkFiles, FileSystemFull, map_block
from dieselfs.errors import CacheFull, LocalFileError
from tests.open_descriptors import open_descriptors

MIB = 1 << 20


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """One that holds 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_piece_is_stored_mapped_and_removed(tmp_path: Path) -> None:
    files = ChunkFiles(tmp_path)
    data = os.urandom(3 * MIB + 5)
    files.store("piece", memoryview(data))
    assert files.has("piece", len(data))
    assert not files.has("piece", len(data) - 1)
    assert (tmp_path / "piece").stat().st_mode & 0o777 == 0o400
    view = map_block(tmp_path, "piece", len(data))
    assert view is not None
    assert view[:] == data
    files.remove("piece")
    assert not files.has("piece", len(data))
    assert map_block(tmp_path, "piece", len(data)) is None
    files.remove("piece")
    files.store("piece", memoryview(bytes(len(data))))
    assert view[:] == data, "a map does not change, whatever becomes of the name"
    view.close()


def test_a_map_can_not_be_written_through(tmp_path: Path) -> None:
    ChunkFiles(tmp_path).store("piece", memoryview(b"content"))
    view = map_block(tmp_path, "piece", 7)
    assert view is not None
    assert memoryview(view).readonly
    with pytest.raises(TypeError):
        view[0] = 0


def test_maps_keep_no_descriptor_open(tmp_path: Path) -> None:
    files = ChunkFiles(tmp_path)
    files.store("piece", memoryview(b"content"))
    before = open_descriptors()
    views = [map_block(tmp_path, "piece", 7) for _ in range(50)]
    assert open_descriptors() <= before
    assert {view[:] for view in views if view is not None} == {b"content"}
    assert None not in views


def maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_a_closed_map_is_gone(tmp_path: Path) -> None:
    ChunkFiles(tmp_path).store("piece", memoryview(b"content"))
    view = map_block(tmp_path, "piece", 7)
    assert view is not None
    assert maps_of(tmp_path / "piece") == 1
    reader = memoryview(view)[:3]
    with pytest.raises(BufferError):
        view.close()
    assert reader == b"con"
    reader.release()
    view.close()
    assert maps_of(tmp_path / "piece") == 0


def test_a_failed_map_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dieselfs.cache.node import chunk_files

    def fails(*arguments: object) -> int:
        ctypes.set_errno(12)
        return -1

    ChunkFiles(tmp_path).store("piece", memoryview(b"content"))
    monkeypatch.setattr(chunk_files._libc, "mmap", fails)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        map_block(tmp_path, "piece", 7)


def test_a_file_of_another_length_is_not_mapped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "piece").write_bytes(b"short")
    assert map_block(tmp_path, "piece", 6) is None
    assert "has 5 bytes instead of 6" in caplog.text
    (tmp_path / "link").symlink_to(tmp_path / "piece")
    with pytest.raises(OSError):
        map_block(tmp_path, "link", 5)


def test_a_full_file_system_keeps_nothing_of_a_piece(
    small_tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ChunkFiles(small_tmpfs)
    files.store("first", memoryview(bytes(MIB // 2)))
    free = files.free_bytes()
    assert free <= MIB // 2
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda *_: pytest.fail("written before it is known to fit"))
        with pytest.raises(FileSystemFull) as caught:
            files.store("second", memoryview(bytes(MIB)))
    assert isinstance(caught.value, CacheFull)
    assert os.listdir(small_tmpfs) == ["first"]
    assert files.free_bytes() == free
    files.store("third", memoryview(bytes(free)))


def test_what_can_not_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(LocalFileError, match="No such file"):
        ChunkFiles(tmp_path / "gone").store("piece", memoryview(b"content"))
    with pytest.raises(ValueError):
        ChunkFiles(tmp_path).store("piece", memoryview(b""))
    assert os.listdir(tmp_path) == []


def test_a_store_that_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(fd: int, mode: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fchmod", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ChunkFiles(tmp_path).store("piece", memoryview(b"content"))
    assert os.listdir(tmp_path) == []


def kept(tmp_path: Path) -> ChunkFiles:
    """Files whose checksums are kept."""
    (tmp_path / "chunks").mkdir(exist_ok=True)
    return ChunkFiles(tmp_path / "chunks", checksums=tmp_path / "checksums")


def test_what_is_complete_is_adopted_and_the_rest_removed(tmp_path: Path) -> None:
    files, folder = kept(tmp_path), tmp_path / "chunks"
    for name in ("one", "two", "grown", "cut", "plain"):
        files.store(name, memoryview(name.encode()))
    (folder / ".three.12345678").write_bytes(b"unfinished")
    (folder / "folder").mkdir()
    for name in ("grown", "cut"):
        (folder / name).chmod(0o600)
    (folder / "grown").write_bytes(b"grown more")
    os.truncate(folder / "cut", 1)
    (tmp_path / "checksums" / "plain").unlink()  # as a master of a former release leaves it
    again = kept(tmp_path)
    assert again.adopt() == {"one": 3, "two": 3}
    assert sorted(os.listdir(folder)) == [".adopted.one", ".adopted.two", "folder"]
    assert sorted(os.listdir(tmp_path / "checksums")) == ["one", "two"]
    assert map_block(folder, "one", 3) is None, "nobody maps what is not verified"
    assert again.has("one", 3)
    assert not again.has("one", 2)
    assert kept(tmp_path).adopt() == {"one": 3, "two": 3}, "after a kill in the middle"
    again.reveal("one")
    assert map_block(folder, "one", 3) is not None
    again.remove("two")
    again.reveal("two")
    assert sorted(os.listdir(folder)) == ["folder", "one"]
    assert os.listdir(tmp_path / "checksums") == ["one"]


def test_a_piece_that_is_revealed_between_two_looks_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, look = kept(tmp_path), os.path.lexists
    files.store("piece", memoryview(b"content"))
    files.adopt()

    def look_and_reveal(path: Path) -> bool:
        found = look(path)
        files.reveal("piece")
        return found

    monkeypatch.setattr(os.path, "lexists", look_and_reveal)
    assert files.exists("piece")
    assert files.length("piece") == 7, "it is revealed"
    assert files.exists("piece")
    files.remove("piece")
    assert not files.exists("piece")


def test_files_that_somebody_has_changed_are_told_from_sound_ones(tmp_path: Path) -> None:
    files, path = kept(tmp_path), tmp_path / "chunks" / "piece"
    data = os.urandom(MIB + 3)
    files.store("piece", memoryview(data))
    assert files.is_sound("piece")
    path.chmod(0o600)
    for at in (0, MIB // 2, MIB + 2):
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
        assert files.is_sound("piece") is False
        path.write_bytes(data)
        assert files.is_sound("piece")
    for changed in (data[:-1], data + b"0", b""):
        path.write_bytes(changed)
        assert files.is_sound("piece") is False
    path.write_bytes(data)
    files.adopt()
    assert files.is_sound("piece") is None
    assert files.is_adopted_sound("piece")
    files.remove("piece")
    assert files.is_adopted_sound("piece") is None


def test_a_checksum_is_replaced_with_its_piece(tmp_path: Path) -> None:
    files = kept(tmp_path)
    files.store("piece", memoryview(b"first"))
    files.store("piece", memoryview(b"second"))
    assert files.is_sound("piece")


def test_a_piece_that_is_stored_again_while_it_is_verified_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, look = kept(tmp_path), BlockChecksums.of

    def look_and_be_late(checksums: BlockChecksums, name: str) -> str | None:
        found = look(checksums, name)
        if found is None:
            files.store(name, memoryview(b"data"))
        return found

    monkeypatch.setattr(BlockChecksums, "of", look_and_be_late)
    assert files.is_sound("piece")
