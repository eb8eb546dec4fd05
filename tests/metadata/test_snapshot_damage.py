"""A snapshot that is not sound is refused with the reason; if damage comes later, the reader gets
an error, not a crash."""

import os
import random
import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import xxhash

from metadata.errors import SnapshotRefused
from metadata.snapshot import ROOT, Snapshot
from metadata.snapshot_format import (
    MAX_HEADER_BYTES,
    SnapshotHeader,
    blank_hashes,
    decode_header,
    encode_header,
    header_bytes,
)
from tests.metadata.snapshot_trees import PETS, File, Tree, build


@pytest.fixture
def sound(tmp_path: Path) -> bytes:
    return build(PETS, tmp_path / "sound").read_bytes()


def refused(data: bytes, folder: Path, check: Callable[[Path], object] = Snapshot.open) -> str:
    path = folder / "damaged.snapshot"
    path.write_bytes(data)
    with pytest.raises(SnapshotRefused) as caught:
        check(path)
    return str(caught.value)


def test_foreign_files(tmp_path: Path, sound: bytes) -> None:
    assert "not a snapshot" in refused(b"", tmp_path)
    assert "not a snapshot" in refused(b"#!/bin/sh\n", tmp_path)
    assert "not a snapshot" in refused(b"\x7fELF" + bytes(8192), tmp_path)
    assert "format 9" in refused(sound[:8] + b"\x09\0" + sound[10:], tmp_path)


