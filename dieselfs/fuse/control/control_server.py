"""The control directory as a FUSE mount of its own: the EROFS fronts show it at `.dieselfs`.

The root of this mount is `.dieselfs` itself. Inside the tree of the front `fuse` a `TreeServer`
gives the same answers to the same requests.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.control.control_requests import ControlRequests, Reply
from dieselfs.fuse.requests.attributes import MAX_NAME_BYTES, Owner
from dieselfs.fuse.requests.kernel_connection import Answer, KernelConnection, KernelRequest
from dieselfs.fuse.requests.kernel_protocol import (
    DIRECT_IO,
    NO_FLUSH,
    OPEN_OUT,
    ROOT_NODE,
    Opcode,
    statfs_reply,
)
from dieselfs.fuse.requests.pending_reads import PendingReads
from dieselfs.fuse.requests.read_only_requests import (
    ReadOnlyRequests,
    get_extended_attribute,
    list_extended_attributes,
)


class ControlServer:
    """The `Handler` of a connection whose root is the control directory. Thread-safe."""

    def __init__(
        self,
        connection: KernelConnection,
        control: ControlDirectory,
        owner: Owner,
        pending: PendingReads,
        reply: Reply,
    ) -> None:
        """Requests that may block are `pending`, and answered by `reply`."""
        self._directory = control
        self._control = ControlRequests(control, owner, pending, reply, directory=ROOT_NODE)
        read_only = ReadOnlyRequests(connection, statfs_reply(0, 0, MAX_NAME_BYTES)).answers
        self._open_to_read = read_only[Opcode.OPEN]
        self._answers: dict[int, Callable[[KernelRequest], Answer]] = {
            **read_only,
            Opcode.GETXATTR: lambda request: get_extended_attribute(request, {}),
            Opcode.LISTXATTR: lambda request: list_extended_attributes(request, {}),
            Opcode.OPEN: self._open,
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget,
        }

    def answer(self, request: KernelRequest) -> Answer:
        """Answer a request; see `Handler`.

        After ENOSYS the kernel stops sending that kind of request: FLUSH, FSYNC, LSEEK, POLL.
        """
        if self._control.answers(request.opcode):
            return self._control.answer(request)
        handler = self._answers.get(request.opcode)
        return errno.ENOSYS if handler is None else handler(request)

    def _open(self, request: KernelRequest) -> Answer:
        """Open a plan that is to be written, and anything else for reading."""
        if self._directory.is_plan(request.node):
            return [OPEN_OUT.pack(request.node, DIRECT_IO | NO_FLUSH, 0)]
        return self._open_to_read(request)

    def _forget(self, request: KernelRequest) -> Answer:
        self._control.forget(request)
        return ()
