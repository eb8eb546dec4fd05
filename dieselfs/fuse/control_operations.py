"""The control directory as a mount of its own, through pyfuse3: the `erofs` front puts it at `.dieselfs`.

The root of this mount is `.dieselfs` itself. Calls that may block run in worker threads. The mount is `ro`, so the kernel refuses
changes itself; what has no handler here gets pyfuse3's ENOSYS, after which the kernel answers it itself or not at all.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import pyfuse3

from dieselfs.fuse.attributes import (
    BLOCK_BYTES,
    MAX_NAME_BYTES,
    UNSUPPORTED_NAMESPACES,
    NodeAttributes,
    Owner,
)
from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.errnos import logged_errno
from dieselfs.fuse.kernel_protocol import ROOT_NODE
from dieselfs.fuse.nodes import CONTROL_NODE
from dieselfs.worker_threads import WorkerThreads

log = logging.getLogger(__name__)

_THREADS: Final = 4
_MIN_TASKS: Final = 2
_MAX_TASKS: Final = 64
_Parameters = ParamSpec("_Parameters")
_Reply = TypeVar("_Reply")


async def serve_control(fd: int, control: ControlDirectory, owner: Owner) -> None:
    """Serve the mount of a /dev/fuse descriptor until it is unmounted, or the caller cancels.

    `fd` stays the caller's: libfuse gets, and closes, a copy. pyfuse3 holds one session a process. The
    connection must be new, since libfuse waits for the kernel's INIT.
    """
    operations = ControlOperations(control, owner, WorkerThreads(_THREADS))
    pyfuse3.init(operations, f"/dev/fd/{os.dup(fd)}", {"default_permissions", "ro"})
    try:
        await pyfuse3.main(_MIN_TASKS, _MAX_TASKS)
    finally:
        pyfuse3.close(unmount=False)


def request(
    handler: Callable[_Parameters, Coroutine[Any, Any, _Reply]],
) -> Callable[_Parameters, Coroutine[Any, Any, _Reply]]:
    """Make a request handler of a method: every failure becomes a reply.

    pyfuse3 turns `FUSEError` into one; any other exception ends the whole mount.
    """

    @wraps(handler)
    async def answer(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Reply:
        try:
            return await handler(*arguments, **named)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            node = arguments[1] if len(arguments) > 1 else "-"
            raise pyfuse3.FUSEError(logged_errno(handler.__name__, node, error)) from None

    return answer


class ControlOperations(pyfuse3.Operations):
    """Requests of the control directory's own mount."""

    supports_dot_lookup = False

    def __init__(self, control: ControlDirectory, owner: Owner, threads: WorkerThreads) -> None:
        super().__init__()
        self._control, self._owner, self._threads = control, owner, threads

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
        try:
            for inode, lookups in inode_list:
                self._control.forget(_inside(inode), lookups)
        except Exception:
            log.exception("forget failed unexpectedly")

    @request
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
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
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        # The bytes under an inode never change, so the kernel keeps its pages from open to open.
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    @request
    async def read(self, fh: int, off: int, size: int) -> Any:  # bytes or a view of them
        return await self._threads.run_abandonable(self._control.read, _inside(fh), off, size)

    @request
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        result = pyfuse3.StatvfsData()
        result.f_bsize = result.f_frsize = BLOCK_BYTES
        result.f_namemax = MAX_NAME_BYTES
        return result

    @request
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
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
