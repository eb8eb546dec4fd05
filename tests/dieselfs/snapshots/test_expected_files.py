"""The files that snapshots expect in chunks are those of their trees. A damaged snapshot is
refused, or its answers are within bounds."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.errors import Corrupt
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot
from metadata.snapshot_format import MAX_HEADER_BYTES, decode_header
from tests.eventually import eventually
from tests.metadata.snapshot_trees import PAYLOAD_BYTES, PETS, File, Tree, build

SECTIONS = ["chunk_id", "chunk_first_inode", "offset", "length", "hash", "chunk"]
ONE_A_CHUNK = Tree({b"one": File(0, 0, 0, PAYLOAD_BYTES, 0x1234)})


def chunks_of(path: Path) -> list[ChunkId]:
    with Snapshot.open(path) as snapshot:
        return [snapshot.chunk(number).id for number in range(snapshot.chunk_count)]


def test_files_of_chunks(tmp_path: Path) -> None:
    path = build(PETS, tmp_path)
    with Snapshot.open(path) as snapshot:
        expected, lengths = ExpectedFiles(snapshot), []
        for chunk in chunks_of(path):
            files = expected.of(chunk)
            assert files is not None
            lengths += files.length.tolist()
        assert sorted(lengths) == sorted(file.length for file in PETS.files.values())
        assert expected.of(ChunkId(b"\xee" * 16)) is None


@pytest.mark.parametrize("section", SECTIONS)
def test_damage_below_the_file_system(tmp_path: Path, section: str) -> None:
    """No times tell of it: what is said has the rows of its chunk, or the snapshot is refused."""
    path = build(PETS, tmp_path)
    sound, chunks = path.read_bytes(), chunks_of(path)
    start, size = decode_header(sound[:MAX_HEADER_BYTES], len(sound)).sections[section]
    draw = random.Random(1)
    for _ in range(60):
        damaged = bytearray(sound)
        for _ in range(draw.choice([1, 3, size])):
            damaged[draw.randrange(start, start + size)] = draw.choice([0, 1, 255, 127])
        path.unlink()  # a map of the file before must keep its content
        path.write_bytes(damaged)
        with Snapshot.open(path) as snapshot:
            for chunk in chunks:
                ask(ExpectedFiles(snapshot), chunk, snapshot.file_count)


def ask(expected: ExpectedFiles, chunk: ChunkId, files: int) -> None:
    try:
        of = expected.of(chunk)
        expected.only_file(chunk)
        expected.object_bytes(chunk)
    except (SnapshotRefused, Corrupt):
        return
    assert of is None or len(of.offset) == len(of.length) == len(of.hash) <= files


@pytest.mark.parametrize("ask_for", [ExpectedFiles.of, ExpectedFiles.only_file])
def test_a_changed_file_is_refused(
    tmp_path: Path, ask_for: Callable[[ExpectedFiles, ChunkId], object]
) -> None:
    """The error names the snapshot and no chunk; what was told before stays as it was."""
    path = build(ONE_A_CHUNK, tmp_path)
    path.chmod(0o600)
    os.utime(path, ns=(0, 0))  # so that the next change is in another step of the clock
    [chunk] = chunks_of(path)
    with Snapshot.open(path) as snapshot:
        expected = ExpectedFiles(snapshot)
        before = expected.of(chunk)
        assert before is not None
        assert ask_for(expected, chunk) is not None
        with open(path, "r+b") as file:
            file.seek(snapshot.header.sections["hash"][0])
            file.write(b"\xff" * 8)
        eventually(lambda: not snapshot.is_unchanged(), "the next tick")
        with pytest.raises(Corrupt, match=r"^chunks cannot be compared with their snapshot"):
            ask_for(expected, chunk)
        assert before.hash.tolist() == [0x1234]
