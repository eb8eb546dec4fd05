"""The FUSE side of a mount with EROFS in front: the server of the *blob*.

The blob is a directory with one sparse file a device, whose READs are the mount's misses. Names,
attributes and cached pages never come here. EROFS fills a short answer with zeros, so an answer has
all requested bytes, or is an error.

The kernel opens each blob once, when EROFS is mounted (`front` handles); the end of that handle is
the end of the mount. This process opens a blob to have it read ahead; such handles mean nothing,
and no FLUSH comes when they are closed.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dieselfs.fuse.mounts.erofs_mounts import blob_name
from dieselfs.fuse.requests.attributes import NodeAttributes, Owner
from dieselfs.fuse.requests.file_reader import FileReader
from dieselfs.fuse.requests.kernel_connection import Answer, KernelConnection, KernelRequest, Part
from dieselfs.fuse.requests.kernel_protocol import (
    KEEP_CACHE,
    NO_ENTRY,
    NO_FLUSH,
    OPEN_OUT,
    READ_IN,
    RELEASE_IN,
    ROOT_NODE,
    Opcode,
)
from dieselfs.fuse.serving.blob_ranges import BlobRanges

_FIRST_BLOB = 2
_FRONT_HANDLE, _OWN_HANDLE = 1, 2
_ROOT = NodeAttributes(ROOT_NODE, stat.S_IFDIR | 0o500, 4096, 0, links=2)


class BlobServer:
    """The server of one blob mount; a `Handler`."""

    def __init__(
        self,
        connection: KernelConnection,
        ranges: BlobRanges,
        reader: FileReader,
        *,
        note_read: Callable[[int, int], None] = lambda inode, thread: None,
        on_end: Callable[[], None] = lambda: None,
        is_resumed: bool = False,
    ) -> None:
        """Create a server.

        `note_read` is called for each answered READ with its first file and its thread. `on_end` is
        called once, when EROFS is gone. With `is_resumed`, another process has served this
        connection before, and EROFS is mounted.
        """
        self._connection, self._ranges, self._reader = connection, ranges, reader
        self._note_read, self._on_end = note_read, on_end
        self._owner = Owner(os.getuid(), os.getgid())  # a blob is opened to be read ahead
        self._layout = ranges.layout
        self._nodes = {
            blob_name(device).encode(): NodeAttributes(
                _FIRST_BLOB + device, stat.S_IFREG | 0o400, self._layout.device_bytes(device), 0
            )
            for device in range(self._layout.device_count)
        }
        self._by_node = {attributes.node: attributes for attributes in self._nodes.values()}
        self._by_node[ROOT_NODE] = _ROOT
        self._is_opening_front = False
        self._is_mounted = is_resumed
        self._end_lock = threading.Lock()

    @contextmanager
    def opening_front(self) -> Iterator[None]:
        """Treat the processes that open a blob meanwhile as EROFS.

        EROFS is mounted if the context exits without an exception.
        """
        self._is_opening_front = True
        try:
            yield
            self._is_mounted = True
        finally:
            self._is_opening_front = False

    def answer(self, request: KernelRequest) -> Answer:
        """Answer a request; see `Handler`."""
        match request.opcode:
            case Opcode.READ:
                try:
                    return self._read(request)
                except Exception as error:
                    subject = f"blob node {request.node}"
                    return self._reader.failures.errno(None, subject, error)
            case Opcode.LOOKUP:
                found = self._nodes.get(bytes(request.body).rstrip(b"\0"))
                return [NO_ENTRY if found is None else found.entry(self._owner)]
            case Opcode.GETATTR:
                attributes = self._by_node.get(request.node)
                return errno.ESTALE if attributes is None else [attributes.reply(self._owner)]
            case Opcode.OPEN:
                handle = _FRONT_HANDLE if self._is_opening_front else _OWN_HANDLE
                return [OPEN_OUT.pack(handle, KEEP_CACHE | NO_FLUSH, 0)]
            case Opcode.RELEASE:
                self._release(RELEASE_IN.unpack_from(request.body)[0])
                return []
        return errno.ENOSYS

    def _read(self, request: KernelRequest) -> Answer:
        _, start, size, *_ = READ_IN.unpack_from(request.body)
        device = request.node - _FIRST_BLOB
        end = min(start + size, self._layout.device_bytes(device))
        if start >= end:
            return []
        first, thread = self._ranges.first_file(device, start), request.pid
        cached = self._reader.peek_all(self._ranges.runs(device, start, end))
        if cached is not None:
            self._note_read(first, thread)
            return cached
        unique = request.unique

        def reply(answer: Sequence[Part] | int) -> None:
            self._connection.reply(unique, answer)
            self._note_read(first, thread)

        wanted = self._ranges.files(device, start, end)
        return self._reader.answer(wanted, reply, f"blob{device}@{start}", thread)

    def note_end(self) -> None:
        """Note that EROFS is gone.

        A RELEASE says so, which another server of this connection may have received.
        """
        with self._end_lock:
            ends, self._is_mounted = self._is_mounted, False
        if ends:
            self._on_end()

    def _release(self, handle: int) -> None:
        if handle == _FRONT_HANDLE:
            self.note_end()
