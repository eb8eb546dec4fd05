"""Checks the paths that are put: legal, and no file where a directory is (or the other way round).

A directory is looked at once, when the first file in it is put; after that a path costs one dictionary look-up.
"""

from __future__ import annotations

from chunkstore.errors import InvalidPath
from chunkstore.paths import MAX_COMPONENT_BYTES, MAX_PATH_BYTES, ancestors, check_path
from metadata.errors import PathConflict, PathNotFound
from metadata.namespace import Namespace

_REMEMBERED = 100_000


class ParentDirectories:
    """What one writer knows of the directories it puts files into."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._directories_in: dict[bytes, set[bytes]] = {}
        """directory -> names of its sub-directories, where a file must not be put."""

    def check_file(self, path: bytes) -> None:
        """Raise `InvalidPath` or `PathConflict` unless a file may be put at `path`."""
        directory, _, name = path.rpartition(b"/")
        taken = self._directories_in.get(directory)
        if taken is None:
            taken = self._enter(directory)
        if not 0 < len(name) <= MAX_COMPONENT_BYTES or len(path) > MAX_PATH_BYTES or name in (b".", b"..") or b"\0" in name:
            check_path(path)
            raise InvalidPath(f"illegal path {path!r}")
        if name in taken:
            raise PathConflict(f"{path.decode(errors='replace')} is a directory: delete it first, or choose another name")

    def check_directory(self, path: bytes) -> None:
        """Raise `InvalidPath` or `PathConflict` unless `path` is or may become a directory."""
        if path not in self._directories_in:
            self._enter(path)

    def _enter(self, directory: bytes) -> set[bytes]:
        if len(self._directories_in) >= _REMEMBERED:
            self._directories_in.clear()
        if directory:
            check_path(directory)
            for above in (directory, *ancestors(directory)):
                self._check_not_file(above)
                parent, _, name = above.rpartition(b"/")
                if (siblings := self._directories_in.get(parent)) is not None:
                    siblings.add(name)
        taken = self._directories_in[directory] = set(self._namespace.directory_names(directory))
        return taken

    def _check_not_file(self, directory: bytes) -> None:
        try:
            found = self._namespace.stat(directory)
        except PathNotFound:
            return
        if not found.is_directory:
            raise PathConflict(f"{directory.decode(errors='replace')} is a file, so nothing can be put below it")
