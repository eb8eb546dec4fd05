"""The request of a put, and its progress."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from chunkstore.chunk_format import MAX_ENTRIES
from chunkstore.keep_together import KEYS, KeepTogether, KeyOf, gathered, whole_parts
from chunkstore.packing_settings import Order, PackingSettings
from chunkstore.stores.adaptive_limit import LimitStatistics
from dieselfs.dataset.packing_choice import PackingChoice
from dieselfs.packing.source_tree import (
    BATCH_FILES,
    EntryBatch,
    LinkRule,
    SkippedEntries,
    SourceTree,
    is_kept,
    listed_batches,
)
from dieselfs.snapshots.put_snapshots import PutSnapshot

OPEN_CHUNKS: Final = 32
"""Half of what a writer has by itself, since batches come mixed.

This takes half the memory, and the first chunk is full, and its upload starts, after half the time
(docs/decisions/0004).
"""


@dataclass(frozen=True, slots=True)
class FileList:
    """Files named one by one, relative to `base`, for `--files-from`."""

    base: bytes
    target: bytes
    paths: Sequence[bytes]
    links: LinkRule = "follow"
    keep_together: KeepTogether = "none"


class Beside(StrEnum):
    """The behaviour of a put while another put into the same paths is under way."""

    WAIT = "wait"
    """Wait for its end, then skip what it has put."""
    REFUSE = "refuse"
    ANYWAY = "anyway"
    """Go on; what both put is stored twice."""


@dataclass(frozen=True, slots=True)
class PackRequest:
    """The sources to pack, and the rules."""

    sources: Sequence[SourceTree | FileList]
    jobs: int = 1
    order: Order | None = None
    """See `chunkstore.chunk_writer`; None, as below, for what the dataset remembers.

    `path` and `given` pack with one process, whatever `jobs` is.
    """
    seed: int = 0
    target_bytes: int | None = None
    keep_together: KeepTogether | None = None
    open_chunks: int = OPEN_CHUNKS
    """Open chunks of each process, in the order `scatter`."""
    checksum: bool = False
    """Compare content with the stored content, which is read, instead of size and mtime."""
    paranoid: bool = False
    """Read each stored object back, and compare it before it counts."""
    delete: bool = False
    """Delete what the dataset has below the targets of directories and the sources do not have."""
    max_delete: int | None = None
    """The most files to delete; with more, nothing is put or deleted."""
    snapshot_folder: Path | None = None
    """The folder in which a snapshot is built to be published at the end; None: publish none."""
    beside: Beside = Beside.WAIT
    """The behaviour while another put into the same paths is under way."""

    @property
    def choice(self) -> PackingChoice:
        """The packing settings that are given."""
        return PackingChoice(self.target_bytes, self.order, self.keep_together)

    def arranged(self, settings: PackingSettings) -> PackRequest:
        """Return the request with the sources walked as the settings need it."""
        return replace(self, sources=[_arranged(source, settings) for source in self.sources])


def _arranged(source: SourceTree | FileList, settings: PackingSettings) -> SourceTree | FileList:
    if isinstance(source, FileList):
        return replace(source, keep_together=settings.keep_together)
    by_path = settings.order == "path"
    return replace(source, by_path=by_path, keep_together=settings.keep_together)


@dataclass(slots=True)
class PackProgress:
    """The progress of a put; any thread may read it."""

    files_found: int = 0
    """Files that the preflight has found; the total, once `walked`."""
    walked: bool = False
    commits: int = 0
    """Commits that the packing made."""
    files_committed: int = 0
    """Acknowledged files: durable and in the dataset."""
    bytes_committed: int = 0
    chunks_committed: int = 0
    chunks_of_directories: int = 0
    """Those of them that hold no file, but attributes of directories."""
    files_unchanged: int = 0
    files_repaired: int = 0
    """Packed files that the dataset had, but whose stored content was damaged."""
    files_deleted: int = 0
    files_reused: int = 0
    """Committed files in chunks that a killed put had stored; they count as unchanged too."""
    chunks_reused: int = 0
    chunks_retired: int = 0
    """Chunks of this put or another one that nothing refers to, since both put the same."""
    uploads: LimitStatistics = field(default_factory=LimitStatistics)
    """The limit of uploads of all packing processes, once they have ended."""
    failed: list[str] = field(default_factory=list)
    """Reasons why files could not be read after all, one for each file."""
    special: list[bytes] = field(default_factory=list)
    """Sockets, pipes and devices, which are left out."""
    links: list[bytes] = field(default_factory=list)
    """Symbolic links that the request leaves out."""
    outside: list[str] = field(default_factory=list)
    """Reasons why links that should be kept are left out: they may lead out of their source."""
    stopping: bool = False
    """The user has interrupted the put, and what is stored is being committed."""
    snapshot: PutSnapshot | None = None
    """The snapshot that shows the dataset at the end, if the request publishes one."""
    unpublished: str = ""
    """The reason why no snapshot could be published; what was put is in the dataset."""
    packing: PackingSettings = field(default_factory=PackingSettings)
    """The settings that the put packs with."""
    on_snapshot: Callable[[int], None] = lambda files: None
    """A callback while the snapshot is built, with the number of files that it has so far."""
    on_note: Callable[[str], None] = lambda line: None
    """A callback with a line for the user."""
    on_change: Callable[[PackProgress], None] = lambda progress: None
    """A callback after a change, called from several threads.

    The caller's thread makes the first call, once all processes are forked: from then on it may
    start threads.
    """

    def changed(self) -> None:
        """Call `on_change`."""
        self.on_change(self)


def batches_of(
    sources: Sequence[SourceTree | FileList], skipped: SkippedEntries
) -> Iterator[EntryBatch]:
    """Yield all files of the sources, in batches.

    Files that are named one by one and kept together come first.
    """
    named, others = _named_together(sources)
    if named:
        found = (batch for source in named for batch in source.batches(skipped))
        yield from _joined(found, KEYS[named[0].keep_together])
    for source in others:
        yield from batches_of_source(source, skipped)


def _named_together(
    sources: Sequence[SourceTree | FileList],
) -> tuple[list[SourceTree], Sequence[SourceTree | FileList]]:
    """Return the sources that are files to keep together, each a batch of its own, and others."""
    named: list[SourceTree] = []
    others: list[SourceTree | FileList] = []
    for source in sources:
        if isinstance(source, FileList) or source.keep_together == "none" or source.is_directory():
            others.append(source)
        else:
            named.append(source)
    return named, others


def _joined(batches: Iterable[EntryBatch], key_of: KeyOf | None) -> Iterator[EntryBatch]:
    """Yield batches of one file each, with those of one directory that stay together in one."""
    assert key_of is not None
    found: defaultdict[tuple[bytes, bytes], list[EntryBatch]] = defaultdict(list)
    for batch in batches:
        if batch.renamed is None:
            found[batch.disk_directory, batch.directory].append(batch)
        else:
            yield batch
    for group in found.values():
        names = gathered((name for batch in group for name in batch.names), key_of)
        links = frozenset[bytes]().union(*(batch.links for batch in group))
        for some in whole_parts(names, BATCH_FILES, MAX_ENTRIES, key_of):
            yield replace(group[0], names=some, links=links.intersection(some))


def batches_of_source(
    source: SourceTree | FileList, skipped: SkippedEntries, batch_files: int = BATCH_FILES
) -> Iterator[EntryBatch]:
    """Yield all files of one source, in batches."""
    if isinstance(source, FileList):
        paths, links = _listed(source, skipped)
        return listed_batches(
            source.base,
            source.target,
            paths,
            batch_files,
            links=links,
            keep_together=source.keep_together,
        )
    return source.batches(skipped, batch_files)


def _listed(source: FileList, skipped: SkippedEntries) -> tuple[Sequence[bytes], Set[bytes]]:
    """Return the paths to put, and those of them that are put as links."""
    if source.links not in ("keep", "skip"):
        return source.paths, frozenset()
    paths, links = [], set()
    for path in source.paths:
        disk_path = os.path.join(source.base, path)
        if not os.path.islink(disk_path):
            paths.append(path)
        elif source.links == "skip":
            skipped.links.append(path)
        elif is_kept(disk_path, path.count(b"/"), skipped):
            paths.append(path)
            links.add(path)
    return paths, links
