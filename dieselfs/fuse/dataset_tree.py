"""A snapshot as the kernel sees it in one epoch: its names, attributes and listings by kernel inode.

Everything here is answered from the snapshot's memory map without blocking.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

import pyfuse3

from chunkstore.chunk_source import FileExtent
from dieselfs.fuse.attributes import (
    BLOCK_BYTES,
    DIRECTORY_BYTES,
    FOREVER_S,
    Owner,
    entry_attributes,
    known_absent,
)
from dieselfs.fuse.inodes import ROOT_INODE, epoch_of, kernel_inode, snapshot_inode
from metadata.snapshot import ROOT, Snapshot
from metadata.snapshot_format import DIRECTORY_BASE

CHUNK_ATTRIBUTE: Final = b"user.dieselfs.chunk"
HASH_ATTRIBUTE: Final = b"user.dieselfs.xxh3"
MAX_NAME_BYTES: Final = 255


class DatasetTree:
    """The files and directories of `snapshot`, numbered in `epoch`, owned by `owner`."""

    def __init__(self, snapshot: Snapshot, epoch: int, owner: Owner) -> None:
        self.snapshot = snapshot
        self.epoch = epoch
        self._owner = owner
        self._absent = known_absent()
        self._subdirectory_counts = snapshot.columns.directory_directory_count

    def _in_snapshot(self, inode: int) -> int:
        if inode == ROOT_INODE:
            return ROOT
        if epoch_of(inode) != self.epoch:
            raise pyfuse3.FUSEError(errno.ESTALE)
        return snapshot_inode(inode)

    def find(self, parent: int, name: bytes) -> pyfuse3.EntryAttributes | None:
        """The entry of that name, if there is one."""
        found = self.snapshot.lookup(self._in_snapshot(parent), name)
        return None if found is None else self._attributes(found)

    def lookup(self, parent: int, name: bytes) -> pyfuse3.EntryAttributes:
        """The entry of that name, or the kernel's note that there is none (ENOENT in the root)."""
        found = self.find(parent, name)
        if found is not None:
            return found
        if len(name) > MAX_NAME_BYTES:  # the kernel leaves that to us
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        if parent == ROOT_INODE:
            # A later epoch may bring the name, and absent names can't be listed to be taken back.
            raise pyfuse3.FUSEError(errno.ENOENT)
        return self._absent

    def attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        return self._attributes(self._in_snapshot(inode))

    def _attributes(self, node: int) -> pyfuse3.EntryAttributes:
        snapshot = self.snapshot
        if node < DIRECTORY_BASE:
            size, links = snapshot.size(node), 1
            inode = kernel_inode(self.epoch, node)
        else:
            size, links = DIRECTORY_BYTES, 2 + int(self._subdirectory_counts[node - DIRECTORY_BASE])
            inode = ROOT_INODE if node == ROOT else kernel_inode(self.epoch, node)
        return entry_attributes(
            inode,
            snapshot.mode(node),
            size,
            snapshot.mtime_ns(node),
            self._owner,
            FOREVER_S,
            links,
        )

    def children(
        self, directory: int, start: int
    ) -> Iterator[tuple[bytes, pyfuse3.EntryAttributes]]:
        """Entries `start` and following of a directory, in the order that never changes."""
        for name, node in self.snapshot.children(self._in_snapshot(directory), start):
            yield name, self._attributes(node)

    def require_directory(self, inode: int) -> None:
        if not self.snapshot.is_directory(self._in_snapshot(inode)):
            raise pyfuse3.FUSEError(errno.ENOTDIR)

    def extent(self, inode: int) -> FileExtent:
        """Where the bytes of a file lie; EISDIR for a directory."""
        node = self._in_snapshot(inode)
        if node >= DIRECTORY_BASE:
            raise pyfuse3.FUSEError(errno.EISDIR)
        return self.snapshot.extent(node)

    def extended_attributes(self, inode: int) -> dict[bytes, bytes]:
        """Which chunk holds a file, and the hash of its content. Directories have none."""
        node = self._in_snapshot(inode)
        if node >= DIRECTORY_BASE:
            return {}
        extent = self.snapshot.extent(node)
        return {
            CHUNK_ATTRIBUTE: str(extent.chunk.id).encode(),
            HASH_ATTRIBUTE: f"{extent.hash:016x}".encode(),
        }

    def file_system_statistics(self) -> pyfuse3.StatvfsData:
        """A full file system of just the dataset's size."""
        snapshot, result = self.snapshot, pyfuse3.StatvfsData()
        result.f_bsize = result.f_frsize = BLOCK_BYTES
        result.f_blocks = -(-snapshot.total_bytes // BLOCK_BYTES)
        result.f_files = snapshot.file_count + snapshot.directory_count
        result.f_namemax = MAX_NAME_BYTES
        return result
