"""The names of one dataset in an index: commits are applied, paths looked up, directories listed.

The index is a view of the commit log. Any number of processes may apply the same commit, any number
of times, because every record is put under a stamp and the greater stamp stays:

- An entry's stamp is (version, is a tombstone, generation that placed it). So a tombstone hides
  every version up to the one it saw, and a later commit that merely moves an entry keeps its
  version.
- A chunk record's stamp is the number of its holes, which only grow. Totals are stamped by
  generation. Both are computed from the entries as they were before, and put in a phase before
  those entries: a process that resumes half an application finds them complete.

Everything is a function of the commits alone: a directory's record gets the generation of the last
commit that put something below it, and keeps its attributes. So the removal of a directory never
hides a file that a concurrent writer added to it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import ChunkHead, DatasetRef, decode_head
from chunkstore.chunk_id import print_id
from chunkstore.chunk_reader import ChunkReader
from chunkstore.commit_log import Commit, CommitLog
from chunkstore.paths import split
from metadata import keys
from metadata.application import apply_commit
from metadata.commit_source import ChunkGone, ChunkHeads, commits_after, removed
from metadata.dataset_state import hold, indexed_dataset, read_held, read_progress, read_state
from metadata.errors import IndexBehind, PathConflict, PathNotFound, RecordCorrupt
from metadata.kv.key_value_store import KeyValueStore, MapFields, read_map
from metadata.listing import DirectoryListing
from metadata.records import ENTRY, ChunkRecord, DatasetState, decode_entries, is_tombstone


@dataclass(frozen=True, slots=True)
class PathEntry:
    """One live path and its row of the index."""

    path: bytes
    row: np.void
    """`metadata.records.ENTRY`."""

    @property
    def is_directory(self) -> bool:
        """True if the entry is a directory."""
        return stat.S_ISDIR(int(self.row["mode"]))

    @property
    def generation(self) -> int:
        """The generation of the commit that gave the path this content."""
        return int(self.row["version"]) >> 1


class Namespace:
    """One dataset's names in an index. As thread-safe as the index."""

    def __init__(self, index: KeyValueStore, dataset: DatasetRef) -> None:
        self.dataset = dataset
        self.index = index

    def state(self) -> DatasetState:
        """Return the generation applied, the update timestamp and the totals; one get."""
        return read_state(self.index, self.dataset.id, keys.APPLIED)

    def apply(
        self,
        commit: Commit,
        heads: Sequence[bytes | memoryview],
        retired_heads: Sequence[ChunkHead] = (),
    ) -> DatasetState:
        """Apply the commit that follows the generation applied.

        `heads` are the encoded heads of the chunks that it adds, in the order of `commit.added`.
        `retired_heads` are those of the chunks that it retires.
        """
        decoded = [decode_head(head, ref.id) for head, ref in zip(heads, commit.added, strict=True)]
        return apply_commit(self.index, self.dataset.id, commit, decoded, retired_heads)

    def catch_up(self, log: CommitLog, reader: ChunkReader) -> DatasetState:
        """Apply every commit of the store that the index lacks.

        It reads the heads of the chunks that they add and retire. A held index goes no further than
        its generation. If chunks of the missing commits have been purged and deleted meanwhile, the
        index is compared with the whole store (`reapply`), with a warning. Raises `DatasetNotFound`
        if the dataset has been removed, `IndexBehind` if the index is being rebuilt. If there is
        nothing to do, the cost is one get of the index and two requests to the store.
        """
        progress = read_progress(self.index, self.dataset.id)
        if progress.is_rebuilding:
            raise IndexBehind(
                f"the index of dataset {self.dataset.name!r} is being rebuilt, or a rebuild was "
                "interrupted: wait for it, "
                f"or run `dlcmd recover {self.dataset.name}`"
            )
        state = progress.applied
        commits = commits_after(log, state.generation, progress.held)
        if not commits and not state.generation:  # every dataset has a first commit
            raise removed(log)
        retired = {chunk_id for commit in commits for chunk_id in commit.retired}
        try:
            with ChunkHeads(reader, retired) as heads:
                for commit in commits:
                    added = heads.added(commit)
                    state = apply_commit(
                        self.index, self.dataset.id, commit, added, heads.retired(commit)
                    )
        except ChunkGone:
            return self.reapply(log, reader, state.generation)
        return state

    def reapply(self, log: CommitLog, reader: ChunkReader, after: int) -> DatasetState:
        """Restore what the index lost of the commits after `after` (`metadata.reapplication`)."""
        from metadata.reapplication import reapply  # most commands need no rebuild

        return reapply(self.index, self.dataset, log, reader, after)

    def held(self) -> int | None:
        """Return the generation at which this index is held, None if it follows the store.

        One get.
        """
        return read_held(self.index, self.dataset.id)

    def hold(self, generation: int) -> None:
        """Hold the index at `generation` for good.

        It shows one point in time and is closed to writers.
        """
        hold(self.index, self.dataset.id, generation)

    def stat(self, path: bytes) -> PathEntry:
        """Return the live entry at `path`; one round trip.

        A directory hides a file of its name. Raises `PathNotFound`.
        """
        if not path:
            return PathEntry(b"", self.root())
        directory, name = split(path)
        lookups = [
            MapFields(keys.directories_of(self.dataset.id, directory), [name]),
            MapFields(keys.files_of(self.dataset.id, directory), [name]),
        ]
        for lookup, values in zip(lookups, self.index.get_many(lookups), strict=True):
            if (value := values[0]) is not None and not path.startswith(b"/"):
                row = decode_entries(lookup.key, [name], [value])[0]
                if not is_tombstone(row):
                    return PathEntry(path, row)
        raise PathNotFound(
            f"no such file or directory in dataset {self.dataset.name}: "
            f"{path.decode(errors='replace')}"
        )

    def stat_files(self, directory: bytes, names: Sequence[bytes]) -> list[np.void | None]:
        """Return the rows of the live files of these names in one directory, None for other names.

        One round trip.
        """
        key = keys.files_of(self.dataset.id, directory)
        values = self.index.get_many([MapFields(key, names)])[0]
        found = [number for number, value in enumerate(values) if value is not None]
        rows = decode_entries(
            key, [names[n] for n in found], [value for value in values if value is not None]
        )
        result: list[np.void | None] = [None] * len(names)
        for number, row, deleted in zip(found, rows, is_tombstone(rows).tolist(), strict=True):
            if not deleted:
                result[number] = row
        return result

    def root(self) -> np.void:
        """Return the root directory's row: as put, or 0755 at the time of the last update."""
        key = keys.directories_of(self.dataset.id, b"")
        value = self.index.get_many([MapFields(key, [keys.ROOT_FIELD])])[0][0]
        if value is not None:
            put = decode_entries(key, [keys.ROOT_FIELD], [value])
            if not is_tombstone(put)[0]:
                return cast(np.void, put[0])
        row = np.zeros((), ENTRY)
        row["mode"], row["mtime_ns"] = stat.S_IFDIR | 0o755, self.state().updated_ns
        return cast(np.void, row[()])

    def list(self, directory: bytes) -> DirectoryListing:
        """Return the live children of a directory; one scan for files, one for directories.

        Raises `PathNotFound` and `PathConflict`.
        """
        self._check_directory(directory)
        return self._scan(directory)

    def directory_names(self, directory: bytes) -> Sequence[bytes]:
        """Return the names of the live sub-directories, none for a missing directory. One scan."""
        return self._live(keys.directories_of(self.dataset.id, directory))[0]

    def walk(self, top: bytes = b"") -> Iterator[DirectoryListing]:
        """Yield the listings of `top` and of all below it.

        Parents come before children, siblings are sorted.
        """
        self._check_directory(top)
        pending = [top]
        while pending:
            listing = self._scan(pending.pop())
            yield listing
            prefix = listing.path + b"/" if listing.path else b""
            pending.extend(prefix + name for name in reversed(listing.directory_names))

    def chunk(self, chunk_id: bytes) -> ChunkRecord:
        """Return one chunk's record; one get.

        Raises `RecordCorrupt` if the index does not know the chunk or the chunk is retired.
        """
        key = keys.chunks_of(self.dataset.id)
        value = self.index.get_many([MapFields(key, [chunk_id])])[0][0]
        record = None if value is None else ChunkRecord.decode(key, chunk_id, value)
        if record is None or record.retired:
            raise RecordCorrupt(
                f"the index has no record of chunk {print_id(chunk_id)}; rebuild it with `dlcmd "
                "recover`"
            )
        return record

    def chunks(self) -> dict[bytes, ChunkRecord]:
        """Return all chunk records by chunk id, without those of retired chunks."""
        key = keys.chunks_of(self.dataset.id)
        return {
            chunk_id: record
            for batch in self.index.scan(key)
            for chunk_id, value in batch
            if not (record := ChunkRecord.decode(key, chunk_id, value)).retired
        }

    def forget(self) -> None:
        """Drop every record of the dataset.

        The call may be repeated after a crash: the name goes last.
        """
        tops = [keys.chunks_of(self.dataset.id), keys.state_of(self.dataset.id)]
        pending = [b""]
        while pending:
            directory = pending.pop()
            prefix = directory + b"/" if directory else b""
            below = keys.directories_of(self.dataset.id, directory)
            pending.extend(
                prefix + name for batch in self.index.scan(below) for name, _ in batch if name
            )
            tops += [below, keys.files_of(self.dataset.id, directory)]
        # The deepest maps go first, so that after an interruption the rest is still found from the
        # root.
        self.index.drop(tops[:1:-1])
        self.index.drop(tops[:2])
        if indexed_dataset(self.index, self.dataset.name) == self.dataset:
            self.index.remove([MapFields(keys.DATASETS, [self.dataset.name.encode()])])

    def _check_directory(self, path: bytes) -> None:
        if path and not self.stat(path).is_directory:
            raise PathConflict(f"{path.decode(errors='replace')} is not a directory")

    def _scan(self, directory: bytes) -> DirectoryListing:
        directory_names, directories = self._live(keys.directories_of(self.dataset.id, directory))
        file_names, files = self._live(keys.files_of(self.dataset.id, directory))
        hidden = set(directory_names).intersection(file_names)
        if not hidden:
            return DirectoryListing(directory, file_names, files, directory_names, directories)
        kept = [number for number, name in enumerate(file_names) if name not in hidden]
        under = [number for number, name in enumerate(file_names) if name in hidden]
        return DirectoryListing(
            directory,
            [file_names[number] for number in kept],
            files[kept],
            directory_names,
            directories,
            [file_names[number] for number in under],
            files[under],
        )

    def _live(self, key: bytes) -> tuple[Sequence[bytes], npt.NDArray[np.void]]:
        found = read_map(self.index, key)
        found.pop(keys.ROOT_FIELD, None)
        names = sorted(found)
        rows = decode_entries(key, names, [found[name] for name in names])
        deleted = is_tombstone(rows)
        if deleted.any():
            names = [
                name
                for name, is_deleted in zip(names, deleted.tolist(), strict=True)
                if not is_deleted
            ]
            rows = rows[~deleted]
        return names, rows
