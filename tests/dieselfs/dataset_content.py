"""A dataset, and a tree on disk, as dictionaries that must be equal."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.dataset.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Node:
    mode: int
    """With type bits."""
    mtime_ns: int
    data: bytes | None
    """None for a directory."""


def tree_of(top: Path, *, follow: bool = True) -> dict[bytes, Node]:
    """A tree on disk by path below `top`, which is b'' itself.

    Links are followed, or their data is their target.
    """
    found: dict[bytes, Node] = {}
    for folder, below, names in os.walk(os.fsencode(top), followlinks=follow):
        for name in [b"", *names, *below]:
            path = os.path.join(folder, name).rstrip(b"/")
            status = os.stat(path, follow_symlinks=follow)
            relative = os.path.relpath(path, os.fsencode(top))
            if stat.S_ISLNK(status.st_mode):
                data: bytes | None = os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                data = None
            else:
                data = Path(os.fsdecode(path)).read_bytes()
            key = b"" if relative == b"." else relative
            found[key] = Node(status.st_mode, status.st_mtime_ns, data)
    return found


def content_of(dataset: Dataset) -> dict[bytes, Node]:
    """Everything visible, every file read and verified."""
    namespace = dataset.namespace
    chunks = namespace.chunks()
    root = namespace.root()
    found = {b"": Node(int(root["mode"]), int(root["mtime_ns"]), None)}
    for listing in namespace.walk():
        prefix = listing.path + b"/" if listing.path else b""
        for name, row in zip(listing.directory_names, listing.directories, strict=True):
            found[prefix + name] = Node(int(row["mode"]), int(row["mtime_ns"]), None)
        for name, row in zip(listing.file_names, listing.files, strict=True):
            record = chunks[bytes(row["chunk"])]
            chunk = ChunkRef(ChunkId(bytes(row["chunk"])), record.head_bytes, record.payload_bytes)
            extent = FileExtent(chunk, int(row["offset"]), int(row["length"]), int(row["hash"]))
            data = bytes(dataset.reader.read(extent, 0, extent.length))
            found[prefix + name] = Node(int(row["mode"]), int(row["mtime_ns"]), data)
    return found
