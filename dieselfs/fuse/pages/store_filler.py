"""The page filler of the *fuse* front: a message to the kernel puts a file into the page cache.

The message is FUSE_NOTIFY_STORE. The kernel takes it only for files that it has looked up. For
others the helper process does that once, by a `stat` through the mount. The helper also drops
pages: FUSE has a message for that (FUSE_NOTIFY_INVAL_INODE), but it forgets the file's attributes
as well, and its next open would cost a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from chunkstore.chunk_source import FileExtent
from dieselfs.fuse.pages.page_filler import Inodes
from dieselfs.fuse.pages.page_helper import Helper
from dieselfs.fuse.pages.threaded_filler import ThreadedFiller
from dieselfs.fuse.requests.file_reader import CachedSource
from dieselfs.fuse.requests.kernel_connection import Part
from dieselfs.fuse.requests.kernel_protocol import store_notification
from metadata.snapshot import Snapshot


class StoreFiller(ThreadedFiller):
    """A filler that sends bytes to the kernel; implements `PageFiller`.

    The kernel may keep a message waiting for a READ of the same page, so no thread that answers
    READs may send it: the thread of the filler does.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        source: CachedSource,
        notify: Callable[[Sequence[Part]], bool],
        node_of: Callable[[int], int],
        helper: Helper,
        own_pids: set[int],
    ) -> None:
        """Create a filler.

        `notify` is the connection's: False if the kernel does not know the node. `node_of` returns
        the kernel's number of a file. `helper` is the caller's, to close after this. For `own_pids`
        see `ThreadedFiller`.
        """
        super().__init__(snapshot, own_pids)
        self._source, self._notify, self._node_of = source, notify, node_of
        self._helper = helper

    def _fill(self, chunk: int, files: Inodes) -> bool:
        unknown = self._store(chunk, files)
        if unknown is None or not len(unknown):
            return unknown is not None
        self._unknown += len(unknown)
        self._helper.stat(self._snapshot.paths_text(unknown, b"\0"))
        unknown = self._store(chunk, unknown)
        return unknown is not None and not len(unknown)

    def _store(self, chunk: int, files: Inodes) -> Inodes | None:
        """Store the files; return those that the kernel does not know.

        None if the chunk is not in memory any more.
        """
        payload = self._payload(chunk)
        if payload is None:
            return None
        notify, node_of, columns = self._notify, self._node_of, self._snapshot.columns
        offsets, lengths = columns.offset[files].tolist(), columns.length[files].tolist()
        self._snapshot.check_unchanged()
        unknown = []
        for inode, offset, length in zip(files.tolist(), offsets, lengths, strict=True):
            head = store_notification(node_of(inode), 0, length)
            if not notify([head, payload[offset : offset + length]]):
                unknown.append(inode)
        return np.array(unknown, np.uint32)

    def _payload(self, chunk: int) -> memoryview | None:
        ref = self._snapshot.chunk(chunk)
        return self._source.peek(FileExtent(ref, 0, ref.payload_bytes, 0), 0, ref.payload_bytes)

    def _drop(self, files: Inodes, staged_only: bool) -> None:
        if not staged_only:
            self._helper.drop(self._snapshot.paths_text(files, b"\0"))
