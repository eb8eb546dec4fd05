"""The requests about control files: inside the tree of the `fuse` front, or in a mount of its own.

The kernel keeps the pages of a node from open to open; that is right here, since a document gets a
fresh node at each look-up.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from chunkstore.stores.read_turn import ReadTurn, reading
from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.requests.attributes import Owner
from dieselfs.fuse.requests.directory_entries import DIRECTORY_TYPE, FILE_TYPE
from dieselfs.fuse.requests.errnos import RequestRefused, logged_errno
from dieselfs.fuse.requests.kernel_connection import Answer, KernelRequest, Part, Pending
from dieselfs.fuse.requests.kernel_protocol import (
    BATCH_FORGET_IN,
    DIRECTORY_ENTRY,
    FORGET_IN,
    IOCTL_IN,
    IOCTL_OUT,
    NAMES,
    READ_IN,
    WRITE_IN,
    WRITE_OUT,
    Opcode,
)
from dieselfs.fuse.requests.nodes import CONTROL_NODE, DATASET_NODES, FIRST_CONTROL_FILE_NODE
from dieselfs.fuse.requests.pending_reads import PendingReads
from dieselfs.prefetch.plan_ioctl import PLAN_ARGUMENT, is_plan_command

CONTROL_THREADS: Final = 4
"""The most requests that wait at a time: one slow plan or list does not stop the others."""
_MAY_BLOCK: Final = frozenset([Opcode.LOOKUP, Opcode.READ])
_NO_ATTRIBUTES: Final = bytes(128)
"""READDIRPLUS: node 0 marks an entry without attributes, so that no look-up is counted."""

Reply = Callable[[int, Sequence[Part] | int], object]
"""A function that answers a request, named by its number, later: see `Connection.reply`."""


class ControlRequests:
    """Answers requests about control nodes. Thread-safe."""

    def __init__(
        self,
        control: ControlDirectory,
        owner: Owner,
        pending: PendingReads,
        reply: Reply,
        *,
        directory: int = CONTROL_NODE,
    ) -> None:
        """Requests that may block are `pending`, and answered by `reply`.

        `directory` is the number by which the kernel knows the control directory itself.
        """
        self._control, self._owner, self._directory = control, owner, directory
        self._pending, self._reply = pending, reply
        self._answers: dict[int, Callable[[KernelRequest], Sequence[Part]]] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.IOCTL: self._control_plan,
            Opcode.READDIR: lambda request: self._list(request, b""),
            Opcode.READDIRPLUS: lambda request: self._list(request, _NO_ATTRIBUTES),
        }

    def answers(self, opcode: int) -> bool:
        """Return True if `answer` knows this kind of request."""
        return opcode in self._answers

    def answer(self, request: KernelRequest) -> Answer:
        """Answer at once, or later if the request may block. Never raises."""
        if request.opcode not in _MAY_BLOCK:
            return self._answer(request)
        kept = request._replace(body=memoryview(bytes(request.body)))
        return Pending(self._pending.submit(lambda: self._reply(kept.unique, self._late(kept))))

    def _late(self, request: KernelRequest) -> Sequence[Part] | int:
        """Answer in the turn of the caller, whose job pays for a plan that it tells."""
        payer_of = self._control.payer_of
        if payer_of is None:
            return self._answer(request)
        with reading(ReadTurn(payer=payer_of(request.pid))):
            return self._answer(request)

    def _answer(self, request: KernelRequest) -> Sequence[Part] | int:
        try:
            return self._answers[request.opcode](request)
        except Exception as error:
            kind = NAMES[Opcode(request.opcode)]
            return logged_errno(kind, f"control node {request.node}", error)

    def forget(self, request: KernelRequest) -> None:
        """Handle FORGET and BATCH_FORGET of any nodes; only those of control files matter."""
        if request.opcode == Opcode.FORGET:
            self._control.forget(request.node, *FORGET_IN.unpack_from(request.body))
            return
        pairs = np.frombuffer(request.body[BATCH_FORGET_IN.size :], np.uint64).reshape(-1, 2)
        for node, lookups in pairs[pairs[:, 0] < DATASET_NODES].tolist():
            self._control.forget(node, lookups)

    def _inside(self, node: int) -> int:
        """Return our number of the kernel's node."""
        return CONTROL_NODE if node == self._directory else node

    def _lookup(self, request: KernelRequest) -> Sequence[Part]:
        name = bytes(request.body[:-1])
        found = self._control.lookup(self._inside(request.node), name, request.user)
        return [found.entry(self._owner)]

    def _getattr(self, request: KernelRequest) -> Sequence[Part]:
        found = self._control.attributes(self._inside(request.node))
        return [found._replace(node=request.node).reply(self._owner)]

    def _read(self, request: KernelRequest) -> Sequence[Part]:
        _, start, size, *_ = READ_IN.unpack_from(request.body)
        return [self._control.read(self._inside(request.node), start, size)]

    def _write(self, request: KernelRequest) -> Sequence[Part]:
        _, start, size, *_ = WRITE_IN.unpack_from(request.body)
        node = self._inside(request.node)
        self._control.write(node, start, request.body[WRITE_IN.size :][:size])
        return [WRITE_OUT.pack(size, 0)]

    def _control_plan(self, request: KernelRequest) -> Sequence[Part]:
        """Take bytes of a plan from a program whose view of the mount is read-only."""
        _, _, command, _, size, _ = IOCTL_IN.unpack_from(request.body)
        argument = request.body[IOCTL_IN.size :][:size]
        if not is_plan_command(command) or len(argument) < PLAN_ARGUMENT.size:
            raise RequestRefused(errno.ENOTTY)
        (start,) = PLAN_ARGUMENT.unpack_from(argument)
        self._control.write(request.node, start, argument[PLAN_ARGUMENT.size :])
        return [IOCTL_OUT.pack(0, 0, 0, 0)]

    def _list(self, request: KernelRequest, head: bytes) -> Sequence[Part]:
        _, start, size, *_ = READ_IN.unpack_from(request.body)
        listing = b""
        for entry in self._entries(self._inside(request.node), start):
            if len(listing) + len(head) + len(entry) > size:
                break
            listing += head + entry
        return [listing]

    def _entries(self, directory: int, start: int) -> Iterator[bytes]:
        for position, name in enumerate(self._control.names(directory)[start:], start):
            is_folder = self._control.is_folder(directory, name)
            kind = DIRECTORY_TYPE if is_folder else FILE_TYPE
            # A document has no number before it is looked up; 0 would hide it.
            number = FIRST_CONTROL_FILE_NODE + position
            head = DIRECTORY_ENTRY.pack(number, position + 1, len(name), kind)
            yield head + name + bytes(-len(name) % 8)
