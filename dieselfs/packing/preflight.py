"""The preflight: all that can be known to fail fails before the first put (docs/decisions/0003)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from chunkstore.errors import BadSource, InvalidPath
from chunkstore.paths import MAX_PATH_BYTES, check_path, check_paths
from dieselfs.packing.put_request import (
    FileList,
    PackProgress,
    batches_of_source,
)
from dieselfs.packing.shared_paths import SharedPaths
from dieselfs.packing.source_tree import (
    EntryBatch,
    LinkRule,
    SkippedEntries,
    SourceTree,
    refusal_of,
)

_BATCH_FILES = 4096


class BadSources(BadSource):
    """Sources that cannot be packed; nothing was put."""

    def __init__(self, reasons: Sequence[str]) -> None:
        """`reasons` are all there are, one for each source, each with its path."""
        several = len(reasons) > 1
        what = f"{len(reasons):,} sources cannot be packed" if several else reasons[0]
        them = "them" if several else "it"
        super().__init__(f"{what}: no file was put; fix {them}, or leave {them} out with --exclude")
        self.reasons = reasons


def check_named(sources: Sequence[SourceTree | FileList]) -> None:
    """Raise `BadSources` if a source that the user has named cannot be read.

    The error then names everything below the others too that cannot be packed.
    """
    if any(_refusal(source) is not None for source in sources):
        preflight(sources, PackProgress())


def _refusal(source: SourceTree | FileList) -> str | None:
    return source.refusal() if isinstance(source, SourceTree) else refusal_of(source.base)


def preflight(sources: Sequence[SourceTree | FileList], progress: PackProgress) -> None:
    """Walk all sources without packing.

    Raises `BadSources`, which names all sources that cannot be packed and all files that share a
    path, or `InvalidPath`.
    """
    skipped = SkippedEntries()
    shared = SharedPaths(sources)
    is_root = os.geteuid() == 0  # root may read everything; other users need a check of each file
    for source in sources:
        if isinstance(source, FileList) and (refusal := _refusal(source)) is not None:
            skipped.unreadable.append(refusal)
            continue
        for batch in batches_of_source(source, skipped, _BATCH_FILES):
            if isinstance(source, FileList):
                skipped.unreadable.extend(_unreadable(batch, source.links))
            elif not is_root:
                skipped.unreadable.extend(_without_access(batch))
            skipped.unreadable.extend(shared.reasons(source, batch))
            _check_lengths(batch)
            progress.files_found += len(batch.names)
        if not skipped.unreadable:
            _check_paths_in(source)
    progress.special, progress.links = skipped.special, skipped.links
    progress.outside = skipped.outside
    if skipped.unreadable:
        raise BadSources(skipped.unreadable)
    progress.walked = True
    progress.changed()


def _without_access(batch: EntryBatch) -> Iterator[str]:
    """Yield the files of a walk that cannot be read, with reasons. Costs one call for each name.

    The walk has found that they are files.
    """
    if not batch.names:
        return
    try:
        folder = os.open(batch.disk_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        yield f"{os.fsdecode(batch.disk_directory)}: {error.strerror}"
        return
    try:
        for name in batch.names:
            if name not in batch.links and not os.access(name, os.R_OK, dir_fd=folder):
                yield _no_access(os.path.join(batch.disk_directory, name))
    finally:
        os.close(folder)


def _no_access(path: bytes) -> str:
    exists = os.path.lexists(path)
    reason = "cannot be read: check its owner and mode" if exists else "no such file"
    return f"{os.fsdecode(path)}: {reason}"


def _unreadable(batch: EntryBatch, links: LinkRule) -> Iterator[str]:
    for name in batch.names:
        if name in batch.links:
            continue
        path = os.path.join(batch.disk_directory, name)
        if links == "refuse" and os.path.islink(path):
            yield f"{os.fsdecode(path)} is a symbolic link (refused by --no-follow)"
        elif not os.access(path, os.R_OK):
            yield _no_access(path)
        elif not os.path.isfile(path):
            yield (
                f"{os.fsdecode(path)} is a "
                f"{'directory' if os.path.isdir(path) else 'special file'}, not a file"
            )


def _check_paths_in(source: SourceTree | FileList) -> None:
    """Check the paths that were given; the names that a walk finds are legal."""
    if source.target:
        check_path(source.target)
    if isinstance(source, FileList):
        for at in range(0, len(source.paths), _BATCH_FILES):
            check_paths(source.paths[at : at + _BATCH_FILES])


def _check_lengths(batch: EntryBatch) -> None:
    """Raise `InvalidPath` if a path is too long.

    Names from a disk are legal, but below a long target the whole path may be too long.
    """
    names = [batch.renamed] if batch.renamed else batch.names
    longest = max(names, key=len, default=b"")
    path = b"/".join(part for part in (batch.directory, longest) if part)
    if len(path) > MAX_PATH_BYTES:
        raise InvalidPath(
            f"{os.fsdecode(path[:80])}… would have {len(path)} bytes; a path has at most "
            f"{MAX_PATH_BYTES}"
        )
