"""A snapshot as one FUSE mount of our own protocol: the server of the `fuse` front.

The kernel keeps names, attributes and pages for good, since a process serves one snapshot and its
nodes never change their meaning. Everything but a READ of bytes that are not in memory is answered
from the snapshot's map at once; such READs, and what may block in the control directory, are
pending (`pending_reads`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from chunkstore.chunk_format import MAX_TARGET_BYTES
from chunkstore.chunk_source import FileExtent
from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.control.control_requests import ControlRequests
from dieselfs.fuse.mounts.control_names import CONTROL_NAME
from dieselfs.fuse.requests.attributes import (
    BLOCK_BYTES,
    DIRECTORY_BYTES,
    MAX_NAME_BYTES,
    NodeAttributes,
    Owner,
)
from dieselfs.fuse.requests.errnos import RequestRefused, logged_errno
from dieselfs.fuse.requests.file_reader import FileReader
from dieselfs.fuse.requests.kernel_connection import Answer, KernelConnection, KernelRequest
from dieselfs.fuse.requests.kernel_protocol import (
    NAMES,
    NO_ENTRY,
    READ_IN,
    ROOT_NODE,
    Opcode,
    statfs_reply,
)
from dieselfs.fuse.requests.nodes import CONTROL_NODE, inode_of, is_control, node_of
from dieselfs.fuse.requests.pending_reads import PendingReads
from dieselfs.fuse.requests.read_failures import shown_path
from dieselfs.fuse.requests.read_only_requests import (
    ReadOnlyRequests,
    get_extended_attribute,
    list_extended_attributes,
)
from dieselfs.fuse.serving.tree_listings import TreeListings
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot
from metadata.snapshot_format import DIRECTORY_BASE

CHUNK_ATTRIBUTE: Final = b"user.dieselfs.chunk"
HASH_ATTRIBUTE: Final = b"user.dieselfs.xxh3"


class TreeServer:
    """The `Handler` of a connection that shows a snapshot and its control files. Thread-safe."""

    def __init__(
        self,
        connection: KernelConnection,
        snapshot: Snapshot,
        owner: Owner,
        reader: FileReader,
        control: ControlDirectory,
        control_pending: PendingReads,
        note_read: Callable[[int], None] = lambda inode: None,
    ) -> None:
        """Create a server.

        `control_pending` has the requests of the control directory that may block: they are
        answered also while READs wait for a store.
        `note_read` is called with the snapshot inode of each READ.
        """
        self._connection, self._snapshot, self._owner = connection, snapshot, owner
        self._reader, self._note_read = reader, note_read
        self._control = ControlRequests(control, owner, control_pending, connection.reply)
        self._control_entry = control.attributes(CONTROL_NODE).entry(owner)
        self._listings = TreeListings(snapshot, owner, hidden=CONTROL_NAME)
        self._subdirectory_counts = snapshot.columns.directory_directory_count
        statfs = statfs_reply(
            -(-snapshot.total_bytes // BLOCK_BYTES),
            snapshot.file_count + snapshot.directory_count,
            MAX_NAME_BYTES,
        )
        self._answers: dict[int, Callable[[KernelRequest], Answer]] = {
            **ReadOnlyRequests(connection, statfs).answers,
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.READ: self._read,
            Opcode.READLINK: self._readlink,
            Opcode.READDIR: self._readdir,
            Opcode.READDIRPLUS: self._readdirplus,
            Opcode.GETXATTR: self._getxattr,
            Opcode.LISTXATTR: self._listxattr,
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget,
        }

    def answer(self, request: KernelRequest) -> Answer:
        """Answer a request; see `Handler`.

        After ENOSYS the kernel stops sending that kind of request: FLUSH, FSYNC, LSEEK, POLL.
        """
        handler = self._answers.get(request.opcode)
        if handler is None:
            return errno.ENOSYS
        if is_control(request.node) and self._control.answers(request.opcode):
            return self._control.answer(request)
        try:
            return handler(request)
        except Exception as error:
            kind = NAMES.get(Opcode(request.opcode), "request")
            return logged_errno(kind, f"node {request.node}", error)

    def _forget(self, request: KernelRequest) -> Answer:
        self._control.forget(request)
        return ()

    def _lookup(self, request: KernelRequest) -> Answer:
        name = bytes(request.body[:-1])
        if request.node == ROOT_NODE and name == CONTROL_NAME:
            return [self._control_entry]
        if len(name) > MAX_NAME_BYTES:  # the kernel leaves that to us
            return errno.ENAMETOOLONG
        found = self._snapshot.lookup(inode_of(request.node), name)
        entry = NO_ENTRY if found is None else self._attributes(found).entry(self._owner)
        self._snapshot.check_unchanged()
        return [entry]

    def _getattr(self, request: KernelRequest) -> Answer:
        attributes = self._attributes(inode_of(request.node))
        self._snapshot.check_unchanged()
        return [attributes.reply(self._owner)]

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

    def _read(self, request: KernelRequest) -> Answer:
        _, start, size, *_ = READ_IN.unpack_from(request.body)
        unique, inode = request.unique, inode_of(request.node)
        self._note_read(inode)
        try:
            file = self._extent(inode)
        except Exception as error:
            self._reader.note_refused()
            return self._reader.failures.errno(None, self._subject(inode), error)
        return self._reader.answer_file(
            *(file, start, size, lambda answer: self._connection.reply(unique, answer)),
            *(inode, request.pid),
        )

    def _subject(self, inode: int) -> str:
        """Return what the log names: the path, or the number if the snapshot is damaged there."""
        try:
            return shown_path(self._snapshot, inode)
        except SnapshotRefused:
            return f"node {inode}"

    def _readlink(self, request: KernelRequest) -> Answer:
        """Answer the target of a symbolic link, which is its content."""
        unique, inode = request.unique, inode_of(request.node)
        if not self._snapshot.is_link(inode):
            return errno.EINVAL
        file = self._extent(inode)
        if not 1 <= file.length <= MAX_TARGET_BYTES:
            raise SnapshotRefused(f"the link of inode {inode} has {file.length} bytes: damaged")
        return self._reader.answer_file(
            *(file, 0, file.length, lambda answer: self._connection.reply(unique, answer)),
            *(inode, request.pid),
        )

    def _extent(self, inode: int) -> FileExtent:
        if inode >= DIRECTORY_BASE:
            raise RequestRefused(errno.EISDIR)
        extent = self._snapshot.extent(inode)
        self._snapshot.check_unchanged()
        return extent

    def _readdir(self, request: KernelRequest) -> Answer:
        return self._list(request, plus=False)

    def _readdirplus(self, request: KernelRequest) -> Answer:
        return self._list(request, plus=True)

    def _list(self, request: KernelRequest, *, plus: bool) -> Answer:
        _, position, size, *_ = READ_IN.unpack_from(request.body)
        entries = self._listings.read(inode_of(request.node), position, size, plus=plus)
        self._snapshot.check_unchanged()
        return [entries]

    def _getxattr(self, request: KernelRequest) -> Answer:
        return get_extended_attribute(request, self._extended_attributes(request.node))

    def _listxattr(self, request: KernelRequest) -> Answer:
        return list_extended_attributes(request, self._extended_attributes(request.node))

    def _extended_attributes(self, node: int) -> dict[bytes, bytes]:
        """Return the chunk that holds a file, and the hash of its content; {} for a directory."""
        inode = inode_of(node)
        if is_control(node) or inode >= DIRECTORY_BASE:
            return {}
        extent = self._extent(inode)
        return {
            CHUNK_ATTRIBUTE: str(extent.chunk.id).encode(),
            HASH_ATTRIBUTE: f"{extent.hash:016x}".encode(),
        }