def test_wrong_length(tmp_path: Path, sound: bytes) -> None:
    for data in (sound[:-1], sound[: len(sound) // 2], sound + b"\0"):
        assert "truncated" in refused(data, tmp_path)
    for length in range(200):
        refused(sound[:length], tmp_path)


def test_truncated_while_it_is_opened(
    tmp_path: Path, sound: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def truncated(data: bytes, size: int) -> SnapshotHeader:
        header = decode_header(data, size)
        os.truncate(tmp_path / "damaged.snapshot", 100)
        return header

    monkeypatch.setattr("metadata.snapshot.decode_header", truncated)
    assert "truncated" in refused(sound, tmp_path)


def test_any_flipped_bit_of_the_header_is_found_when_opened(tmp_path: Path, sound: bytes) -> None:
    for at in range(header_bytes("pets")):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (at % 8)
        refused(bytes(damaged), tmp_path)


def test_any_flipped_bit_is_found_when_verified(tmp_path: Path, sound: bytes) -> None:
    for at in range(len(sound)):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (at % 8)
        refused(bytes(damaged), tmp_path, Snapshot.verify)


def exercise(snapshot: Snapshot) -> None:
    """Ask everything. A damaged number may be told, but names found are names asked for, and errors
    are of these kinds."""
    errors = (SnapshotRefused, IndexError)
    known = [*PETS.files, *PETS.directories]

    def attempt(ask: Callable[[], object]) -> None:
        try:
            ask()
        except errors:
            pass

    def found_as_asked(path: bytes) -> None:
        inode = snapshot.resolve(path)
        assert inode is None or snapshot.path_of(inode) == path

    for path in known:
        attempt(lambda path=path: found_as_asked(path))  # type: ignore[misc]
    attempt(lambda: snapshot.resolve_many(known))
    attempt(lambda: snapshot.paths_text(np.arange(snapshot.file_count), b"\0"))

    def list_directory(inode: int) -> None:
        for at, (_, child) in enumerate(snapshot.children(inode)):
            if not snapshot.is_directory(child):
                assert snapshot.parent(child) == inode
            if at > 100:
                break

    def kinds(inode: int) -> None:
        kind = stat.S_IFMT(snapshot.mode(inode))
        assert kind == (stat.S_IFDIR if snapshot.is_directory(inode) else stat.S_IFREG)
        assert snapshot.size(inode) <= snapshot.total_bytes

    def walk() -> None:
        pending, seen = [ROOT], 0
        while pending:
            below = [child for _, child in snapshot.children(pending.pop())]
            pending += filter(snapshot.is_directory, below)
            seen += len(below)
            assert seen <= snapshot.file_count + snapshot.directory_count

    attempt(walk)
    for inode in range(ROOT, ROOT + snapshot.directory_count):
        attempt(lambda inode=inode: list_directory(inode))  # type: ignore[misc]
        attempt(lambda inode=inode: kinds(inode))  # type: ignore[misc]
    for inode in range(snapshot.file_count):
        attempt(lambda inode=inode: snapshot.extent(inode))  # type: ignore[misc]
        attempt(lambda inode=inode: snapshot.path_of(inode))  # type: ignore[misc]
        attempt(lambda inode=inode: kinds(inode))  # type: ignore[misc]
    for number in range(snapshot.chunk_count):
        attempt(lambda number=number: snapshot.files_in_chunk(number))  # type: ignore[misc]


@pytest.mark.usefixtures("each_path_lookup")
def test_damage_after_the_file_was_verified(tmp_path: Path, sound: bytes) -> None:
    generator = random.Random(1)
    start = header_bytes("pets")
    path = tmp_path / "damaged.snapshot"
    for _ in range(400):
        damaged = bytearray(sound)
        for _ in range(generator.choice([1, 2, 8, 64])):
            damaged[generator.randrange(start, len(damaged))] = generator.choice(
                [0, 1, 47, 127, 255]
            )
        path.unlink(missing_ok=True)  # a map of the file before must keep its content
        path.write_bytes(damaged)
        with Snapshot.open(path) as snapshot:
            exercise(snapshot)


@pytest.mark.usefixtures("each_path_lookup")
def test_damage_of_each_section(tmp_path: Path, sound: bytes) -> None:
    """As a disk would do it, of which the file's times do not tell."""
    generator = random.Random(2)
    path = tmp_path / "damaged.snapshot"
    for start, size in decode_header(sound[:MAX_HEADER_BYTES], len(sound)).sections.values():
        for _ in range(12 if size else 0):
            damaged = bytearray(sound)
            for _ in range(generator.choice([1, 3, size])):
                at = generator.randrange(start, start + size)
                damaged[at] = generator.choice([0, 1, 47, 255, generator.randrange(256)])
            path.unlink(missing_ok=True)
            path.write_bytes(damaged)
            with Snapshot.open(path) as snapshot:
                exercise(snapshot)
                with pytest.raises(SnapshotRefused) if damaged != sound else nullcontext():
                    snapshot.check_hash()


def resealed(data: bytes) -> bytes:
    """With hashes made right: the work of a broken builder, or of an enemy."""
    header = decode_header(data[:MAX_HEADER_BYTES], len(data))
    length = header_bytes(header.dataset.name)
    digest = xxhash.xxh3_128_digest(blank_hashes(data[:length]) + data[length:])
    at = encode_header(header).index(header.file_hash)
    body = data[:at] + digest + data[at + 16 : length - 8]
    return body + xxhash.xxh3_64_digest(body) + data[length:]


@pytest.mark.parametrize("length", [0, 4096, 1 << 32])
def test_a_link_of_a_wrong_length_is_refused(tmp_path: Path, length: int) -> None:
    path = build(Tree({b"b": File(0, 0, 0, length, mode=0o120777)}), tmp_path)
    with pytest.raises(SnapshotRefused, match="length of a link"):
        Snapshot.verify(path)


def test_a_device_beside_a_link_is_refused(tmp_path: Path) -> None:
    files = {b"a": File(0, 0), b"b": File(0, 1, 0, 5, mode=0o120777)}
    data = build(Tree(files), tmp_path).read_bytes()
    at = decode_header(data[:MAX_HEADER_BYTES], len(data)).sections["mode"][0]
    broken = data[:at] + (0o020666).to_bytes(2, "little") + data[at + 2 :]
    assert "mode of a file" in refused(resealed(broken), tmp_path, Snapshot.verify)


def test_a_link_in_a_snapshot_of_version_1_is_refused(tmp_path: Path) -> None:
    data = build(Tree({b"b": File(0, 0, 0, 5, mode=0o120777)}), tmp_path).read_bytes()
    assert data[8:10] == b"\2\0"
    broken = data[:8] + b"\1\0" + data[10:]
    length = header_bytes("pets")
    broken = broken[: length - 8] + xxhash.xxh3_64_digest(broken[: length - 8]) + data[length:]
    assert "mode of a file" in refused(resealed(broken), tmp_path, Snapshot.verify)


ANYTHING = {"hash", "offset", "mtime_ns", "directory_mtime_ns", "chunk_head_bytes", "chunk_id"}
"""Sections whose numbers the snapshot cannot know to be wrong."""
WRONG = {
    # Other values may be as good: one that is not.
    "names": b"a/b",
    "mode": b"\xff\xff",
    "directory_mode": b"\xff\xff",
    "length": b"\xff" * 8,
    "chunk_payload_bytes": bytes(8),
    # Of a directory without children, `first` says nothing. The root has some.
    "directory_first_file": b"\x01",
    "directory_first_directory": b"\x02",
}


def test_wrong_content_under_right_hashes(tmp_path: Path, sound: bytes) -> None:
    """Each byte of the other sections matters."""
    assert resealed(sound) == sound
    header = decode_header(sound[:MAX_HEADER_BYTES], len(sound))
    for name, (start, size) in header.sections.items():
        if name in WRONG:
            wrong = WRONG[name]
            refused(
                resealed(sound[:start] + wrong + sound[start + len(wrong) :]),
                tmp_path,
                Snapshot.verify,
            )
        elif name not in ANYTHING:
            for at in range(start, start + size):
                damaged = bytearray(sound)
                damaged[at] ^= 0x80
                refused(resealed(bytes(damaged)), tmp_path, Snapshot.verify)
