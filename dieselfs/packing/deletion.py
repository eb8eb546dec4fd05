"""The deletion of what a dataset has below the targets of a put and its sources no longer have.

The plan is made before anything is put. Files that the filters leave out stay, as with rsync. A
file or directory that is in the way of a source of another kind is deleted before the put, the rest
after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chunkstore.counted import counted
from chunkstore.errors import BadSource
from chunkstore.link_targets import target_problem
from chunkstore.paths import ancestors
from dieselfs.dataset.dataset import Dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.dataset.file_stat import joined
from dieselfs.errors import Refused
from dieselfs.packing.put_request import PackRequest
from dieselfs.packing.source_tree import LinkRule, SourceTree
from metadata.complete_listing import complete_walk
from metadata.errors import PathNotFound
from metadata.listing import DirectoryListing
from metadata.namespace import Namespace, PathEntry


@dataclass(slots=True)
class Deletions:
    """The entries that a put deletes, as the dataset has them at one generation."""

    generation: int
    in_the_way: list[PathEntry] = field(default_factory=list)
    """Files where the source has a directory, and directories with all below the other way round.

    They are deleted before the put.
    """
    gone: list[PathEntry] = field(default_factory=list)
    """Files and directories that no source has. They are deleted after the put."""

    @property
    def files(self) -> int:
        """The number of files among them."""
        return sum(not entry.is_directory for entry in (*self.in_the_way, *self.gone))

    def check(self, max_files: int | None) -> None:
        """Raise `Refused` if more than `max_files` files would be deleted."""
        if max_files is not None and self.files > max_files:
            raise Refused(
                f"the put would delete {counted(self.files, 'file')}, --max-delete allows "
                f"{max_files:,}",
                "nothing was put or deleted",
            )


def planned_deletions(namespace: Namespace, request: PackRequest) -> Deletions:
    """Compare the directories of the dataset into which directories are put with their sources.

    Costs a scan of each directory of the dataset below the targets, and one on disk. Raises
    `BadSource` if one on disk cannot be read, and `Refused` if there are too many files to delete.
    """
    sources = [source for source in request.sources if isinstance(source, SourceTree)]
    plan = _Plan(Deletions(namespace.state().generation), sources)
    for top in _tops(sources):
        try:
            for listing in complete_walk(namespace, top):
                plan.compare(listing)
        except PathNotFound:
            continue
    found = plan.finished()
    found.check(request.max_delete)
    return found


def delete_entries(dataset: Dataset, entries: Sequence[PathEntry], generation: int) -> None:
    """Delete entries that were seen at `generation`; what others have put since then stays."""
    if entries:
        with DatasetWriter(dataset) as writer:
            for entry in entries:
                writer.delete(entry, generation if entry.is_directory else None)


def _tops(sources: Sequence[SourceTree]) -> Iterator[bytes]:
    """Yield the targets of directories that are in no other such target."""
    targets = {source.target for source in sources if source.is_directory()}
    for target in sorted(targets):
        above = {b"", *ancestors(target)} if target else set()
        if not above & targets:
            yield target


class _Plan:
    def __init__(self, found: Deletions, sources: Sequence[SourceTree]) -> None:
        self._found = found
        self._sources = sources
        self._gone_directories: list[PathEntry] = []
        self._kept: set[bytes] = set()
        """Directories with something below that stays."""
        self._replaced: set[bytes] = set()
        """Directories where the source has a file, and all directories below."""
        self._left_out: set[bytes] = set()
        """Directories where the source has a link that is left out, and all directories below."""

    def compare(self, listing: DirectoryListing) -> None:
        """Compare one directory; the one above has been compared before."""
        if listing.path in self._left_out:
            self._keep_all(listing)
            return
        is_replaced = listing.path in self._replaced
        there = {} if is_replaced else self._on_disk(listing.path)
        for name, row in listing.all_files():
            entry = PathEntry(joined(listing.path, name), row)
            if is_replaced or (there.get(name) is True and not self._prunes(entry.path)):
                self._found.in_the_way.append(entry)
            elif name in there or not self._takes(entry.path):
                self._keep(entry.path)
            else:
                self._found.gone.append(entry)
        for name, row in zip(listing.directory_names, listing.directories, strict=True):
            entry = PathEntry(joined(listing.path, name), row)
            if is_replaced or (there.get(name) is False and self._takes(entry.path)):
                self._replaced.add(entry.path)
                self._found.in_the_way.append(entry)
            elif name in there or self._prunes(entry.path):
                self._keep(entry.path)
                if name in there and there[name] is None:
                    self._left_out.add(entry.path)
            else:
                self._gone_directories.append(entry)

    def finished(self) -> Deletions:
        """Return the plan, when all directories have been compared."""
        self._found.gone += [
            entry for entry in self._gone_directories if entry.path not in self._kept
        ]
        return self._found

    def _keep(self, path: bytes) -> None:
        self._kept.update(ancestors(path))

    def _keep_all(self, listing: DirectoryListing) -> None:
        """Keep a directory with all below it, though no source has it."""
        self._kept.update([listing.path, *ancestors(listing.path)])
        self._left_out.update(joined(listing.path, name) for name in listing.directory_names)

    def _on_disk(self, directory: bytes) -> dict[bytes, bool | None]:
        """Return the names that the sources have in a directory, and if they are directories.

        The value is None for links that are left out.
        """
        found: dict[bytes, bool | None] = {}
        for source in self._sources:
            below = _below(directory, source.target)
            if below is not None:
                names = _names(source, below)
                found.update(names if not found else {**names, **_known(found)})
            else:
                beyond = _below(source.target, directory)
                if beyond:
                    name, slash, _ = beyond.partition(b"/")
                    found[name] = True if slash else _is_directory_source(source)
        return found

    def _takes(self, path: bytes) -> bool:
        return any(not s.filters or s.filters.takes(below) for s, below in self._covering(path))

    def _prunes(self, path: bytes) -> bool:
        return all(s.filters.prunes(below) for s, below in self._covering(path))

    def _covering(self, path: bytes) -> Iterator[tuple[SourceTree, str]]:
        for source in self._sources:
            below = _below(path, source.target)
            if below:
                yield source, os.fsdecode(below)


def _below(path: bytes, top: bytes) -> bytes | None:
    """Return the part of `path` below `top`, None if it is not there."""
    if not top:
        return path
    if path == top:
        return b""
    return path[len(top) + 1 :] if path.startswith(top + b"/") else None


def _known(found: dict[bytes, bool | None]) -> dict[bytes, bool | None]:
    return {name: kind for name, kind in found.items() if kind is not None}


def _is_directory_source(source: SourceTree) -> bool | None:
    if source.links in ("keep", "skip") and os.path.islink(source.disk_path):
        return _is_directory_link(source.disk_path, source.links, 0)
    return os.path.isdir(source.disk_path)


def _names(source: SourceTree, below: bytes) -> dict[bytes, bool | None]:
    if not source.is_directory():
        return {}
    disk_directory = os.path.join(source.disk_path, below)
    depth = below.count(b"/") + 1 if below else 0
    try:
        with os.scandir(disk_directory) as entries:
            return {entry.name: _is_directory(entry, source.links, depth) for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadSource(f"{os.fsdecode(disk_directory)}: {error.strerror}") from error


def _is_directory(entry: os.DirEntry[bytes], links: LinkRule, depth: int) -> bool | None:
    if links in ("keep", "skip") and entry.is_symlink():
        return _is_directory_link(entry.path, links, depth)
    try:
        return entry.is_dir()
    except OSError:  # a circle of links, which the filters leave out
        return False


def _is_directory_link(path: bytes, links: LinkRule, depth: int) -> bool | None:
    """Return False for a link that is put as a link, None for one that is left out."""
    is_kept = links == "keep" and target_problem(os.readlink(path), depth) is None
    return False if is_kept else None
