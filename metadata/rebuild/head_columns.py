"""A chunk's head as columns for the rebuild: files for their directories, and directory entries."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import ChunkHead
from metadata.records import ENTRY, RECORD_VERSION, entry_versions

FILE_ENTRY: Final = np.dtype(
    [
        ("place", "<u8"),  # chunk and position: see `metadata.rebuild.chunk_table`
        ("version", "<u8"),  # generation << 1 | is a tombstone
        ("offset", "<u8"),
        ("length", "<u8"),
        ("hash", "<u8"),
        ("mtime_ns", "<i8"),
        ("directory", "<u4"),  # number in the directory table
        ("mode", "<u2"),
        ("name_bytes", "u1"),
        ("reserved", "u1"),
    ]
)
"""The entry of a file, or its tombstone, without the name. 56 bytes."""

_COPIED: Final = ("offset", "length", "hash", "mtime_ns", "mode")


@dataclass(frozen=True, slots=True)
class HeadColumns:
    """The content of one head: n files and m directories, including tombstones of either."""

    files: npt.NDArray[np.void]
    """The entries as `FILE_ENTRY`, by position; `directory` is not filled yet."""
    file_parents: list[bytes]
    file_names: list[bytes]
    files_add: npt.NDArray[np.bool_]
    """The mask of the files that are new and no tombstones."""
    directories: npt.NDArray[np.void]
    """The entries as `metadata.records.ENTRY`, by position."""
    directory_places: npt.NDArray[np.uint64]
    directory_paths: list[bytes]
    directories_add: npt.NDArray[np.bool_]


def head_columns(head: ChunkHead, generation: int, first_place: int) -> HeadColumns:
    """Return the columns of a head whose chunk `generation` added. About 0.3 µs an entry."""
    entries = head.entries
    count = len(entries)
    versions = entry_versions(entries, generation)
    adds = versions == np.uint64(generation << 1)
    places = np.arange(first_place, first_place + count, dtype=np.uint64)

    paths = entries.paths
    is_directory = (entries.mode & 0o170000) == stat.S_IFDIR
    chosen: slice | npt.NDArray[np.intp] = slice(None)
    at = np.flatnonzero(is_directory)
    if len(at):
        chosen = np.flatnonzero(~is_directory)
        file_paths = [paths[number] for number in chosen.tolist()]
    else:
        file_paths = list(paths)
    split = [path.rpartition(b"/") for path in file_paths]
    names = [name for _, _, name in split]
    files = np.zeros(len(names), FILE_ENTRY)
    files["place"], files["version"] = places[chosen], versions[chosen]
    files["name_bytes"] = np.fromiter(map(len, names), np.uint8, len(names))
    directories = np.zeros(len(at), ENTRY)
    directories["version"], directories["placed"] = versions[at], generation
    directories["chunk"] = np.frombuffer(head.chunk_id.value, "V16")
    directories["position"], directories["record_version"] = at, RECORD_VERSION
    for column in _COPIED:
        values = getattr(entries, column)
        files[column], directories[column] = values[chosen], values[at]
    return HeadColumns(
        files,
        [parent for parent, _, _ in split],
        names,
        adds[chosen],
        directories,
        places[at],
        [paths[number] for number in at.tolist()],
        adds[at],
    )
