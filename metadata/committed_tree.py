"""The content of a new dataset from its commits alone, for a snapshot without a scan of the index.

A commit's records (`metadata.commit_records`) are what the index gets of it. While every commit
only adds files under new names, the records of all commits together are the index, so they need not
be read from it again. Anything else is refused: a name that is given twice, a tombstone, a retired
chunk, a commit that is missing. A file needs about 500 bytes of memory.
"""

from __future__ import annotations

import stat
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import ChunkHead, DatasetRef
from chunkstore.commit_log import BIRTH_GENERATION, Commit
from metadata import keys
from metadata.application import chunk_record
from metadata.commit_records import MapPart, commit_records
from metadata.errors import RecordCorrupt
from metadata.kv.key_value_store import MapUpdate
from metadata.kv.memory import MemoryStore
from metadata.listing import DirectoryListing
from metadata.namespace import Namespace
from metadata.records import ChunkRecord, DatasetState, encode_entries, is_tombstone
from metadata.snapshot_builder import build_snapshot


class NotOnlyNew(Exception):
    """A commit does something else than to add files under new names to a new dataset."""


class CommittedTree:
    """A dataset that was empty, while commits are added to it. For one thread at a time."""

    def __init__(self, dataset: DatasetRef, most_files: int) -> None:
        """Refuse more than `most_files`, for the sake of memory."""
        self.dataset = dataset
        self._most_files = most_files
        self._generation, self._updated_ns = BIRTH_GENERATION, 0
        self._directories = MemoryStore()
        """The index without its files: what later commits read is in it."""
        self._files: defaultdict[bytes, list[MapPart]] = defaultdict(list)
        self._file_count = 0
        self._chunks: dict[bytes, ChunkRecord] = {}

    def add(self, commit: Commit, heads: Sequence[ChunkHead]) -> None:
        """Add the next commit, with the heads of all its chunks.

        Costs 2.5 µs a file. Raises `NotOnlyNew`; the tree is useless then.
        """
        parts, holes = commit_records(self._directories, self.dataset.id, commit, heads)
        if commit.generation != self._generation + 1 or commit.retired or holes.found:
            raise NotOnlyNew
        self._generation, self._updated_ns = commit.generation, commit.time_ns
        for part in parts:
            if is_tombstone(part.rows).any():
                raise NotOnlyNew
            if stat.S_ISDIR(int(part.rows["mode"][0])):
                values = encode_entries(part.key, part.names, part.rows)
                self._directories.put([[MapUpdate(part.key, part.names, values)]])
            else:
                assert part.directory is not None
                self._files[part.directory].append(part)
                self._file_count += len(part.names)
        self._chunks |= {head.chunk_id.value: chunk_record(commit, head) for head in heads}
        if self._file_count > self._most_files:
            raise NotOnlyNew

    def write(self, folder: Path) -> tuple[Path, DatasetState]:
        """Write the snapshot that a scan of the index would give, and return its path.

        The snapshot is that of the dataset only if the index has the returned state. Costs 1.5 µs a
        file. Raises `NotOnlyNew`.
        """
        names = Namespace(self._directories, self.dataset)
        self._put_state(DatasetState(self._generation, self._updated_ns, 0, 0, 0, 0))
        listings = [self._with_files(listing) for listing in names.walk()]
        state = DatasetState(
            self._generation,
            self._updated_ns,
            files=self._file_count,
            bytes=sum(int(listing.files["length"].sum()) for listing in listings),
            directories=sum(len(listing.directory_names) for listing in listings),
            chunks=len(self._chunks),
        )
        try:
            path = build_snapshot(self.dataset, state, names.root(), listings, self._chunks, folder)
        except RecordCorrupt as error:  # a name twice, or files in a directory that is hidden
            raise NotOnlyNew from error
        return path, state

    def _put_state(self, state: DatasetState) -> None:
        """Put the time of the last commit, which is that of a root that no entry describes."""
        key = keys.state_of(self.dataset.id)
        self._directories.put([[MapUpdate(key, [keys.APPLIED], [state.encode(key, keys.APPLIED)])]])

    def _with_files(self, listing: DirectoryListing) -> DirectoryListing:
        parts = self._files.get(listing.path)
        if parts is None:
            return listing
        names = list(chain.from_iterable(part.names for part in parts))
        order = sorted(range(len(names)), key=names.__getitem__)
        rows: npt.NDArray[np.void] = (
            np.concatenate([part.rows for part in parts], dtype=parts[0].rows.dtype)
        )[order]
        return replace(listing, file_names=[names[at] for at in order], files=rows)
