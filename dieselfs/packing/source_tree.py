"""The walk of the sources: directories in the order of the disk, files in small batches.

A batch is up to 32 files of one directory, so that it is read nearly sequentially. The batches may
then be mixed (`scatter`), so that a chunk samples classes from all over the source. Nothing is kept
for each file.

Files that are kept together in a chunk, such as those of a sample, come one behind the other and in
one batch, which is that much longer: one packing process has to get all of them.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Literal

from chunkstore.chunk_format import MAX_ENTRIES
from chunkstore.keep_together import KEYS, KeepTogether, gathered, whole_parts
from chunkstore.link_targets import target_problem
from dieselfs.dataset.path_filter import PathFilter

LinkRule = Literal["follow", "keep", "skip", "refuse"]
"""The treatment of symbolic links.

follow: what they lead to is taken under their names. keep: they are put as links, except those that
lead out of their source, which are left out. skip: all are left out. refuse: any prevents the put.
"""

BATCH_FILES = 32
_MIXED_BATCHES: Final = 8192
_MIXED_NAMES: Final = _MIXED_BATCHES * BATCH_FILES
"""Names held back for mixing, in as many batches as fit: 30 MB."""

_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""The errors of a link that leads to no file and to no directory."""

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
    links: frozenset[bytes] = frozenset()
    """The names that are symbolic links, to be put as links."""
    depth: int = 0
    """The number of directories between the top of the source and these files."""


@dataclass(slots=True)
class SkippedEntries:
    """Entries that a walk skipped.

    They are neither a file nor a directory, or cannot be read.
    """

    special: list[bytes] = field(default_factory=list)
    """Sockets, pipes and devices, which are left out."""
    links: list[bytes] = field(default_factory=list)
    """Symbolic links that the request leaves out."""
    outside: list[str] = field(default_factory=list)
    """Reasons why links that should be kept are left out, each with a path."""
    unreadable: list[str] = field(default_factory=list)
    """Reasons, each with a path; they prevent the put."""


@dataclass(frozen=True, slots=True)
class SourceTree:
    """One source on disk and its target."""

    disk_path: bytes
    target: bytes
    """The path in the dataset of the directory (or of the file) itself."""
    filters: PathFilter = field(default_factory=PathFilter)
    links: LinkRule = "follow"
    by_path: bool = False
    """Sort names and directories, instead of the disk's order."""
    keep_together: KeepTogether = "none"
    """Files that no two batches share out."""

    def batches(
        self, skipped: SkippedEntries, batch_files: int = BATCH_FILES
    ) -> Iterator[EntryBatch]:
        """Yield all of the tree as batches.

        The batches of a directory come after those of the directories above it. A batch has
        `batch_files`, or more to keep files together.
        """
        if self._is_left_out():
            return
        is_link = self.links in ("keep", "skip") and os.path.islink(self.disk_path)
        if is_link and self.links == "skip":
            skipped.links.append(self.disk_path)
            return
        if is_link and not is_kept(self.disk_path, 0, skipped):
            return
        if (refusal := self.refusal()) is not None:
            skipped.unreadable.append(refusal)
            return
        try:
            status = os.stat(self.disk_path, follow_symlinks=not is_link)
        except OSError as error:  # it has just vanished
            skipped.unreadable.append(_reason(self.disk_path, error))
            return
        if not stat.S_ISDIR(status.st_mode):
            disk_directory, name = os.path.split(self.disk_path)
            directory, target_name = os.path.split(self.target)
            renamed = target_name if target_name != name else None
            links = frozenset([name]) if is_link else frozenset()
            yield EntryBatch(disk_directory or b".", directory, [name], None, renamed, links)
            return
        pending = [(self.disk_path, self.target, frozenset([(status.st_dev, status.st_ino)]))]
        while pending:
            disk_path, target, above = pending.pop()
            names, links, folders = self._read(disk_path, target, above, skipped)
            attributes, depth = _attributes(disk_path), self._depth(target)
            key_of = KEYS[self.keep_together]
            if key_of is not None:
                names = gathered(names, key_of)
            for some in whole_parts(names, batch_files, MAX_ENTRIES, key_of):
                yield EntryBatch(
                    disk_path,
                    target,
                    some,
                    attributes,
                    links=links.intersection(some) if links else links,
                    depth=depth,
                )
                attributes = None
            pending.extend(reversed(folders))

    def refusal(self) -> str | None:
        """Return why the source itself cannot be put, None if it can or is left out."""
        if self._is_left_out():
            return None
        if self.links != "follow" and os.path.islink(self.disk_path):
            return _refused_link(self.disk_path) if self.links == "refuse" else None
        return refusal_of(self.disk_path)

    def is_directory(self) -> bool:
        """Return True if the source is a directory, or a link to one that is followed."""
        is_link = self.links != "follow" and os.path.islink(self.disk_path)
        return os.path.isdir(self.disk_path) and not is_link

    def entries_at(self, directory: bytes) -> dict[bytes, bytes]:
        """Return what the walk of a directory finds at `directory` of the dataset.

        The result has the path on disk of each file and directory by its name; it is empty if the
        walk does not come there. The directory is at the target or below it.
        """
        disk_path, target = self.disk_path, self.target
        for name in filter(None, directory[len(self.target) :].split(b"/")):
            disk_path = os.path.join(disk_path, name)
            is_pruned = bool(self.filters) and self.filters.prunes(self._below(target, name))
            if is_pruned or (self.links != "follow" and os.path.islink(disk_path)):
                return {}
            target = target + b"/" + name if target else name
        if not os.path.isdir(disk_path):
            return {}
        names, _, folders = self._read(disk_path, directory, frozenset(), SkippedEntries())
        found = {name: os.path.join(disk_path, name) for name in names}
        return found | {os.path.basename(path): path for path, _, _ in folders}

    def _is_left_out(self) -> bool:
        """Return True if the filters leave out the source, which is no directory."""
        if not self.filters or self.is_directory():
            return False
        return not self.filters.takes(os.fsdecode(os.path.basename(self.disk_path)))

    def _read(
        self, disk_path: bytes, target: bytes, above: _Above, skipped: SkippedEntries
    ) -> tuple[list[bytes], frozenset[bytes], list[_Folder]]:
        """Return the names of the files, those of them that are links to be kept, and folders."""
        names: list[bytes] = []
        links: list[bytes] = []
        folders: list[_Folder] = []
        try:
            entries = os.scandir(disk_path)
        except OSError as error:
            skipped.unreadable.append(_reason(disk_path, error))
            return names, frozenset(), folders
        with entries:
            found = _until_failure(entries, disk_path, skipped)
            for entry in sorted(found, key=lambda entry: entry.name) if self.by_path else found:
                wanted = True
                if self.filters:
                    below = self._below(target, entry.name)
                    if self.filters.prunes(below):
                        continue
                    wanted = self.filters.takes(below)
                try:
                    if self.links != "follow" and entry.is_symlink():
                        if wanted and self._keeps(entry, target, skipped):
                            names.append(entry.name)
                            links.append(entry.name)
                    elif entry.is_file():
                        if wanted:
                            names.append(entry.name)
                    elif entry.is_dir():
                        folders.append(self._folder(entry, target, above))
                    elif wanted:
                        os.stat(entry.path)  # raises for a link to nowhere
                        skipped.special.append(entry.path)
                except OSError as error:
                    if wanted or error.errno not in _NOWHERE:
                        skipped.unreadable.append(_reason(entry.path, error))
        return names, frozenset(links), folders

    def _keeps(self, entry: os.DirEntry[bytes], target: bytes, skipped: SkippedEntries) -> bool:
        """Return True if a link is put as a link; note it otherwise."""
        if self.links == "keep":
            return is_kept(entry.path, self._depth(target), skipped)
        if self.links == "skip":
            skipped.links.append(entry.path)
        else:
            skipped.unreadable.append(_refused_link(entry.path))
        return False

    def _depth(self, target: bytes) -> int:
        """Return the number of directories between the top and a directory's content."""
        below = target[len(self.target) :].strip(b"/")
        return below.count(b"/") + 1 if below else 0

    def _folder(self, entry: os.DirEntry[bytes], target: bytes, above: _Above) -> _Folder:
        below = target + b"/" + entry.name if target else entry.name
        is_link = entry.is_symlink()
        return entry.path, below, self._enter(entry, above) if is_link or len(above) > 1 else above

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


