"""The walk of the sources: directories in the order of the disk, files in small batches.

A batch is up to 32 files of one directory, so that it is read nearly sequentially. The batches may
then be mixed (`scatter`), so that a chunk samples classes from all over the source. Nothing is kept
for each file.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from chunkstore.errors import BadSource
from dieselfs.dataset.path_filter import PathFilter

BATCH_FILES = 32
_MIXED_BATCHES = 8192
"""Batches held back for mixing: about 260,000 names, 30 MB."""


_Above = frozenset[tuple[int, int]]
"""The devices and inodes of the directories above, by which a circle of links is found."""
_Folder = tuple[bytes, bytes, _Above]
"""A directory to walk: its path on disk, that in the dataset, and what is above."""


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Some files of one directory; its first batch has the directory's own attributes."""

    disk_directory: bytes
    directory: bytes
    """The path in the dataset."""
    names: Sequence[bytes]
    attributes: tuple[int, int] | None = None
    """(mode, mtime in ns) of the directory, to be put with this batch."""
    renamed: bytes | None = None
    """The name in the dataset of the only file, where it differs from the one on disk."""


@dataclass(slots=True)
class SkippedEntries:
    """Entries that a walk skipped.

    They are neither a file nor a directory, or cannot be read.
    """

    special: list[bytes] = field(default_factory=list)
    """Sockets, pipes and devices, which are left out."""
    unreadable: list[str] = field(default_factory=list)
    """Reasons, each with a path; they prevent the put."""


@dataclass(frozen=True, slots=True)
class SourceTree:
    """One source on disk and its target."""

    disk_path: bytes
    target: bytes
    """The path in the dataset of the directory (or of the file) itself."""
    filters: PathFilter = field(default_factory=PathFilter)
    follow_links: bool = True
    by_path: bool = False
    """Sort names and directories, instead of the disk's order."""

    def batches(
        self, skipped: SkippedEntries, batch_files: int = BATCH_FILES
    ) -> Iterator[EntryBatch]:
        """Yield all of the tree as batches.

        The batches of a directory come after those of the directories above it.
        """
        try:
            status = os.stat(self.disk_path)
        except OSError as error:
            skipped.unreadable.append(_reason(self.disk_path, error))
            return
        if not self.follow_links and os.path.islink(self.disk_path):
            skipped.unreadable.append(_refused_link(self.disk_path))
            return
        if not stat.S_ISDIR(status.st_mode):
            disk_directory, name = os.path.split(self.disk_path)
            directory, target_name = os.path.split(self.target)
            renamed = target_name if target_name != name else None
            yield EntryBatch(disk_directory or b".", directory, [name], renamed=renamed)
            return
        pending = [(self.disk_path, self.target, frozenset([(status.st_dev, status.st_ino)]))]
        while pending:
            disk_path, target, above = pending.pop()
            names, folders = self._read(disk_path, target, above, skipped)
            attributes = _attributes(disk_path)
            for at in range(0, max(len(names), 1), batch_files):
                yield EntryBatch(
                    disk_path, target, names[at : at + batch_files], attributes if at == 0 else None
                )
            pending.extend(reversed(folders))

    def _read(
        self, disk_path: bytes, target: bytes, above: _Above, skipped: SkippedEntries
    ) -> tuple[list[bytes], list[_Folder]]:
        names: list[bytes] = []
        folders: list[_Folder] = []
        try:
            entries = os.scandir(disk_path)
        except OSError as error:
            skipped.unreadable.append(_reason(disk_path, error))
            return names, folders
        with entries:
            filtered = bool(self.filters)
            found = _until_failure(entries, disk_path, skipped)
            for entry in sorted(found, key=lambda entry: entry.name) if self.by_path else found:
                name = entry.name
                below = self._below(target, name) if filtered else ""
                try:
                    if entry.is_symlink() and not self.follow_links:
                        skipped.unreadable.append(_refused_link(entry.path))
                    elif entry.is_file():
                        if not filtered or self.filters.takes(below):
                            names.append(name)
                    elif entry.is_dir():
                        if filtered and self.filters.prunes(below):
                            continue
                        seen = above
                        if entry.is_symlink() or len(above) > 1:
                            seen = self._enter(entry, above)
                        folders.append((entry.path, target + b"/" + name if target else name, seen))
                    else:
                        os.stat(entry.path)  # raises for a link to nowhere
                        skipped.special.append(entry.path)
                except OSError as error:
                    skipped.unreadable.append(_reason(entry.path, error))
        return names, folders

    def _enter(self, entry: os.DirEntry[bytes], above: _Above) -> _Above:
        status = entry.stat()
        identity = status.st_dev, status.st_ino
        if identity in above:
            raise OSError(f"{os.fsdecode(entry.path)} leads back to a directory above it")
        return above | {identity}

    def _below(self, target: bytes, name: bytes) -> str:
        """Return the path below the source, for filters."""
        path = target + b"/" + name if target else name
        return os.fsdecode(path[len(self.target) + 1 :] if self.target else path)


def _until_failure(
    entries: Iterator[os.DirEntry[bytes]], disk_path: bytes, skipped: SkippedEntries
) -> Iterator[os.DirEntry[bytes]]:
    """Yield the entries of a directory, until a read fails."""
    try:
        yield from entries
    except OSError as error:
        skipped.unreadable.append(_reason(disk_path, error))


def listed_batches(
    base: bytes, target: bytes, paths: Iterable[bytes], batch_files: int = BATCH_FILES
) -> Iterator[EntryBatch]:
    """Yield batches of files named one by one, relative to `base`, in the order given."""
    for directory, group in groupby(paths, os.path.dirname):
        names = [os.path.basename(path) for path in group]
        disk_directory = os.path.join(base, directory) if directory else base
        inside = b"/".join(part for part in (target, directory.strip(b"/")) if part)
        for at in range(0, len(names), batch_files):
            yield EntryBatch(disk_directory, inside, names[at : at + batch_files])


def mixed(batches: Iterable[EntryBatch], seed: int) -> Iterator[EntryBatch]:
    """Yield the same batches through a bounded shuffle buffer."""
    draw = random.Random(seed).randrange
    buffer: list[EntryBatch] = []
    for batch in batches:
        buffer.append(batch)
        if len(buffer) > _MIXED_BATCHES:
            at = draw(len(buffer))
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            yield buffer.pop()
    random.Random(seed).shuffle(buffer)
    yield from buffer


def check_source(path: bytes) -> None:
    """Raise `BadSource` unless `path` names a file or directory that can be read."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise BadSource(f"{_reason(path, error)}: check the source's name") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadSource(f"{os.fsdecode(path)} is neither a file nor a directory: name one")
    if not os.access(path, os.R_OK):
        raise BadSource(f"{os.fsdecode(path)} cannot be read: check its owner and mode")


def _refused_link(path: bytes) -> str:
    return f"{os.fsdecode(path)} is a symbolic link (refused by --no-follow)"


def _attributes(disk_path: bytes) -> tuple[int, int] | None:
    try:
        status = os.stat(disk_path)
    except OSError:
        return None
    return status.st_mode & 0o7777, status.st_mtime_ns


def _reason(path: bytes, error: OSError) -> str:
    return f"{os.fsdecode(path)}: {error.strerror}" if error.strerror else str(error)
