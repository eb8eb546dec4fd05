"""Bytes as the sections of the C extension's look-up of paths, and questions to it.

Each section ends where its memory ends. So a sanitizer notices a read behind it (`make sanitize`),
where the map of a snapshot would have the next section. What is found is checked against the
sections in Python.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash

from metadata._path_lookup import FileLookup
from metadata.path_lookup import EXTENSION_SECTIONS
from metadata.snapshot import Snapshot
from tests.metadata.snapshot_trees import PETS, File, Tree, build

MANY = Tree(
    {b"%d/%d/%d.jpg" % (number % 7, number % 3, number): File(0, number) for number in range(80)}
)
KNOWN = [*PETS.files, *PETS.directories, *MANY.files, b"", b"/", b"absent"]
_HEADER = struct.Struct("<IBB10I")
"""Reach, bytes of a `name_at`, bytes that the sections are off their alignment, lengths."""


def seeds() -> list[bytes]:
    return [_encode(tree, width) for tree in (PETS, MANY) for width in (4, 8)]


def _encode(tree: Tree, name_at_bytes: int) -> bytes:
    with (
        tempfile.TemporaryDirectory() as folder,
        Snapshot.open(build(tree, Path(folder))) as snapshot,
    ):
        columns = {name: getattr(snapshot.columns, name) for name in EXTENSION_SECTIONS}
        columns["name_at"] = columns["name_at"].astype(f"u{name_at_bytes}")
        sections = [column.tobytes() for column in columns.values()]
        header = snapshot.header
    lengths = [len(section) for section in sections]
    return _HEADER.pack(header.file_index_reach, name_at_bytes, 0, *lengths) + b"".join(sections)


def use(data: bytes) -> None:
    """Raises `ValueError` if these are no sections of a look-up."""
    if len(data) < _HEADER.size:
        raise ValueError("no header")
    reach, name_at_bytes, skew, *lengths = _HEADER.unpack_from(data)
    formats = ["I", "I", "Q" if name_at_bytes == 8 else "I", *"BBQBIIQ"]
    sections, at = {}, _HEADER.size
    for name, form, length in zip(EXTENSION_SECTIONS, formats, lengths, strict=True):
        sections[name] = _section(data[at : at + length], form, skew % 8)
        at += length
    lookup = FileLookup(reach, xxhash.xxh3_64_intdigest, *sections.values())
    _ask(lookup, sections)


def _section(content: bytes, form: str, skew: int) -> memoryview[int]:
    """The content as numbers if its length is one of numbers, else as bytes, in memory of its
    own."""
    memory = np.frombuffer(bytes(skew) + content, np.uint8).copy()
    section = memoryview(memory)[skew:]
    fits = content and len(content) % struct.calcsize(form) == 0
    return section.cast(form) if fits else section  # type: ignore[call-overload, no-any-return]


def _ask(lookup: FileLookup, sections: dict[str, memoryview[int]]) -> None:
    found = lookup.files(KNOWN)
    assert found == [lookup.file(path) for path in KNOWN]
    files = len(sections["parent"])
    for path, inode in zip(KNOWN, found, strict=True):
        assert inode is None or (inode < files and _path_of(sections, inode) == path)
    for inode in range(min(files, 10)):
        path = _path_of(sections, inode)
        assert path is None or lookup.is_path_of(inode, path)
        assert not lookup.is_path_of(inode, b"absent")


def _path_of(sections: dict[str, memoryview[int]], inode: int) -> bytes | None:
    """The path of a file by its columns; None if they lead out of their sections."""
    directory, ends = sections["parent"][inode], sections["directory_path_at"]
    if directory + 1 >= len(ends):
        return None
    name, size = sections["name_at"][inode], sections["name_bytes"][inode]
    above = _within(sections["directory_paths"], ends[directory], ends[directory + 1])
    below = _within(sections["names"], name, name + size)
    return None if above is None or below is None else above + below


def _within(heap: Sequence[int], start: int, end: int) -> bytes | None:
    return bytes(heap[start:end]) if start <= end <= len(heap) else None