def is_kept(link: bytes, depth: int, skipped: SkippedEntries) -> bool:
    """Return True if a symbolic link leads nowhere but below its source; note it otherwise.

    `depth` is the number of directories between the top of the source and the link. Raises
    `OSError`.
    """
    problem = target_problem(os.readlink(link), depth)
    if problem is not None:
        skipped.outside.append(outside_link(link, problem))
    return problem is None


def outside_link(path: bytes, problem: str) -> str:
    """Return why a symbolic link is not kept."""
    return f"{os.fsdecode(path)}: {problem}"


def listed_batches(
    base: bytes,
    target: bytes,
    paths: Iterable[bytes],
    batch_files: int = BATCH_FILES,
    *,
    links: Container[bytes] = (),
    keep_together: KeepTogether = "none",
) -> Iterator[EntryBatch]:
    """Yield batches of files named one by one, relative to `base`, in the order given.

    `links` has those of the paths that are put as links. Files that are kept together come at the
    place of the first of them.
    """
    key_of = KEYS[keep_together]
    if key_of is not None:
        paths = gathered(paths, key_of)
    for directory, group in groupby(paths, os.path.dirname):
        names = [os.path.basename(path) for path in group]
        disk_directory = os.path.join(base, directory) if directory else base
        inside = b"/".join(part for part in (target, directory.strip(b"/")) if part)
        depth = len(directory.split(b"/")) if directory else 0
        for some in whole_parts(names, batch_files, MAX_ENTRIES, key_of):
            found = frozenset(name for name in some if os.path.join(directory, name) in links)
            yield EntryBatch(disk_directory, inside, some, links=found, depth=depth)


def mixed(batches: Iterable[EntryBatch], seed: int) -> Iterator[EntryBatch]:
    """Yield the same batches through a bounded shuffle buffer."""
    draw = random.Random(seed).randrange
    buffer: list[EntryBatch] = []
    names = 0
    for batch in batches:
        buffer.append(batch)
        names += len(batch.names)
        while len(buffer) > _MIXED_BATCHES or names > _MIXED_NAMES:
            at = draw(len(buffer))
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            names -= len(buffer[-1].names)
            yield buffer.pop()
    random.Random(seed).shuffle(buffer)
    yield from buffer


def refusal_of(path: bytes) -> str | None:
    """Return why `path` is no file or directory that can be read, None if it is one."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return _reason(path, error)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return f"{os.fsdecode(path)} is neither a file nor a directory"
    if not os.access(path, os.R_OK):
        return f"{os.fsdecode(path)}: cannot be read: check its owner and mode"
    return None


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
