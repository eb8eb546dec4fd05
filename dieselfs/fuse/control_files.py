"""The control directory `.dieselfs/`, which listings of the root do not show.

    .dieselfs/dataset.json       what is mounted
    .dieselfs/stats.json         counters, fresh at every look-up
    .dieselfs/refresh.json       how often the mount was told to take a newer snapshot, and what came of it
    .dieselfs/shuffle/README     how to name a list
    .dieselfs/shuffle/<parameters>   a shuffled order, one path a line
    .dieselfs/plan/<id>          whether a plan in the task's folder is followed, from the look-up on

A control file's content is fixed when it is looked up, so that its size is exact (a file of size 0
reads as empty), and a document gets a fresh inode then, so that the kernel never shows one content under
the size of another (design §6 e). A shuffled list is a function of its snapshot and parameters; it keeps
its inode, and with it the kernel's pages, while the kernel knows it.
"""

from __future__ import annotations

import errno
import logging
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

import pyfuse3

from dieselfs.fuse.attributes import DIRECTORY_BYTES, FOREVER_S, Owner, entry_attributes
from dieselfs.fuse.control_documents import PLAN_README, SHUFFLE_README
from dieselfs.fuse.control_names import PLAN_NAME, README_NAME, SHUFFLE_NAME
from dieselfs.fuse.inodes import (
    CONTROL_INODE,
    FIRST_CONTROL_FILE_INODE,
    PLAN_INODE,
    SHUFFLE_INODE,
)
from dieselfs.fuse.shuffle_lists import ShuffledOrder, ShuffleLists
from dieselfs.shuffle import ShuffleParameters, parse_parameters
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

_FOLDERS: Final = {SHUFFLE_NAME: SHUFFLE_INODE, PLAN_NAME: PLAN_INODE}
MAX_FILES: Final = 10_000
"""The kernel forgets what nobody uses; if it does not, the oldest are dropped and become stale."""


@dataclass(slots=True)
class _ControlFile:
    size: int
    mtime_ns: int
    content: bytes | ShuffledOrder
    """A document's bytes, or what a list is built from again when it was dropped."""
    lookups: int = 0
    """How often the kernel was told of it and has not said yet that it forgot."""


class Plans(Protocol):
    """Who follows plans."""

    async def take(self, name: bytes) -> bytes:
        """A reader has named its plan: the document that answers it."""
        ...

    def note_list(self, order: ShuffledOrder) -> None:
        """A reader begins to read this list. Returns at once."""
        ...


class ControlDirectory:
    """The files of the control directory that the kernel knows at present."""

    def __init__(
        self,
        documents: Mapping[bytes, Callable[[], bytes]],
        lists: ShuffleLists,
        snapshot: Callable[[], Snapshot],
        owner: Owner,
        plans: Plans | None = None,
    ) -> None:
        """`documents` gives the content of each file of `.dieselfs/` at the time of the call, `snapshot`
        the one whose shuffled orders are given then."""
        self._lists = lists
        self._plans = plans
        self._snapshot = snapshot
        self._owner = owner
        self._started_ns = time.time_ns()
        self._documents = {
            CONTROL_INODE: dict(documents),
            SHUFFLE_INODE: {README_NAME: lambda: SHUFFLE_README},
            PLAN_INODE: {README_NAME: lambda: PLAN_README},
        }
        self._next_inode = count(FIRST_CONTROL_FILE_INODE)
        self._files: dict[int, _ControlFile] = {}
        self._list_inodes: dict[ShuffledOrder, int] = {}
        self.reads = 0
        """Since the mount began."""

    async def lookup(self, parent: int, name: bytes) -> pyfuse3.EntryAttributes:
        """Counts as one look-up of the inode that it returns."""
        if parent == CONTROL_INODE and name in _FOLDERS:
            return self.attributes(_FOLDERS[name])
        write = self._documents.get(parent, {}).get(name)
        if write is not None:
            return self._told(self._new_document(write()))
        if parent == SHUFFLE_INODE and b"=" in name:
            return self._told(await self._list_inode(self._order(name)))
        if parent == PLAN_INODE and self._plans is not None:
            return self._told(self._new_document(await self._plans.take(name)))
        raise pyfuse3.FUSEError(errno.ENOENT)

    def _new_document(self, content: bytes) -> int:
        return self._add(_ControlFile(len(content), time.time_ns(), content))

    def _order(self, name: bytes) -> ShuffledOrder:
        return ShuffledOrder(self._snapshot(), _parameters(name))

    async def _list_inode(self, order: ShuffledOrder) -> int:
        try:
            text = await self._lists.text(order)
        except ValueError as error:  # a path holds a newline
            log.error("no list of one path a line: %s", error)
            raise pyfuse3.FUSEError(errno.ENOTSUP) from None
        # No await from here on: a FORGET in between would take the inode away.
        inode = self._list_inodes.get(order)
        if inode is None:
            inode = self._add(_ControlFile(len(text), time.time_ns(), order))
            self._list_inodes[order] = inode
        return inode

    def _add(self, file: _ControlFile) -> int:
        while len(self._files) >= MAX_FILES:
            self._drop(next(iter(self._files)))
        inode = next(self._next_inode)
        self._files[inode] = file
        return inode

    def _told(self, inode: int) -> pyfuse3.EntryAttributes:
        self._files[inode].lookups += 1
        return self.attributes(inode)

    def attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        if inode in self._documents:
            folders = len(_FOLDERS) if inode == CONTROL_INODE else 0
            mode, links = stat.S_IFDIR | 0o555, 2 + folders
            return entry_attributes(
                inode, mode, DIRECTORY_BYTES, self._started_ns, self._owner, FOREVER_S, links
            )
        file = self._file(inode)
        return entry_attributes(
            inode, stat.S_IFREG | 0o444, file.size, file.mtime_ns, self._owner, timeout_s=0
        )

    def require_directory(self, inode: int) -> None:
        if inode not in self._documents:
            raise pyfuse3.FUSEError(errno.ENOTDIR)

    def names(self, directory: int) -> list[bytes]:
        """What a listing shows. A list's name is for the asker to choose, so none is listed."""
        names = sorted(self._documents[directory])
        return [*names, *_FOLDERS] if directory == CONTROL_INODE else names

    async def read(self, inode: int, start: int, size: int) -> memoryview:
        """Bytes [start, start + size), as far as the file reaches."""
        self.reads += 1
        content = self._file(inode).content
        if isinstance(content, ShuffledOrder):
            if start == 0 and self._plans is not None:
                self._plans.note_list(content)
            content = await self._lists.text(content)
        return memoryview(content)[start : start + size]

    def forget(self, inode: int, lookups: int) -> None:
        """The kernel takes back `lookups` of the times it was told of `inode`."""
        file = self._files.get(inode)
        if file is None:
            return
        file.lookups -= lookups
        if file.lookups <= 0:
            self._drop(inode)

    def _drop(self, inode: int) -> None:
        content = self._files.pop(inode).content
        if isinstance(content, ShuffledOrder):
            del self._list_inodes[content]

    def _file(self, inode: int) -> _ControlFile:
        file = self._files.get(inode)
        if file is None:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return file


def _parameters(name: bytes) -> ShuffleParameters:
    try:
        return parse_parameters(name.decode())
    except ValueError as error:  # UnicodeDecodeError is one
        log.warning("no shuffled list %r: %s", name, error)
        raise pyfuse3.FUSEError(errno.EINVAL) from None
