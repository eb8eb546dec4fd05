"""Large objects past the page cache: every size around the borders of blocks, buffers and the
threshold, and no direct I/O at all."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.stores import direct_write
from chunkstore.stores.direct_write import DirectWriter, gathered

MIB = 1 << 20
SIZES = [
    0,
    1,
    4095,
    256 * 1024 - 1,
    256 * 1024,
    MIB + 1,
    8 * MIB - 1,
    8 * MIB,
    8 * MIB + 1,
    17 * MIB + 4097,
]


def write(path: Path, parts: list[bytes]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    writer = DirectWriter(fd)
    for piece in gathered(parts):
        writer.write(piece)
    writer.finish()
    os.close(fd)


def cut(content: bytes) -> list[bytes]:
    draw, parts, at = random.Random(len(content)), [], 0
    while at < len(content):
        size = draw.choice([1, 4096, 5000, 300_000, 9 * MIB])
        parts.append(content[at : at + size])
        at += size
    return parts


@pytest.mark.parametrize("size", SIZES)
def test_what_is_written_is_there(tmp_path: Path, size: int) -> None:
    content = random.Random(size).randbytes(size)
    write(tmp_path / "object", cut(content))
    assert (tmp_path / "object").read_bytes() == content


@pytest.mark.parametrize("size", SIZES)
def test_without_direct_io(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_write, "_set_direct", lambda fd, wanted: False)
    content = random.Random(size).randbytes(size)
    write(tmp_path / "object", cut(content))
    assert (tmp_path / "object").read_bytes() == content


def test_a_device_with_larger_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a device answers EINVAL to the write, not to the flag."""
    plain_write = os.write

    def picky(fd: int, data: memoryview) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT and len(data) % 65536:
            raise OSError(errno.EINVAL, "unaligned")
        return plain_write(fd, data)

    monkeypatch.setattr(os, "write", picky)
    content = random.Random(1).randbytes(9 * MIB + 5)
    write(tmp_path / "object", cut(content))
    assert (tmp_path / "object").read_bytes() == content


def test_a_short_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_write = os.write
    monkeypatch.setattr(
        os, "write", lambda fd, data: plain_write(fd, data[: max(512, len(data) // 2)])
    )
    content = random.Random(2).randbytes(MIB + 77)
    write(tmp_path / "object", cut(content))
    assert (tmp_path / "object").read_bytes() == content


def test_few_parts_are_read_ahead() -> None:
    """Parts of a large file are read when they are wanted: a thousand of 4 MiB are 4 GiB."""
    wanted = 0

    def parts() -> Iterator[bytes]:
        nonlocal wanted
        for _ in range(100):
            wanted += 1
            yield bytes(4 * MIB)

    for number, block in enumerate(gathered(parts()), 1):
        assert len(block) == 8 * MIB
        assert wanted <= 2 * number + 6
