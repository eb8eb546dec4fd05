"""The control directory `.dieselfs/`, which listings of the root do not show.

    .dieselfs/dataset.json       what is mounted
    .dieselfs/stats.json         counters, fresh at every look-up
    .dieselfs/snapshot           the snapshot file, for readers that cannot open it elsewhere
    .dieselfs/refresh.json       how often a newer snapshot was asked for, and the outcome
    .dieselfs/shuffle/README     how to name a list
    .dieselfs/shuffle/<parameters>   a shuffled order, one path a line
    .dieselfs/plan/<id>.plan     a plan that its reader writes (`foreign_plans`)
    .dieselfs/plan/<id>          whether a plan is prefetched, from its first look-up on
    .dieselfs/why/<inode>        where the chunk of a file of the snapshot lies, and why

A control file's content is fixed when it is looked up, so that its size is exact (a file of size 0
reads as empty), and a document gets a fresh node then, so that the kernel never shows one content
under the size of another. A shuffled list is a function of its snapshot and parameters; it keeps
its node, and with it the kernel's pages, while the kernel knows it.

Nothing here speaks to the kernel: `control_requests` does.
"""

from __future__ import annotations

import errno
import logging
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

from dieselfs.fuse.control.control_documents import PLAN_README, SHUFFLE_README, WHY_README
from dieselfs.fuse.control.foreign_plans import ForeignPlan, ForeignPlans
from dieselfs.fuse.mounts.control_names import PLAN_NAME, README_NAME, SHUFFLE_NAME, WHY_NAME
from dieselfs.fuse.requests.attributes import DIRECTORY_BYTES, NodeAttributes
from dieselfs.fuse.requests.errnos import RequestRefused
from dieselfs.fuse.requests.file_reader import PayerOf
from dieselfs.fuse.requests.nodes import (
    CONTROL_NODE,
    PLAN_NODE,
    SHUFFLE_NODE,
    WHY_NODE,
    first_control_file,
)
from dieselfs.shuffle.order import ShuffleParameters, parse_parameters
from dieselfs.shuffle.shuffle_lists import ListedOrder, ShuffleLists
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

_FOLDERS: Final = {SHUFFLE_NAME: SHUFFLE_NODE, PLAN_NAME: PLAN_NODE, WHY_NAME: WHY_NODE}
_PLAN_MODE: Final = stat.S_IFREG | 0o666
_INODE_DIGITS: Final = 20
MAX_FILES: Final = 10_000
"""The kernel forgets unused nodes; if it does not, the oldest are dropped and become stale."""


@dataclass(slots=True)
class _ControlFile:
    size: int
    mtime_ns: int
    content: bytes | memoryview | ListedOrder
    """The bytes of a document, or the order that rebuilds a dropped list."""
    lookups: int = 0
    """Look-ups of this node that the kernel has not yet forgotten."""


class Plans(Protocol):
    """The owner of the plans that a mount prefetches."""

    def take(self, name: bytes) -> bytes:
        """Take the plan that a reader has named, and return the document that answers it.

        May block.
        """
        ...

    def follow(self, plan: ForeignPlan) -> bytes:
        """Take a plan that a reader has written, likewise."""
        ...

    def note_list(self, order: ListedOrder) -> None:
        """Note that a reader begins to read this list. Returns at once."""
        ...


