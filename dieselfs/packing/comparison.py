"""The comparison of files on disk with those of the dataset: what a put can skip."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

import numpy as np
import xxhash

from dieselfs.packing.source_tree import EntryBatch
from metadata.namespace import Namespace

_PART_BYTES: Final = 4 << 20


class Present(NamedTuple):
    """A file that the dataset has."""

    size: int
    mode: int
    """The st_mode with type bits."""
    mtime_ns: int
    row: np.void
    """`metadata.records.ENTRY`; the fields that few puts need are read when they are asked for."""

    @property
    def hash(self) -> int:
        """The xxh3_64 of the content."""
        return int(self.row["hash"])

    @property
    def chunk(self) -> bytes:
        """The id of the chunk that holds the content."""
        return bytes(self.row["chunk"])

    @property
    def offset(self) -> int:
        """The place of the content in the chunk's payload."""
        return int(self.row["offset"])

    def may_equal(self, status: os.stat_result, *, checksum: bool) -> bool:
        """Return False if the file on disk differs, as its attributes say.

        With `checksum`, mtimes do not count, and equal attributes say nothing about the content.
        """
        if (self.size, self.mode) != (status.st_size, status.st_mode):
            return False
        return checksum or self.mtime_ns == status.st_mtime_ns


def present_files(namespace: Namespace, batch: EntryBatch) -> dict[bytes, Present]:
    """Return the files of a batch that the dataset has, by their names on disk.

    Costs one round trip.
    """
    wanted = [batch.renamed] if batch.renamed else batch.names
    rows = namespace.stat_files(batch.directory, wanted)
    return {
        name: Present(
            int(row["length"]),
            int(row["mode"]),
            int(row["mtime_ns"]),
            row,
        )
        for name, row in zip(batch.names, rows, strict=True)
        if row is not None
    }


def hash_of_file(disk_path: bytes, *, is_link: bool = False) -> int:
    """Return the xxh3_64 of a file's content; that of a link is its target."""
    if is_link:
        return xxhash.xxh3_64_intdigest(os.readlink(disk_path))
    whole = xxhash.xxh3_64()
    with open(disk_path, "rb", buffering=0) as file:
        while part := file.read(_PART_BYTES):
            whole.update(part)
    return whole.intdigest()
