"""A snapshot as one FUSE mount of our own protocol: the server of the `fuse` front.

The kernel keeps names, attributes and pages for good, since a process serves one snapshot and its nodes never change their meaning. OPEN
and OPENDIR are refused with ENOSYS where the kernel then skips them. Everything but a READ of bytes that are not in memory
is answered from the snapshot's map at once; such READs and the control directory have threads of their own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Final

from chunkstore.chunk_source import FileExtent
from dieselfs.fuse.attributes import (
    BLOCK_BYTES,
    DIRECTORY_BYTES,
    MAX_NAME_BYTES,
    UNSUPPORTED_NAMESPACES,
    NodeAttributes,
    Owner,
)
from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.control_names import CONTROL_NAME
from dieselfs.fuse.control_requests import ControlRequests
from dieselfs.fuse.errnos import RequestRefused, logged_errno
from dieselfs.fuse.file_reader import FileReader
from dieselfs.fuse.kernel_connection import PENDING, Answer, Connection, Part, Request
from dieselfs.fuse.kernel_protocol import (
    ACCESS_IN,
    CACHE_DIR,
    CHANGES,
    GETXATTR_IN,
    GETXATTR_OUT,
    KEEP_CACHE,
    NAMES,
    NO_ENTRY,
    NO_FLUSH,
    OPEN_IN,
    OPEN_OUT,
    READ_IN,
    ROOT_NODE,
    Opcode,
    statfs_reply,
)
from dieselfs.fuse.nodes import CONTROL_NODE, inode_of, is_control, node_of
from dieselfs.fuse.pending_reads import PendingReads
from dieselfs.fuse.tree_listings import TreeListings
from metadata.snapshot import Snapshot
from metadata.snapshot_format import DIRECTORY_BASE

CHUNK_ATTRIBUTE: Final = b"user.dieselfs.chunk"
HASH_ATTRIBUTE: Final = b"user.dieselfs.xxh3"
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND


class TreeServer:
    """The `Handler` of a connection that shows a snapshot and its control directory. Thread-safe."""

    def __init__(
        self,
        connection: Connection,
        snapshot: Snapshot,
        owner: Owner,
        reader: FileReader,
        control: ControlDirectory,
        control_threads: PendingReads,
        note_read: Callable[[int], None] = lambda inode: None,
    ) -> None:
        """`control_threads` answer the control directory, also while all other threads wait for a store. `note_read` is told
        the snapshot inode of each READ."""
        self._connection, self._snapshot, self._owner = connection, snapshot, owner
        self._reader, self._note_read = reader, note_read
        self._control = ControlRequests(control, owner)
        self._control_entry = control.attributes(CONTROL_NODE).entry(owner)
        self._control_threads = control_threads
        self._listings = TreeListings(snapshot, owner, hidden=CONTROL_NAME)
        self._subdirectory_counts = snapshot.columns.directory_directory_count
        self._statfs = statfs_reply(
            -(-snapshot.total_bytes // BLOCK_BYTES),
            snapshot.file_count + snapshot.directory_count,
            MAX_NAME_BYTES,
        )
        self._answers: dict[int, Callable[[Request], Answer]] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.READ: self._read,
            Opcode.READDIR: self._readdir,
            Opcode.READDIRPLUS: self._readdirplus,
            Opcode.OPEN: self._open,
            Opcode.OPENDIR: self._opendir,
            Opcode.GETXATTR: self._getxattr,
            Opcode.LISTXATTR: self._listxattr,
            Opcode.ACCESS: self._access,
            Opcode.STATFS: lambda request: [self._statfs],
            Opcode.IOCTL: lambda request: errno.ENOTTY,
            Opcode.RELEASE: lambda request: (),
            Opcode.RELEASEDIR: lambda request: (),
            Opcode.DESTROY: lambda request: (),
            **dict.fromkeys(CHANGES, lambda request: errno.EROFS),
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget,
            Opcode.INTERRUPT: lambda request: (),
        }

    def answer(self, request: Request) -> Answer:
        """See `Handler`. After ENOSYS the kernel answers a kind of request itself: FLUSH, FSYNC, LSEEK, POLL."""
        handler = self._answers.get(request.opcode)
        if handler is None:
            return errno.ENOSYS
        if is_control(request.node) and self._control.answers(request.opcode):
            return self._answer_control(request)
        try:
            return handler(request)
        except Exception as error:
            kind = NAMES.get(Opcode(request.opcode), "request")
            return logged_errno(kind, f"node {request.node}", error)

    def _answer_control(self, request: Request) -> Answer:
        kept = request._replace(body=memoryview(bytes(request.body)))
        self._control_threads.submit(
            lambda: self._connection.reply(kept.unique, self._control.answer(kept))
        )
        return PENDING

    def _forget(self, request: Request) -> Answer:
        self._control.forget(request)
        return ()

    def _lookup(self, request: Request) -> Answer:
        name = bytes(request.body[:-1])
        if request.node == ROOT_NODE and name == CONTROL_NAME:
            return [self._control_entry]
        if len(name) > MAX_NAME_BYTES:  # the kernel leaves that to us
            return errno.ENAMETOOLONG
        found = self._snapshot.lookup(inode_of(request.node), name)
        return [NO_ENTRY if found is None else self._attributes(found).entry(self._owner)]

    def _getattr(self, request: Request) -> Answer:
        return [self._attributes(inode_of(request.node)).reply(self._owner)]

    def _attributes(self, inode: int) -> NodeAttributes:
        snapshot = self._snapshot
        if inode < DIRECTORY_BASE:
            size, links = snapshot.size(inode), 1
        else:
            size = DIRECTORY_BYTES
            links = 2 + int(self._subdirectory_counts[inode - DIRECTORY_BASE])
        return NodeAttributes(
            node_of(inode), snapshot.mode(inode), size, snapshot.mtime_ns(inode), links
        )

    def _read(self, request: Request) -> Answer:
        _, start, size, *_ = READ_IN.unpack_from(request.body)
        unique, inode = request.unique, inode_of(request.node)
        self._note_read(inode)
        try:
            file = self._extent(inode)
        except Exception:
            self._reader.note_refused()
            raise
        return self._reader.answer_file(
            file, start, size, lambda answer: self._connection.reply(unique, answer), inode
        )

    def _extent(self, inode: int) -> FileExtent:
        if inode >= DIRECTORY_BASE:
            raise RequestRefused(errno.EISDIR)
        return self._snapshot.extent(inode)

    def _readdir(self, request: Request) -> Answer:
        return self._list(request, plus=False)

    def _readdirplus(self, request: Request) -> Answer:
        return self._list(request, plus=True)

    def _list(self, request: Request, *, plus: bool) -> Answer:
        _, position, size, *_ = READ_IN.unpack_from(request.body)
        return [self._listings.read(inode_of(request.node), position, size, plus=plus)]

    def _open(self, request: Request) -> Answer:
        if self._open_is_refused:
            return errno.ENOSYS
        if OPEN_IN.unpack_from(request.body)[0] & _WRITING:
            return errno.EROFS
        return [OPEN_OUT.pack(request.node, KEEP_CACHE | NO_FLUSH, 0)]

    def _opendir(self, request: Request) -> Answer:
        if self._open_is_refused:
            return errno.ENOSYS
        return [OPEN_OUT.pack(request.node, KEEP_CACHE | CACHE_DIR, 0)]

    @property
    def _open_is_refused(self) -> bool:
        agreed = self._connection.agreed  # None: the process before this one has agreed on it
        return agreed is None or agreed.open_may_be_refused

    def _access(self, request: Request) -> Answer:
        return errno.EROFS if ACCESS_IN.unpack_from(request.body)[0] & os.W_OK else ()

    def _getxattr(self, request: Request) -> Answer:
        size, _ = GETXATTR_IN.unpack_from(request.body)
        name = bytes(request.body[GETXATTR_IN.size : -1])
        if name.startswith(UNSUPPORTED_NAMESPACES):
            return errno.ENOTSUP
        value = self._extended_attributes(request.node).get(name)
        return errno.ENODATA if value is None else _sized(value, size)

    def _listxattr(self, request: Request) -> Answer:
        size, _ = GETXATTR_IN.unpack_from(request.body)
        names = self._extended_attributes(request.node)
        return _sized(b"".join(name + b"\0" for name in names), size)

    def _extended_attributes(self, node: int) -> dict[bytes, bytes]:
        """The chunk that holds a file, and the hash of its content. Directories have none."""
        inode = inode_of(node)
        if is_control(node) or inode >= DIRECTORY_BASE:
            return {}
        extent = self._snapshot.extent(inode)
        return {
            CHUNK_ATTRIBUTE: str(extent.chunk.id).encode(),
            HASH_ATTRIBUTE: f"{extent.hash:016x}".encode(),
        }


def _sized(value: bytes, size: int) -> Sequence[Part] | int:
    """The answer to GETXATTR and LISTXATTR: the value, or its length if that was asked for."""
    if size == 0:
        return [GETXATTR_OUT.pack(len(value), 0)]
    return [value] if len(value) <= size else errno.ERANGE
