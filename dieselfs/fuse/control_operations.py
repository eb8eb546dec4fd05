"""The control directory as a mount of its own, through pyfuse3: the `erofs` front puts it at `.dieselfs`.

The root of this mount is `.dieselfs` itself. Calls that may block run in worker threads. A request that would
change something is refused with EROFS. FLUSH, FSYNC and POLL get pyfuse3's ENOSYS, after which the kernel answers
them itself.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import pyfuse3
import trio

from dieselfs.fuse.attributes import BLOCK_BYTES, NodeAttributes, Owner
from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.kernel_protocol import ROOT_NODE
from dieselfs.fuse.nodes import CONTROL_NODE
from dieselfs.fuse.requests import request
from dieselfs.worker_threads import WorkerThreads

log = logging.getLogger(__name__)

MAX_NAME_BYTES: Final = 255
UNSUPPORTED_NAMESPACES: Final = (b"system.", b"security.")
WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
_THREADS: Final = 4
_MIN_TASKS: Final = 2
_MAX_TASKS: Final = 64


async def serve_control(
    fd: int, control: ControlDirectory, owner: Owner, *, threads: WorkerThreads | None = None
) -> None:
    """Serve the mount of a /dev/fuse descriptor until it is unmounted, or the caller cancels.

    `fd` stays the caller's: libfuse gets, and closes, a copy. pyfuse3 holds one session a process. The
    connection must be new, since libfuse waits for the kernel's INIT.
    """
    operations = ControlOperations(control, owner, threads or WorkerThreads(_THREADS))
    pyfuse3.init(operations, f"/dev/fd/{os.dup(fd)}", {"default_permissions", "ro"})
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve_until_lost, nursery.cancel_scope)
    finally:
        pyfuse3.close(unmount=False)


async def _serve_until_lost(scope: trio.CancelScope) -> None:
    await pyfuse3.main(_MIN_TASKS, _MAX_TASKS)
    scope.cancel()


class ControlOperations(pyfuse3.Operations):
    """Requests of the control directory's own mount."""

    supports_dot_lookup = False

    def __init__(self, control: ControlDirectory, owner: Owner, threads: WorkerThreads) -> None:
        super().__init__()
        self._control, self._owner, self._threads = control, owner, threads
        self.request_counts: dict[str, int] = {}

    @request
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return await self._lookup(_inside(parent_inode), name)

    async def _lookup(self, directory: int, name: bytes) -> pyfuse3.EntryAttributes:
        found = await self._threads.run_abandonable(self._control.lookup, directory, name)
        return _entry(found, self._owner)

    @request
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return _entry(self._control.attributes(_inside(inode)), self._owner)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        # Not a @request: there is no reply, so there is nothing that could carry an errno.
        self.request_counts["forget"] = self.request_counts.get("forget", 0) + 1
        try:
            for inode, lookups in inode_list:
                self._control.forget(_inside(inode), lookups)
        except Exception:
            log.exception("forget failed unexpectedly")

    @request
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        self._control.names(_inside(inode))
        return inode

    @request
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        directory = _inside(fh)
        for following, name in enumerate(self._control.names(directory)[start_id:], start_id + 1):
            entry = await self._lookup(directory, name)
            if not pyfuse3.readdir_reply(token, name, entry, following):
                self._control.forget(entry.st_ino, 1)
                return

    @request
    async def releasedir(self, fh: int) -> None:
        pass

    @request
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & WRITING:
            raise pyfuse3.FUSEError(errno.EROFS)
        # The bytes under an inode never change, so the kernel keeps its pages from open to open.
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    @request
    async def read(self, fh: int, off: int, size: int) -> Any:  # bytes or a view of them
        return await self._threads.run_abandonable(self._control.read, _inside(fh), off, size)

    @request
    async def release(self, fh: int) -> None:
        pass

    @request
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        result = pyfuse3.StatvfsData()
        result.f_bsize = result.f_frsize = BLOCK_BYTES
        result.f_namemax = MAX_NAME_BYTES
        return result

    @request
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        if mode & os.W_OK:
            raise pyfuse3.FUSEError(errno.EROFS)
        return True  # the kernel has checked the mode bits: default_permissions

    @request
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        # After ENOTSUP `ls -l` asks no more.
        unsupported = name.startswith(UNSUPPORTED_NAMESPACES)
        raise pyfuse3.FUSEError(errno.ENOTSUP if unsupported else errno.ENODATA)

    @request
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> list[bytes]:
        return []


def _inside(inode: int) -> int:
    """The control directory's number of a file of this mount."""
    return CONTROL_NODE if inode == ROOT_NODE else inode


def _entry(found: NodeAttributes, owner: Owner) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = ROOT_NODE if found.node == CONTROL_NODE else found.node
    entry.st_mode = found.mode
    entry.st_nlink = found.links
    entry.st_uid, entry.st_gid = owner.uid, owner.gid
    entry.st_size = found.size
    entry.st_blocks = (found.size + 511) // 512
    entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = found.mtime_ns
    entry.entry_timeout = entry.attr_timeout = float(found.valid_s)
    return entry


def _refuse(kind: str) -> Any:
    async def refused(self: ControlOperations, *arguments: object) -> NoReturn:
        raise pyfuse3.FUSEError(errno.EROFS)

    refused.__name__ = kind
    return request(refused)


# The kernel refuses these itself on a mount that is `ro`; a remount can't make them work either.
for _kind in (
    *("setattr", "mknod", "mkdir", "unlink", "rmdir", "symlink", "rename", "link", "create"),
    *("write", "setxattr", "removexattr"),
):
    setattr(ControlOperations, _kind, _refuse(_kind))
