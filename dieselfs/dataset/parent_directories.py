"""Checks of the paths that are put: a path is legal, and no path is both a file and a directory.

A directory is read once, when the first file is put in it; after that a path costs one dictionary
look-up. Paths that this writer itself has put and the index does not show yet are remembered, up to
a bound. Beyond it, and between writers, a directory hides a file of its name.
"""

from __future__ import annotations

from collections import defaultdict

from chunkstore.paths import MAX_COMPONENT_BYTES, ancestors, check_path
from metadata.errors import PathConflict, PathNotFound
from metadata.namespace import Namespace

_REMEMBERED = 100_000
_NO_NAMES = (b"", b".", b"..")


class ParentDirectories:
    """The directories that one writer puts files into."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._taken_in: dict[bytes, set[bytes]] = {}
        """directory -> names that no file in it may have.

        They are the names of its sub-directories, and illegal names.
        """
        self._made: defaultdict[bytes, set[bytes]] = defaultdict(set)
        """directory -> names of the sub-directories that this writer creates."""
        self._files: set[bytes] = set()
        """Files put since the last flush."""

    def check_file(self, path: bytes) -> None:
        """Raise `InvalidPath` or `PathConflict` unless a file may be put at `path`."""
        directory, slash, name = path.rpartition(b"/")
        taken = self._taken_in.get(directory)
        if taken is None:
            taken = self._enter(directory)
        if (
            name in taken
            or len(path) > MAX_COMPONENT_BYTES
            or b"\0" in name
            or (slash and not directory)
        ):
            _refuse_or_pass(path, name, taken)
        if len(self._files) >= _REMEMBERED:
            self._files.clear()
        self._files.add(path)

    def check_directory(self, path: bytes) -> None:
        """Raise `InvalidPath` or `PathConflict` unless `path` is or may become a directory."""
        if path not in self._taken_in:
            self._enter(path)

    def deleted(self, directory: bytes) -> None:
        """Note that the writer deletes a directory, so that a file may take its name."""
        parent, _, name = directory.rpartition(b"/")
        self._taken_in.pop(directory, None)
        for known in (self._taken_in, self._made):
            if parent in known:
                known[parent].discard(name)

    def flushed(self) -> None:
        """Note that the index shows everything that was checked before."""
        self._files.clear()
        self._made.clear()

    def _enter(self, directory: bytes) -> set[bytes]:
        if len(self._taken_in) >= _REMEMBERED:
            self._taken_in.clear()
            self._made.clear()
        if directory:
            check_path(directory)
            above = [directory, *ancestors(directory)]
            for path in above:
                self._check_not_file(path)
            for path in above:
                parent, _, name = path.rpartition(b"/")
                self._made[parent].add(name)
                if (siblings := self._taken_in.get(parent)) is not None:
                    siblings.add(name)
        made = self._made.get(directory, set())
        taken = self._taken_in[directory] = made.union(
            _NO_NAMES, self._namespace.directory_names(directory)
        )
        return taken

    def _check_not_file(self, directory: bytes) -> None:
        conflict = PathConflict(
            f"{directory.decode(errors='replace')} is a file: no path can be put below it"
        )
        if directory in self._files:
            raise conflict
        try:
            found = self._namespace.stat(directory)
        except PathNotFound:
            return
        if not found.is_directory:
            raise conflict


def _refuse_or_pass(path: bytes, name: bytes, taken: set[bytes]) -> None:
    """Check one of the few paths that are taken, long or odd.

    Raises `InvalidPath`, or `PathConflict` if the path is a directory.
    """
    check_path(path)
    if name in taken:
        raise PathConflict(
            f"{path.decode(errors='replace')} is a directory: delete it first, or choose another "
            "name"
        )
