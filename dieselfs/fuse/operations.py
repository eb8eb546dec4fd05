"""The requests of the kernel, each passed on to the concept that answers it.

A file handle is the file's inode, so nothing is kept per open file. Every request that would change
something is refused with EROFS. FLUSH, FSYNC and POLL are left to pyfuse3's ENOSYS, after which the
kernel answers them itself.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import pyfuse3

from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.control_names import CONTROL_NAME
from dieselfs.fuse.epochs import Epochs
from dieselfs.fuse.file_reader import FileReader
from dieselfs.fuse.inodes import CONTROL_INODE, ROOT_INODE, is_control
from dieselfs.fuse.mount_plans import MountPlans
from dieselfs.fuse.requests import request

log = logging.getLogger(__name__)

_UNSUPPORTED_NAMESPACES: Final = (b"system.", b"security.")
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND


class MountOperations(pyfuse3.Operations):
    """One mount. `request_counts` is shared with whoever shows statistics."""

    supports_dot_lookup = False

    def __init__(
        self,
        epochs: Epochs,
        reader: FileReader,
        control: ControlDirectory,
        request_counts: dict[str, int],
        plans: MountPlans | None = None,
    ) -> None:
        super().__init__()
        self._plans = plans
        self._epochs = epochs
        self._reader = reader
        self._control = control
        self.request_counts = request_counts

    @request
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if is_control(parent_inode):
            return await self._control.lookup(parent_inode, name)
        if parent_inode == ROOT_INODE and name == CONTROL_NAME:
            return self._control.attributes(CONTROL_INODE)
        return self._epochs.tree_of(parent_inode).lookup(parent_inode, name)

    @request
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        if is_control(inode):
            return self._control.attributes(inode)
        return self._epochs.tree_of(inode).attributes(inode)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        # Not a @request: there is no reply, so there is nothing that could carry an errno.
        self.request_counts["forget"] = self.request_counts.get("forget", 0) + 1
        try:
            for inode, lookups in inode_list:
                if is_control(inode):
                    self._control.forget(inode, lookups)
        except Exception:
            log.exception("forget failed unexpectedly")

    @request
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        owner = self._control if is_control(inode) else self._epochs.tree_of(inode)
        owner.require_directory(inode)
        return inode

    @request
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        if is_control(fh):
            await self._list_control(fh, start_id, token)
        else:
            self._list_dataset(fh, start_id, token)

    def _list_dataset(self, inode: int, start: int, token: pyfuse3.ReaddirToken) -> None:
        reply = pyfuse3.readdir_reply
        for name, entry, following in self._epochs.children(inode, start):
            hidden = inode == ROOT_INODE and name == CONTROL_NAME
            if not hidden and not reply(token, name, entry, following):
                return

    async def _list_control(self, inode: int, start: int, token: pyfuse3.ReaddirToken) -> None:
        for following, name in enumerate(self._control.names(inode)[start:], start + 1):
            entry = await self._control.lookup(inode, name)
            if not pyfuse3.readdir_reply(token, name, entry, following):
                self._control.forget(entry.st_ino, 1)
                return

    @request
    async def releasedir(self, fh: int) -> None:
        pass

    @request
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & _WRITING:
            raise pyfuse3.FUSEError(errno.EROFS)
        # The bytes under an inode never change, so the kernel keeps its pages from open to open.
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    @request
    async def read(self, fh: int, off: int, size: int) -> Any:  # bytes or a view of them
        if is_control(fh):
            return await self._control.read(fh, off, size)
        if self._plans is not None:
            self._plans.note_read(fh)
        try:
            file = self._epochs.tree_of(fh).extent(fh)
        except Exception:
            self._reader.note_refused()
            raise
        return await self._reader.read(file, off, size)

    @request
    async def release(self, fh: int) -> None:
        pass

    @request
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return self._epochs.current.file_system_statistics()

    @request
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        if mode & os.W_OK:
            raise pyfuse3.FUSEError(errno.EROFS)
        return True  # the kernel has checked the mode bits: default_permissions

    @request
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        if name.startswith(_UNSUPPORTED_NAMESPACES):
            # After ENOTSUP `ls -l` stops asking; ENODATA made it ask for each of 64,000 files.
            raise pyfuse3.FUSEError(errno.ENOTSUP)
        value = self._extended_attributes(inode).get(name)
        if value is None:
            raise pyfuse3.FUSEError(errno.ENODATA)
        return value

    @request
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> list[bytes]:
        return list(self._extended_attributes(inode))

    def _extended_attributes(self, inode: int) -> dict[bytes, bytes]:
        if is_control(inode):
            return {}
        return self._epochs.tree_of(inode).extended_attributes(inode)


def _refuse(kind: str) -> Any:
    async def refused(self: MountOperations, *arguments: object) -> NoReturn:
        raise pyfuse3.FUSEError(errno.EROFS)

    refused.__name__ = kind
    return request(refused)


# The kernel refuses these itself on a mount that is `ro`; a remount can't make them work either.
for _kind in (
    *("setattr", "mknod", "mkdir", "unlink", "rmdir", "symlink", "rename", "link", "create"),
    *("write", "setxattr", "removexattr"),
):
    setattr(MountOperations, _kind, _refuse(_kind))
