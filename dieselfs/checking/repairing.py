"""The repair of what `fsck` found, where it loses nothing: index, snapshots, local files.

It never changes a chunk or a commit.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chunkstore.chunk_format import ChunkHead
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import CommitLog
from chunkstore.progress import NO_PROGRESS, Progress
from chunkstore.stores.object_store import ObjectStore
from dieselfs.checking.findings import Finding, Repair
from dieselfs.checking.fsck import FsckReport
from dieselfs.checking.index_check import drop_name
from dieselfs.dataset.dataset import open_dataset
from dieselfs.errors import Conflict
from dieselfs.snapshots import lifecycle
from metadata.kv.key_value_store import KeyValueStore
from metadata.reapplication import reapply_later
from metadata.rebuild import rebuild
from metadata.rebuild.repaired_index import RepairedIndex
from metadata.snapshot_folder import file_name


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The findings that `repair` handled, and the others."""

    repaired: tuple[Finding, ...]
    left: tuple[Finding, ...]
    """The findings that it cannot repair."""


def repair(
    store: ObjectStore,
    index: KeyValueStore,
    report: FsckReport,
    snapshot_folder: Path,
    progress: Progress = NO_PROGRESS,
) -> RepairReport:
    """Repair those findings of `report` that can be repaired; the call may be repeated.

    `progress` receives the entries and bytes of each head. The index is repaired first, since
    a fresh snapshot is made from it. No other process should write to the dataset meanwhile:
    commits that it applies during the repair may be applied again. Raises what opening a dataset
    raises.
    """
    todo = [finding for finding in report.findings if finding.repair is not None]
    if any(finding.repair is Repair.REPAIR_INDEX for finding in todo):
        _repair_index(store, index, report, progress)
    # Local files come before objects: a fresh snapshot for the store may have the name of a damaged
    # file.
    for finding in sorted(todo, key=lambda finding: finding.repair is not Repair.DELETE_LOCAL):
        _repair_snapshot(store, index, report, finding, snapshot_folder)
    return RepairReport(
        tuple(todo), tuple(finding for finding in report.findings if finding.repair is None)
    )


def _repair_index(
    store: ObjectStore, index: KeyValueStore, report: FsckReport, progress: Progress
) -> None:
    dataset = report.dataset
    log = CommitLog(store, dataset)
    commits = list(log.since(0))
    if len(commits) < report.generation:
        raise Conflict(
            f"commits of {dataset.name} were removed after the check", "run the check again"
        )
    reader = ChunkReader(store, dataset)

    def read_head(chunk: ChunkRef) -> ChunkHead:
        head = reader.head(chunk.id, chunk.head_bytes)
        progress.advance(len(head.entries), chunk.head_bytes)
        return head

    settle = partial(reapply_later, index, dataset, log, reader)
    rebuild(dataset, commits, read_head, RepairedIndex(index, settle))
    drop_name(index, dataset)
    open_dataset(store, index, dataset.name)  # puts the name and applies later commits


def _repair_snapshot(
    store: ObjectStore, index: KeyValueStore, report: FsckReport, finding: Finding, folder: Path
) -> None:
    match finding.repair:
        case Repair.DELETE_SNAPSHOT:
            store.delete(finding.object)
        case Repair.DELETE_LOCAL:
            with suppress(FileNotFoundError):
                Path(finding.object).unlink()
        case Repair.REPUBLISH_SNAPSHOT:
            snapshot_id = finding.object.rpartition("/")[2]
            store.delete(finding.object)
            lifecycle.publish_snapshot(store, folder / file_name(report.dataset.name, snapshot_id))
        case Repair.REPLACE_SNAPSHOT:
            # The new snapshot is built before the other is deleted, and stored after: it may have
            # the same id.
            path = lifecycle.build(open_dataset(store, index, report.dataset.name), folder)
            store.delete(finding.object)
            lifecycle.publish_snapshot(store, path)
