"""The requests that all read-only trees answer alike, whatever files they show."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dieselfs.fuse.requests.attributes import UNSUPPORTED_NAMESPACES
from dieselfs.fuse.requests.kernel_connection import Answer, KernelConnection, KernelRequest, Part
from dieselfs.fuse.requests.kernel_protocol import (
    ACCESS_IN,
    CACHE_DIR,
    CHANGES,
    GETXATTR_IN,
    GETXATTR_OUT,
    KEEP_CACHE,
    NO_FLUSH,
    OPEN_IN,
    OPEN_OUT,
    Opcode,
)

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND


class ReadOnlyRequests:
    """The answers that need no file. Thread-safe.

    The bytes under a node never change, so the kernel keeps its pages from open to open. OPEN and
    OPENDIR are refused with ENOSYS where the kernel then skips them, and keeps the pages likewise.
    """

    def __init__(self, connection: KernelConnection, statfs: bytes) -> None:
        """Create it; for `statfs` see `statfs_reply`."""
        self._connection = connection
        self.answers: Final[dict[int, Callable[[KernelRequest], Answer]]] = {
            Opcode.OPEN: self._open,
            Opcode.OPENDIR: self._opendir,
            Opcode.ACCESS: _access,
            Opcode.STATFS: lambda request: [statfs],
            Opcode.IOCTL: lambda request: errno.ENOTTY,
            Opcode.RELEASE: lambda request: (),
            Opcode.RELEASEDIR: lambda request: (),
            Opcode.DESTROY: lambda request: (),
            Opcode.INTERRUPT: lambda request: (),
            **dict.fromkeys(CHANGES, lambda request: errno.EROFS),
        }

    def _open(self, request: KernelRequest) -> Answer:
        if self._open_is_refused:
            return errno.ENOSYS
        if OPEN_IN.unpack_from(request.body)[0] & _WRITING:
            return errno.EROFS
        return [OPEN_OUT.pack(request.node, KEEP_CACHE | NO_FLUSH, 0)]

    def _opendir(self, request: KernelRequest) -> Answer:
        if self._open_is_refused:
            return errno.ENOSYS
        return [OPEN_OUT.pack(request.node, KEEP_CACHE | CACHE_DIR, 0)]

    @property
    def _open_is_refused(self) -> bool:
        agreed = self._connection.agreed  # None: the former process has agreed on it
        return agreed is None or agreed.open_may_be_refused


def _access(request: KernelRequest) -> Answer:
    return errno.EROFS if ACCESS_IN.unpack_from(request.body)[0] & os.W_OK else ()


def get_extended_attribute(request: KernelRequest, attributes: Mapping[bytes, bytes]) -> Answer:
    """Answer GETXATTR of a node that has these attributes."""
    size, _ = GETXATTR_IN.unpack_from(request.body)
    name = bytes(request.body[GETXATTR_IN.size : -1])
    if name.startswith(UNSUPPORTED_NAMESPACES):
        return errno.ENOTSUP
    value = attributes.get(name)
    return errno.ENODATA if value is None else _sized(value, size)


def list_extended_attributes(request: KernelRequest, attributes: Mapping[bytes, bytes]) -> Answer:
    """Answer LISTXATTR of a node that has these attributes."""
    size, _ = GETXATTR_IN.unpack_from(request.body)
    return _sized(b"".join(name + b"\0" for name in attributes), size)


def _sized(value: bytes, size: int) -> Sequence[Part] | int:
    """Return the value, or its length if that was requested."""
    if size == 0:
        return [GETXATTR_OUT.pack(len(value), 0)]
    return [value] if len(value) <= size else errno.ERANGE
