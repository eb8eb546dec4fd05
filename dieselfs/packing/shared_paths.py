"""Paths that two sources of one put share: either might be put last, so neither may be put.

Directories merge. A path is shared if a source has a file there and another one a file or a
directory. Nothing is kept for each file of a directory tree: while one tree is walked, the same
directory of the others is listed. A file that is named twice is no conflict.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence

from chunkstore.paths import ancestors
from dieselfs.dataset.file_stat import joined
from dieselfs.packing.put_request import FileList, batches_of_source
from dieselfs.packing.source_tree import EntryBatch, SkippedEntries, SourceTree


class SharedPaths:
    """The paths of several sources, to compare the batches of each with the other sources."""

    def __init__(self, sources: Sequence[SourceTree | FileList]) -> None:
        """List the files that are named one by one. A single source costs nothing."""
        self._trees: defaultdict[bytes, list[SourceTree]] = defaultdict(list)
        """Target -> the directory trees that are put there."""
        self._files: dict[bytes, bytes] = {}
        """The paths of named files, in the dataset and on disk."""
        self._directories: dict[bytes, bytes] = {}
        """The targets of trees, and all directories above a source -> a source on disk."""
        self._reported: set[bytes] = set()
        self._are_several = len(sources) > 1
        for source in sources if self._are_several else ():
            self._add(source)

    def reasons(self, source: SourceTree | FileList, batch: EntryBatch) -> Iterator[str]:
        """Yield why files of a batch cannot be put beside the other sources, each path once."""
        if not self._are_several:
            return
        trees = [
            tree.entries_at(batch.directory)
            for tree in self._covering(batch.directory)
            if tree is not source
        ]
        for name, path, disk_path in _files_of(batch):
            others = [self._files.get(path), self._directories.get(path)]
            for other in filter(None, (*others, *(found.get(name) for found in trees))):
                if path not in self._reported and not _is_same(disk_path, other):
                    self._reported.add(path)
                    yield (
                        f"{os.fsdecode(disk_path)} and {os.fsdecode(other)} would both be "
                        f"{os.fsdecode(path)} in the dataset"
                    )

    def _add(self, source: SourceTree | FileList) -> None:
        if isinstance(source, SourceTree) and source.is_directory():
            self._trees[source.target].append(source)
            self._add_directory(source.target, source.disk_path)
            return
        for batch in batches_of_source(source, SkippedEntries()):
            for _, path, disk_path in _files_of(batch):
                self._files.setdefault(path, disk_path)
            self._add_directory(batch.directory, batch.disk_directory)

    def _add_directory(self, directory: bytes, disk_path: bytes) -> None:
        if directory and directory not in self._directories:
            for path in (directory, *ancestors(directory)):
                self._directories.setdefault(path, disk_path)

    def _covering(self, directory: bytes) -> Iterator[SourceTree]:
        """Yield the trees whose target is `directory` or above it."""
        for target in dict.fromkeys((directory, *ancestors(directory), b"")):
            yield from self._trees.get(target, ())


def _files_of(batch: EntryBatch) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the name and the path in the dataset, and the path on disk, of each file."""
    for name in batch.names:
        shown = batch.renamed or name
        yield shown, joined(batch.directory, shown), os.path.join(batch.disk_directory, name)


def _is_same(disk_path: bytes, other: bytes) -> bool:
    try:
        return disk_path == other or os.path.samestat(os.lstat(disk_path), os.lstat(other))
    except OSError:
        return False