class ControlDirectory:
    """The files of the control directory that the kernel knows at present.

    Thread-safe. `lookup` and `read` may block: they write documents, build lists and take plans.
    Refusals are `RequestRefused`, an `OSError`.
    """

    def __init__(
        self,
        documents: Mapping[bytes, Callable[[], bytes | memoryview]],
        lists: ShuffleLists,
        snapshot: Snapshot,
        plans: Plans | None = None,
        foreign_plans: ForeignPlans | None = None,
        explain: Callable[[int], bytes] | None = None,
        payer_of: PayerOf | None = None,
    ) -> None:
        """Create the directory.

        `documents` gives the content of each file of `.dieselfs/` at the time of the call. Shuffled
        orders are those of `snapshot`. Without `foreign_plans`, no plan is written here (EACCES).
        `explain` returns the document about a file of the snapshot, by its inode. It may block.
        `payer_of` says what pays for the plans that a caller tells; None: the mount's own job.
        """
        self.payer_of = payer_of
        self._lists = lists
        self._plans, self._foreign_plans = plans, foreign_plans
        self._explain = explain
        self._snapshot = snapshot
        self._started_ns = time.time_ns()
        self._documents: dict[int, dict[bytes, Callable[[], bytes | memoryview]]] = {
            CONTROL_NODE: dict(documents),
            SHUFFLE_NODE: {README_NAME: lambda: SHUFFLE_README},
            PLAN_NODE: {README_NAME: lambda: PLAN_README},
            WHY_NODE: {README_NAME: lambda: WHY_README},
        }
        self._lock = threading.Lock()
        self._next_node = count(first_control_file(self._started_ns))
        self._files: dict[int, _ControlFile] = {}
        self._list_nodes: dict[ListedOrder, int] = {}
        self.reads = 0
        """READs of control files since the mount began."""

    def lookup(self, parent: int, name: bytes, user: int = 0) -> NodeAttributes:
        """Return the node of a name for a user; this counts as one look-up of the node."""
        if parent == CONTROL_NODE and name in _FOLDERS:
            return self.attributes(_FOLDERS[name])
        write = self._documents.get(parent, {}).get(name)
        if write is not None:
            return self._new_document(write())
        if parent == SHUFFLE_NODE and b"=" in name:
            return self._list(ListedOrder(self._snapshot, _parameters(name)))
        if parent == PLAN_NODE and ForeignPlans.names(name):
            return self._plan_file(name, user)
        if parent == PLAN_NODE and self._plans is not None:
            return self._new_document(self._plans.take(name))
        if parent == WHY_NODE and self._explain is not None and name.isdigit():
            return self._new_document(self._explain(self._file_inode(name)))
        raise RequestRefused(errno.ENOENT)

    def _plan_file(self, name: bytes, user: int) -> NodeAttributes:
        """Return a new node for a plan, or the document that answers a whole one."""
        if self._foreign_plans is None or self._plans is None:
            raise RequestRefused(errno.EACCES)
        written = self._foreign_plans.find(name, user)
        if written is not None:
            written.answer = written.answer or self._plans.follow(written)
            return self._new_document(written.answer)
        with self._lock:
            node = next(self._next_node)
        self._foreign_plans.open(node, name, user)
        return self.attributes(node)

    def _file_inode(self, name: bytes) -> int:
        inode = int(name) if len(name) < _INODE_DIGITS else self._snapshot.file_count
        if inode >= self._snapshot.file_count:
            raise RequestRefused(errno.ENOENT)
        return inode

    def is_plan(self, node: int) -> bool:
        """Return True if a node is a plan that may be written."""
        return self._foreign_plans is not None and self._foreign_plans.has(node)

    def write(self, node: int, start: int, data: memoryview) -> None:
        """Write into a plan; EROFS for anything else, and see `ForeignPlans.write`."""
        if self._foreign_plans is None or not self._foreign_plans.has(node):
            is_gone = node not in self._documents and node not in self._files
            raise RequestRefused(errno.ESTALE if is_gone else errno.EROFS)
        self._foreign_plans.write(node, start, data)

    def _new_document(self, content: bytes | memoryview) -> NodeAttributes:
        with self._lock:
            return self._looked_up(self._add(_ControlFile(len(content), time.time_ns(), content)))

    def _list(self, order: ListedOrder) -> NodeAttributes:
        try:
            text = self._lists.text(order)
        except ValueError as error:  # a path holds a newline
            log.error("cannot write a list of one path a line: %s", error)
            raise RequestRefused(errno.ENOTSUP) from None
        with self._lock:
            node = self._list_nodes.get(order)
            if node is None:
                node = self._add(_ControlFile(len(text), time.time_ns(), order))
                self._list_nodes[order] = node
            return self._looked_up(node)

    def _add(self, file: _ControlFile) -> int:
        while len(self._files) >= MAX_FILES:
            self._drop(next(iter(self._files)))
        node = next(self._next_node)
        self._files[node] = file
        return node

    def _looked_up(self, node: int) -> NodeAttributes:
        file = self._files[node]
        file.lookups += 1
        return _shown(node, file)

    def attributes(self, node: int) -> NodeAttributes:
        """Return a node's attributes; ESTALE if the kernel has forgotten it, or it was dropped."""
        if self._foreign_plans is not None and self._foreign_plans.has(node):
            size = self._foreign_plans.size(node)
            return NodeAttributes(node, _PLAN_MODE, size, self._started_ns, valid_s=0)
        if node not in self._documents:
            return _shown(node, self._file(node))
        folders = len(_FOLDERS) if node == CONTROL_NODE else 0
        mode = stat.S_IFDIR | 0o555
        return NodeAttributes(node, mode, DIRECTORY_BYTES, self._started_ns, links=2 + folders)

    def names(self, directory: int) -> list[bytes]:
        """Return the names of a listing, folders last.

        Readers choose the names of shuffled lists, so none is listed.
        """
        if directory not in self._documents:
            raise RequestRefused(errno.ENOTDIR)
        names = sorted(self._documents[directory])
        return [*names, *_FOLDERS] if directory == CONTROL_NODE else names

    @staticmethod
    def is_folder(directory: int, name: bytes) -> bool:
        """Return True if a listed name is a directory."""
        return directory == CONTROL_NODE and name in _FOLDERS

    def read(self, node: int, start: int, size: int) -> memoryview:
        """Return bytes [start, start + size), as far as the file reaches."""
        if node in self._documents:
            raise RequestRefused(errno.EISDIR)
        if self.is_plan(node):
            return memoryview(b"")
        with self._lock:
            self.reads += 1
        content = self._file(node).content
        if isinstance(content, ListedOrder):
            if start == 0 and self._plans is not None:
                self._plans.note_list(content)
            content = self._lists.text(content)
        return memoryview(content)[start : start + size]

    def forget(self, node: int, lookups: int) -> None:
        """Take back `lookups` look-ups of `node`, which the kernel forgets."""
        if self._foreign_plans is not None:
            self._foreign_plans.forget(node)
        with self._lock:
            file = self._files.get(node)
            if file is None:
                return
            file.lookups -= lookups
            if file.lookups <= 0:
                self._drop(node)

    def _drop(self, node: int) -> None:
        content = self._files.pop(node).content
        if isinstance(content, ListedOrder):
            del self._list_nodes[content]

    def _file(self, node: int) -> _ControlFile:
        file = self._files.get(node)
        if file is None:
            raise RequestRefused(errno.ESTALE)
        return file


def _shown(node: int, file: _ControlFile) -> NodeAttributes:
    mode = stat.S_IFREG | 0o444
    return NodeAttributes(node, mode, file.size, file.mtime_ns, valid_s=0)


def _parameters(name: bytes) -> ShuffleParameters:
    try:
        return parse_parameters(name.decode())
    except ValueError as error:  # UnicodeDecodeError is one
        log.warning("cannot make the shuffled list %r: %s", name, error)
        raise RequestRefused(errno.EINVAL) from None
