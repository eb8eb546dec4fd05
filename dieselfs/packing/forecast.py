"""The forecast of a put: what it would do, for `dlcmd put --dry-run`. Nothing is changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from chunkstore.errors import BadSource
from chunkstore.packing_settings import PackingSettings
from dieselfs.dataset.dataset import Dataset
from dieselfs.dataset.packing_choice import packing_settings
from dieselfs.dataset.parent_directories import ParentDirectories
from dieselfs.packing.comparison import Present, hash_of_file, present_files
from dieselfs.packing.deletion import planned_deletions
from dieselfs.packing.preflight import preflight
from dieselfs.packing.put_request import PackProgress, PackRequest, batches_of_source
from dieselfs.packing.source_tree import EntryBatch, SkippedEntries
from dieselfs.packing.stored_copies import StoredCopies

_BATCH_FILES = 4096


@dataclass(slots=True)
class Forecast:
    """The files that a put would find, by what it would do with them."""

    new: int = 0
    changed: int = 0
    """Files that the dataset has with other content or attributes."""
    damaged: int = 0
    """Files that the dataset has, but whose stored content is damaged."""
    unchanged: int = 0
    deleted: int = 0
    """Files that the dataset has and the sources do not, if the request deletes them."""
    bytes: int = 0
    """The size of the files that would be put."""
    outside: list[str] = field(default_factory=list)
    """Reasons why links that should be kept would be left out."""
    chunks: int = 0
    """Chunks for them at the target size; larger files have one each."""

    @property
    def files(self) -> int:
        """The files that would be put."""
        return self.new + self.changed + self.damaged


def forecast(request: PackRequest, dataset: Dataset | None) -> Forecast:
    """Examine every source file and compare it with `dataset`, None if it does not exist.

    Costs one stat a file, and reads both contents if the request compares them. Raises
    `BadSources`, `PathConflict` and `Refused` as the put would.
    """
    progress = PackProgress()
    preflight(request.sources, progress)
    if dataset is not None:
        dataset.check_writable()
    found = Forecast(outside=progress.outside)
    if dataset is not None and request.delete:
        found.deleted = planned_deletions(dataset.namespace, request).files
    defaults = request.choice.over(PackingSettings())
    settings = defaults if dataset is None else packing_settings(dataset, request.choice)
    small_bytes = 0
    for disk_path, status, present, is_damaged in _compared(request, dataset):
        if present is None:
            found.new += 1
        elif is_damaged:
            found.damaged += 1
        elif _is_equal(disk_path, status, present, checksum=request.checksum):
            found.unchanged += 1
            continue
        else:
            found.changed += 1
        found.bytes += status.st_size
        if status.st_size >= settings.target_bytes:
            found.chunks += 1
        else:
            small_bytes += status.st_size
    found.chunks += -(-small_bytes // settings.target_bytes)
    return found


def _compared(
    request: PackRequest, dataset: Dataset | None
) -> Iterator[tuple[bytes, os.stat_result, Present | None, bool]]:
    """Yield of each file the path on disk, its attributes, and those in the dataset.

    The last value is True if the stored content is damaged.
    """
    parents = copies = None
    if dataset is not None:
        parents = ParentDirectories(dataset.namespace)
        copies = StoredCopies(dataset.namespace, dataset.reader) if request.checksum else None
    skipped = SkippedEntries()  # the preflight has reported them
    for source in request.sources:
        for batch in batches_of_source(source, skipped, _BATCH_FILES):
            there: dict[bytes, Present] = {}
            if dataset is not None and parents is not None:
                if not request.delete:  # which clears the way
                    _check_paths(batch, parents)
                there = present_files(dataset.namespace, batch)
            damaged = copies.damaged(there) if copies is not None else set()
            for name in batch.names:
                disk_path = os.path.join(batch.disk_directory, name)
                status = _status(disk_path, is_link=name in batch.links)
                yield disk_path, status, there.get(name), name in damaged


def _check_paths(batch: EntryBatch, parents: ParentDirectories) -> None:
    if batch.attributes is not None and batch.directory:
        parents.check_directory(batch.directory)
    prefix = batch.directory + b"/" if batch.directory else b""
    for name in [batch.renamed] if batch.renamed else batch.names:
        parents.check_file(prefix + name)


def _is_equal(
    disk_path: bytes, status: os.stat_result, present: Present, *, checksum: bool
) -> bool:
    if not present.may_equal(status, checksum=checksum):
        return False
    if not checksum:
        return True
    try:
        is_link = stat.S_ISLNK(status.st_mode)
        return hash_of_file(disk_path, is_link=is_link) == present.hash
    except OSError as error:
        raise BadSource(f"{os.fsdecode(disk_path)}: {error.strerror}") from error


def _status(disk_path: bytes, *, is_link: bool) -> os.stat_result:
    try:
        status = os.stat(disk_path, follow_symlinks=not is_link)
    except OSError as error:
        raise BadSource(f"{os.fsdecode(disk_path)}: {error.strerror}") from error
    if not (stat.S_ISLNK if is_link else stat.S_ISREG)(status.st_mode):
        what = "symbolic link" if is_link else "file"
        raise BadSource(f"{os.fsdecode(disk_path)} is no longer a {what}")
    return status
