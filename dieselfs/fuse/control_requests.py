"""The control directory's requests over our own connection: the `fuse` front has it inside the tree.

Every call may block, so a server hands these requests to a pool of threads. The kernel keeps the pages of a node from open to
open where OPEN is refused; that is right here, since a document gets a fresh node at each look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from dieselfs.fuse.attributes import Owner
from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.directory_entries import DIRECTORY_TYPE, FILE_TYPE
from dieselfs.fuse.errnos import logged_errno
from dieselfs.fuse.kernel_connection import Part, Request
from dieselfs.fuse.kernel_protocol import (
    BATCH_FORGET_IN,
    DIRECTORY_ENTRY,
    FORGET_IN,
    NAMES,
    READ_IN,
    Opcode,
)
from dieselfs.fuse.nodes import DATASET_NODES, FIRST_CONTROL_FILE_NODE

_NO_ATTRIBUTES: Final = bytes(128)
"""READDIRPLUS: node 0 says that this entry comes without attributes, so that no look-up is counted."""


class ControlRequests:
    """Answers requests about control nodes. Thread-safe."""

    def __init__(self, control: ControlDirectory, owner: Owner) -> None:
        self._control, self._owner = control, owner
        self._answers: dict[int, Callable[[Request], Sequence[Part]]] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.READ: self._read,
            Opcode.READDIR: lambda request: self._list(request, b""),
            Opcode.READDIRPLUS: lambda request: self._list(request, _NO_ATTRIBUTES),
        }

    def answers(self, opcode: int) -> bool:
        """Whether `answer` knows this kind of request."""
        return opcode in self._answers

    def answer(self, request: Request) -> Sequence[Part] | int:
        """May block. Never raises."""
        try:
            return self._answers[request.opcode](request)
        except Exception as error:
            kind = NAMES[Opcode(request.opcode)]
            return logged_errno(kind, f"control node {request.node}", error)

    def forget(self, request: Request) -> None:
        """FORGET and BATCH_FORGET of any nodes; only those of the control directory matter."""
        if request.opcode == Opcode.FORGET:
            self._control.forget(request.node, *FORGET_IN.unpack_from(request.body))
            return
        pairs = np.frombuffer(request.body[BATCH_FORGET_IN.size :], np.uint64).reshape(-1, 2)
        for node, lookups in pairs[pairs[:, 0] < DATASET_NODES].tolist():
            self._control.forget(node, lookups)

    def _lookup(self, request: Request) -> Sequence[Part]:
        name = bytes(request.body[:-1])
        return [self._control.lookup(request.node, name).entry(self._owner)]

    def _getattr(self, request: Request) -> Sequence[Part]:
        return [self._control.attributes(request.node).reply(self._owner)]

    def _read(self, request: Request) -> Sequence[Part]:
        _, start, size, *_ = READ_IN.unpack_from(request.body)
        return [self._control.read(request.node, start, size)]

    def _list(self, request: Request, head: bytes) -> Sequence[Part]:
        _, start, size, *_ = READ_IN.unpack_from(request.body)
        listing = b""
        for entry in self._entries(request.node, start):
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
