"""Small datasets as dictionaries, and the snapshots made of them: the dictionary is the model that
a snapshot must equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from chunkstore.chunk_format import DatasetRef
from metadata.listing import DirectoryListing
from metadata.records import ENTRY, NO_CHUNK, ChunkRecord, DatasetState
from metadata.snapshot_builder import build_snapshot

DATASET = DatasetRef("pets", bytes(range(16)))
PAYLOAD_BYTES = 1 << 33
HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class File:
    chunk: int
    position: int
    offset: int = 0
    length: int = 0
    hash: int = 0
    mtime_ns: int = 0
    mode: int = 0o100644


@dataclass(frozen=True)
class Tree:
    """Files by path, and directories with nothing in them; the directories above either follow."""

    files: Mapping[bytes, File]
    empty_directories: frozenset[bytes] = field(default_factory=frozenset)

    @property
    def directories(self) -> set[bytes]:
        """Without the root."""
        found = set(self.empty_directories)
        for path in [*self.files, *self.empty_directories]:
            while b"/" in path:
                path = path.rpartition(b"/")[0]
                found.add(path)
        return found

    def children(self, directory: bytes) -> tuple[list[bytes], list[bytes]]:
        """Names of sub-directories and of files, sorted."""

        def below(paths: Iterator[bytes] | set[bytes]) -> list[bytes]:
            pairs = ((b"/" + path).rpartition(b"/") for path in paths)
            prefix = b"/" + directory if directory else b""
            return sorted(name for above, _, name in pairs if above == prefix)

        return below(self.directories), below(iter(self.files))

    def listings(self) -> Iterator[DirectoryListing]:
        """Breadth first."""
        pending = [b""]
        for directory in pending:
            prefix = directory + b"/" if directory else b""
            directory_names, file_names = self.children(directory)
            files = np.zeros(len(file_names), ENTRY)
            for row, name in zip(files, file_names, strict=True):
                file = self.files[prefix + name]
                row["chunk"] = chunk_id(file.chunk)
                for column in ("position", "offset", "length", "hash", "mtime_ns", "mode"):
                    row[column] = getattr(file, column)
            directories = np.zeros(len(directory_names), ENTRY)
            directories["mode"] = 0o40750
            directories["chunk"] = NO_CHUNK
            directories["mtime_ns"] = 5
            yield DirectoryListing(directory, file_names, files, directory_names, directories)
            pending += [prefix + name for name in directory_names]

    @property
    def chunks(self) -> dict[bytes, ChunkRecord]:
        record = ChunkRecord(
            generation=1,
            updated_ns=0,
            head_bytes=HEAD_BYTES,
            payload_bytes=PAYLOAD_BYTES,
            entry_count=0,
            file_count=0,
            deleted_count=0,
            deleted_bytes=0,
            deleted=b"",
        )
        used = {file.chunk for file in self.files.values()}
        # One more, of which nothing is left.
        return {chunk_id(number): record for number in used | {max(used, default=0) + 1}}

    @property
    def state(self) -> DatasetState:
        total = sum(file.length for file in self.files.values())
        chunks = len(self.chunks)
        return DatasetState(7, 1234, len(self.files), total, len(self.directories), chunks)


def chunk_id(number: int) -> bytes:
    return number.to_bytes(4, "big") + b"machine" + bytes(5)


def build(tree: Tree, folder: Path) -> Path:
    return build_snapshot(DATASET, tree.state, None, tree.listings(), tree.chunks, folder)


PETS = Tree(
    {
        b"README": File(3, 0, 0, 11, 0x1111, 1_700_000_000_000_000_001),
        b"cat/1.jpg": File(1, 0, 0, 100, 0x2222, 2, 0o100600),
        b"cat/2.jpg": File(2, 1, 64, 5_000_000_000, 0x3333, 3),
        b"cat/big/1.jpg": File(1, 2, 100, 17, 0xFFFFFFFFFFFFFFFF, -4),
        b"dog/\xff\n": File(2, 0, 0, 0, 0, 0),
        b"dog/1.jpg": File(1, 1, 100, 0, 0x4444, 5),
    },
    frozenset([b"empty/inner", b"cat.d"]),
)

LINKS = Tree(
    {
        **PETS.files,
        b"latest": File(1, 3, 117, 9, 0x5555, 7, 0o120777),
        b"cat/up": File(2, 2, 64, 4095, 0x6666, -1, 0o120777),
        b"dog/a": File(4, 0, 0, 1, 0x7777, 8, 0o120777),
    },
    PETS.empty_directories,
)
"""With symbolic links; one of the chunks holds nothing else."""

components = st.one_of(
    st.sampled_from(
        [b"a", b"b", b"a.b", b"a-", b"A", b"..a", b"\xff", b" ", b"n" * 64, b"n" * 255]
    ),
    st.binary(min_size=1, max_size=20).filter(
        lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
    ),
)
paths = st.lists(components, min_size=1, max_size=5).map(b"/".join)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    wanted = draw(st.lists(paths, max_size=30, unique=True))
    empty = frozenset(draw(st.lists(paths, max_size=3)))
    directories = Tree({}, empty).directories | Tree(dict.fromkeys(wanted, File(0, 0))).directories
    places = draw(st.permutations(range(len(wanted))))
    per_chunk = draw(st.integers(1, 7))
    files = {
        path: File(
            chunk=place // per_chunk,
            position=place % per_chunk,
            offset=draw(st.integers(0, 1 << 32)),
            length=draw(st.integers(0, 1 << 32)),
            hash=draw(st.integers(0, (1 << 64) - 1)),
            mtime_ns=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
            mode=0o100000 | draw(st.integers(0, 0o7777)),
        )
        for path, place in zip(wanted, places, strict=True)
        if path not in directories
    }
    for path in draw(st.lists(st.sampled_from(sorted(files)), max_size=4)) if files else []:
        files[path] = replace(files[path], length=draw(st.integers(1, 4095)), mode=0o120777)
    return Tree(files, frozenset(empty - set(files)))
