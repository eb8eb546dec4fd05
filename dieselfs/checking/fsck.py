"""`fsck`: the comparison of a dataset's store, index and snapshots, without payloads.

It changes nothing. Each part is read once, in this order: the commits; the heads of all committed
chunks, which also determine what the index should be; the index; the snapshots and tags. If
something is lost, the index is scanned once more to name the files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.progress import NO_PROGRESS, Progress
from chunkstore.stores.object_store import ObjectStore
from dieselfs.checking.damaged_files import chunk_findings, files_by_heads
from dieselfs.checking.files_hit import IndexedFiles, indexed_files
from dieselfs.checking.findings import Finding, FindingKind, Verdict, verdict_of
from dieselfs.checking.head_checks import HeadChecks
from dieselfs.checking.index_check import IndexCheck, check_index
from dieselfs.checking.snapshot_check import check_snapshots
from dieselfs.checking.store_check import ListedDataset, read_stored, retired_after
from metadata.kv.key_value_store import KeyValueStore

_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The extent and the findings of a check by `fsck`."""

    dataset: DatasetRef
    generation: int
    """The generation of the newest commit."""
    chunks: int
    """The chunks that are committed and not retired."""
    uncommitted_chunks: int
    """The objects that no commit names; they are no fault.

    They are being written, or are garbage for `dlcmd gc`.
    """
    snapshots: int
    """The published snapshots."""
    local_snapshots: int
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The result of the check."""
        return verdict_of(self.findings)

    @property
    def commits_lost(self) -> bool:
        """True if a finding shows that commits are lost."""
        lost = (FindingKind.COMMIT_MISSING, FindingKind.COMMIT_DAMAGED, FindingKind.INDEX_AHEAD)
        return any(finding.kind in lost for finding in self.findings)


def fsck(
    store: ObjectStore,
    index: KeyValueStore,
    name: str,
    *,
    snapshot_folder: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> FsckReport:
    """Check the dataset `name`, and its snapshot files in `snapshot_folder`.

    `progress` receives the entries and bytes of each head. Raises `DatasetNotFound`, and
    `Unavailable`, `Denied` or `IndexUnavailable`, which do not mean that the dataset is damaged.
    Memory: the heads of the largest commit or the index's largest directory; if there are both lost
    chunks and a damaged index, also an index in memory.
    """
    stored, heads, indexed = _checked(store, index, name, progress)
    damages = {
        chunk_id: damage
        for chunk_id, damage in heads.damages.items()
        if chunk_id in stored.required()
    }
    if damages:
        for chunk_id in retired_after(store, stored.dataset, stored.newest):
            damages.pop(chunk_id, None)
    snapshots = check_snapshots(store, stored, damages, snapshot_folder)
    known = IndexedFiles()
    lost = [*stored.broken, *range(stored.newest + 1, indexed.generation + 1)]
    if damages or lost:
        known = indexed_files(index, stored.dataset, damages, lost)
    files = dict(known.by_chunk)
    if damages and not indexed.shows(stored.newest):
        files = files_by_heads(store, index, stored, damages, heads, snapshot_folder)
    findings = (
        *_with_files(stored, known),
        *chunk_findings(name, damages, files, snapshots.hits),
        *(_with_lost_files(finding, stored, known) for finding in indexed.findings),
        *snapshots.findings,
    )
    return FsckReport(
        stored.dataset,
        stored.newest,
        len(stored.required()),
        stored.uncommitted,
        snapshots.published,
        snapshots.local,
        findings,
    )


def _checked(
    store: ObjectStore, index: KeyValueStore, name: str, progress: Progress
) -> tuple[ListedDataset, HeadChecks, IndexCheck]:
    """Return commits, heads and the check of the index.

    They are read again if the index is ahead only because a writer committed in between.
    """
    newest = -1
    for _ in range(_TRIES):
        stored = read_stored(store, name)
        heads = HeadChecks(store, stored.dataset, stored.sizes, progress)
        heads_and_index = stored, heads, check_index(index, stored, heads)
        heads.read_rest(stored.required().values())
        ahead = any(f.kind is FindingKind.INDEX_AHEAD for f in heads_and_index[2].findings)
        if not ahead or stored.newest == newest:
            break
        newest = stored.newest
    return heads_and_index


def _with_files(stored: ListedDataset, known: IndexedFiles) -> list[Finding]:
    """Return the broken commits, with the files that they placed."""
    return [
        replace(finding, files=tuple(sorted(known.by_generation.get(generation, ()))))
        for generation, finding in stored.broken.items()
    ]


def _with_lost_files(finding: Finding, stored: ListedDataset, known: IndexedFiles) -> Finding:
    """Add to an index that is ahead the files of the commits that only it knows."""
    if finding.kind is not FindingKind.INDEX_AHEAD:
        return finding
    files = [p for g, paths in known.by_generation.items() if g > stored.newest for p in paths]
    return replace(finding, files=tuple(sorted(files)))
