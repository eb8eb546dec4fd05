"""Requests of the control directory's own mount, and what the kernel does not send to a real
one."""

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.control.control_server import ControlServer
from dieselfs.fuse.requests.attributes import Owner
from dieselfs.fuse.requests.kernel_connection import KernelConnection
from dieselfs.fuse.requests.kernel_protocol import (
    CHANGES,
    FOREVER_S,
    IN_HEADER,
    ROOT_NODE,
    Opcode,
    answer_init,
)
from dieselfs.fuse.requests.nodes import SHUFFLE_NODE
from dieselfs.fuse.requests.pending_reads import PendingReads
from dieselfs.shuffle.shuffle_lists import ShuffleLists
from tests.dieselfs.fuse.kernel_messages import (
    FakeConnection,
    decoded_attributes,
    decoded_entry_out,
    decoded_listing,
    lookup_request,
    read_request,
    request,
)


@dataclass
class Fixture:
    server: ControlServer
    connection: FakeConnection

    def ask(self, *arguments: Any) -> bytes | int:
        return self.connection.ask(self.server, *arguments)

    def bytes_of(self, *arguments: Any) -> bytes:
        answer = self.ask(*arguments)
        assert isinstance(answer, bytes)
        return answer


@pytest.fixture
def served() -> Iterator[Fixture]:
    no_snapshot: Any = None
    control = ControlDirectory({b"stats.json": lambda: b"12"}, ShuffleLists(), no_snapshot)
    connection: Any = FakeConnection()
    threads = PendingReads(1)
    server = ControlServer(connection, control, Owner(1, 2), threads, connection.reply)
    yield Fixture(server, connection)
    threads.close()


def test_the_root_of_the_mount_is_the_control_directory(served: Fixture) -> None:
    reply = served.bytes_of(request(Opcode.GETATTR, ROOT_NODE, bytes(16)))
    root = decoded_attributes(reply[16:])
    assert (root.node, root.links, root.uid, root.gid) == (1, 5, 1, 2)
    assert struct.unpack_from("=Q", reply) == (FOREVER_S,)
    listing = served.bytes_of(read_request(Opcode.READDIRPLUS, ROOT_NODE, 0, 4096))
    names = [entry.name for entry in decoded_listing(listing, plus=True)]
    assert names == [b"stats.json", b"shuffle", b"plan", b"why"]
    folder, *_ = decoded_entry_out(served.bytes_of(lookup_request(ROOT_NODE, b"shuffle")))
    assert folder == SHUFFLE_NODE
    assert served.ask(read_request(Opcode.READ, ROOT_NODE, 0, 10)) == errno.EISDIR


def test_documents_are_looked_up_read_and_forgotten(served: Fixture) -> None:
    reply = served.bytes_of(lookup_request(ROOT_NODE, b"stats.json"))
    node, name_s, attributes_s, found = decoded_entry_out(reply)
    assert (found.size, name_s, attributes_s) == (2, 0, 0)
    assert served.ask(read_request(Opcode.READ, node, 0, 100)) == b"12"
    forgotten = [(ROOT_NODE, 5), (node, 1)]
    body = struct.pack("=II", 2, 0) + b"".join(struct.pack("=QQ", *pair) for pair in forgotten)
    assert served.ask(request(Opcode.BATCH_FORGET, 0, body)) == b""
    assert served.ask(read_request(Opcode.READ, node, 0, 100)) == errno.ESTALE
    assert served.ask(request(Opcode.GETATTR, node, bytes(16))) == errno.ESTALE
    assert served.ask(request(Opcode.FORGET, ROOT_NODE, struct.pack("=Q", 1))) == b""
    assert served.bytes_of(request(Opcode.GETATTR, ROOT_NODE, bytes(16)))


def test_a_forget_that_fails_is_logged_and_not_answered(
    served: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel wants no answer to it, so nothing could carry an errno."""
    sent: list[object] = []
    monkeypatch.setattr(os, "writev", lambda fd, parts: sent.append(parts))
    message = IN_HEADER.pack(IN_HEADER.size, Opcode.FORGET, 3, 5, 0, 0, 1, 0, 0)  # no number
    connection = KernelConnection(-1, is_tree=True)
    connection._handler = served.server
    connection._take(memoryview(message))
    assert "forget of node 5 failed unexpectedly" in caplog.text
    assert sent == []
    connection.stop()


def test_the_kernel_answers_for_us_what_we_do_not_need(served: Fixture) -> None:
    for number in (Opcode.FLUSH, 20, 30, 37, 40, 46, 52, 999):
        assert served.server.answer(request(number, ROOT_NODE)) == errno.ENOSYS
    everything = struct.pack("=4I", 7, 45, 0, 0xFFFFFFFF)
    served.connection.agreed, _ = answer_init(memoryview(everything), is_tree=True)
    for opcode in (Opcode.OPEN, Opcode.OPENDIR):
        assert served.ask(request(opcode, ROOT_NODE, bytes(8))) == errno.ENOSYS


def test_a_kernel_that_opens_keeps_the_pages(served: Fixture) -> None:
    nothing = struct.pack("=4I", 7, 31, 0, 0)
    served.connection.agreed, _ = answer_init(memoryview(nothing), is_tree=True)
    pairs = {Opcode.OPEN: Opcode.RELEASE, Opcode.OPENDIR: Opcode.RELEASEDIR}
    for opcode, released in pairs.items():
        _, flags, _ = struct.unpack("=QII", served.bytes_of(request(opcode, 9, bytes(8))))
        assert flags & 2
        assert served.ask(request(released, 9, bytes(24))) == b""
    for writing in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC, os.O_APPEND):
        assert served.ask(request(Opcode.OPEN, 9, struct.pack("=II", writing, 0))) == errno.EROFS


def test_every_change_is_refused(served: Fixture) -> None:
    for opcode in CHANGES:
        assert served.ask(request(opcode, ROOT_NODE, bytes(40))) == errno.EROFS
    may_write, may_read = struct.pack("=II", os.W_OK, 0), struct.pack("=II", os.R_OK, 0)
    assert served.ask(request(Opcode.ACCESS, ROOT_NODE, may_write)) == errno.EROFS
    assert served.ask(request(Opcode.ACCESS, ROOT_NODE, may_read)) == b""


def test_no_file_has_extended_attributes(served: Fixture) -> None:
    size = struct.pack("=II", 100, 0)
    assert served.ask(request(Opcode.LISTXATTR, ROOT_NODE, size)) == b""
    for name, number in (
        (b"user.other", errno.ENODATA),
        (b"security.selinux", errno.ENOTSUP),
        (b"system.posix_acl_access", errno.ENOTSUP),
    ):
        assert served.ask(request(Opcode.GETXATTR, ROOT_NODE, size + name + b"\0")) == number


def test_the_rest(served: Fixture) -> None:
    assert served.ask(request(Opcode.IOCTL, ROOT_NODE, bytes(32))) == errno.ENOTTY
    assert served.ask(request(Opcode.INTERRUPT, 0, bytes(8))) == b""
    statfs = struct.unpack_from("=5Q3I", served.bytes_of(request(Opcode.STATFS, ROOT_NODE)))
    assert statfs == (0, 0, 0, 0, 0, 4096, 255, 4096)
