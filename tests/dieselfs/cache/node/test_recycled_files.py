from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from dieselfs.cache.node.chunk_files import ChunkFiles, map_block

SIZE = 1 << 20


def content(seed: int, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def files(tmp_path: Path) -> ChunkFiles:
    files = ChunkFiles(tmp_path)
    files.allow_recycled(2 * SIZE)
    return files


def inode(folder: Path, name: str) -> int:
    return (folder / name).stat().st_ino


def test_what_nobody_maps_is_written_over(tmp_path: Path, files: ChunkFiles) -> None:
    files.store("one", memoryview(content(1)))
    before = inode(tmp_path, "one")
    files.remove("one")
    assert not (tmp_path / "one").exists()
    files.store("two", memoryview(content(2)))
    assert inode(tmp_path, "two") == before
    assert (tmp_path / "two").read_bytes() == content(2)
    assert (tmp_path / "two").stat().st_mode & 0o777 == 0o400


@pytest.mark.parametrize("size", [1, 4096, SIZE - 1, SIZE + 1, 2 * SIZE + 5])
def test_another_length_is_the_files_length(tmp_path: Path, files: ChunkFiles, size: int) -> None:
    files.store("one", memoryview(content(1)))
    files.remove("one")
    files.store("two", memoryview(content(2, size)))
    assert (tmp_path / "two").read_bytes() == content(2, size)


def test_what_is_mapped_never_changes(tmp_path: Path, files: ChunkFiles) -> None:
    files.store("one", memoryview(content(1)))
    mapped = map_block(tmp_path, "one", SIZE)
    assert mapped is not None
    files.remove("one")
    for seed in range(2, 9):
        files.store(str(seed), memoryview(content(seed)))
        files.remove(str(seed))
    assert mapped[:] == content(1)
    mapped.close()


def test_what_is_open_never_changes(tmp_path: Path, files: ChunkFiles) -> None:
    files.store("one", memoryview(content(1)))
    fd = os.open(tmp_path / "one", os.O_RDONLY)
    files.remove("one")
    files.store("two", memoryview(content(2)))
    assert os.pread(fd, SIZE, 0) == content(1)
    os.close(fd)


def test_what_a_forked_child_maps_never_changes(tmp_path: Path, files: ChunkFiles) -> None:
    """Also when its parent has let go of it."""
    files.store("one", memoryview(content(1)))
    mapped = map_block(tmp_path, "one", SIZE)
    assert mapped is not None
    go_on, tell = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(tell)
        signal.alarm(60)
        os.read(go_on, 1)
        os._exit(0 if mapped[:] == content(1) else 1)
    mapped.close()
    files.remove("one")
    for seed in range(2, 6):
        files.store(str(seed), memoryview(content(seed)))
        files.remove(str(seed))
    os.write(tell, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(go_on)
    os.close(tell)


def test_no_more_is_kept_than_allowed(tmp_path: Path, files: ChunkFiles) -> None:
    for number in range(6):
        files.store(str(number), memoryview(content(number)))
    for number in range(6):
        files.remove(str(number))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 2 * SIZE


def test_none_is_adopted(tmp_path: Path, files: ChunkFiles) -> None:
    files.store("one", memoryview(content(1)))
    files.remove("one")
    assert ChunkFiles(tmp_path).adopt() == {}
    assert list(tmp_path.iterdir()) == []
