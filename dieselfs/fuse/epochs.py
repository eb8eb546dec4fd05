"""The snapshots that a mount has shown and shows, one an epoch, and which of them answers for an inode.

The kernel's number of a file names its epoch (`inodes`), so what a reader holds, an open file, a mapping, a working directory,
is answered from the snapshot it was found in for as long as the mount lives. The root alone keeps its number: it is that of
the current epoch, and each position in its listing says which epoch's listing it belongs to.

Changed, and read unless said otherwise, on one thread only, that of the requests.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from itertools import count

import pyfuse3

from dieselfs.errors import UsageError
from dieselfs.fuse.attributes import Owner
from dieselfs.fuse.dataset_tree import DatasetTree
from dieselfs.fuse.inodes import (
    FIRST_EPOCH,
    ROOT_INODE,
    epoch_of,
    index_in_root,
    root_position,
)
from metadata.snapshot import Snapshot

Listener = Callable[[int, Snapshot], None]
"""Is told an epoch and its snapshot."""


class Epochs:
    """Trees by epoch. `current` is the tree that look-ups from the root see."""

    def __init__(self, snapshot: Snapshot, owner: Owner) -> None:
        self._owner = owner
        self._listeners: list[Listener] = []
        self.current = DatasetTree(snapshot, FIRST_EPOCH, owner)
        self._trees = {FIRST_EPOCH: self.current}
        self._unused = count(FIRST_EPOCH + 1)

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of each epoch: at once of those there are, and of a new one before it becomes current."""
        for epoch, tree in self._trees.items():
            listener(epoch, tree.snapshot)
        self._listeners.append(listener)

    def add(self, snapshot: Snapshot) -> DatasetTree:
        """Make `snapshot` the current one. If a listener raises, the old one stays."""
        epoch = next(self._unused)  # also if this fails: a listener may know the number
        for listener in self._listeners:
            listener(epoch, snapshot)
        self.current = self._trees[epoch] = DatasetTree(snapshot, epoch, self._owner)
        return self.current

    def tree_of(self, inode: int) -> DatasetTree:
        """The tree that the kernel learnt `inode` from; ESTALE for a number that no epoch has given out."""
        return self.current if inode == ROOT_INODE else self._tree(epoch_of(inode))

    def shown(self, snapshot_id: str) -> DatasetTree:
        """The latest tree of a snapshot; `UsageError` if the mount has not shown it. From any thread."""
        for tree in reversed(list(self._trees.values())):
            if str(tree.snapshot.id) == snapshot_id:
                return tree
        raise UsageError(
            f"snapshot {snapshot_id} is not mounted here, but {self.current.snapshot.id}",
            "begin anew, with the snapshot that is mounted",
        )

    def _tree(self, epoch: int) -> DatasetTree:
        tree = self._trees.get(epoch)
        if tree is None:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return tree

    def children(
        self, directory: int, position: int
    ) -> Iterator[tuple[bytes, pyfuse3.EntryAttributes, int]]:
        """Entries of a directory from a position on, each with the position behind it; 0 is the beginning."""
        if directory == ROOT_INODE:
            yield from self._root_children(position)
            return
        entries = self.tree_of(directory).children(directory, position)
        for following, (name, entry) in enumerate(entries, position + 1):
            yield name, entry, following

    def _root_children(self, position: int) -> Iterator[tuple[bytes, pyfuse3.EntryAttributes, int]]:
        """A listing that began in an earlier epoch is finished with that epoch's names."""
        tree = self._tree(epoch_of(position)) if position else self.current
        start = index_in_root(position)
        entries = tree.children(ROOT_INODE, start)
        for following, (name, entry) in enumerate(entries, start + 1):
            if tree is not self.current:
                entry = self._as_it_is_now(name, entry)
            yield name, entry, root_position(tree.epoch, following)

    def _as_it_is_now(self, name: bytes, old: pyfuse3.EntryAttributes) -> pyfuse3.EntryAttributes:
        """What an old listing of the root gives for a name.

        The kernel remembers where each name of a listing leads, and must not learn that a name leads into an earlier epoch. libfuse
        can list a name with an inode number and without telling where it leads; pyfuse3 can't (an entry's `st_ino` is both). So
        a name that exists gets what it leads to now, and one that does not is asked for again at its next use.
        """
        now = self.current.find(ROOT_INODE, name)
        if now is not None:
            return now
        old.entry_timeout = 0
        return old
