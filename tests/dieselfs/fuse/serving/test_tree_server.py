"""The server of the `fuse` front by request, without a kernel."""

import errno
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from chunkstore.chunk_source import FileExtent
from chunkstore.errors import Unavailable
from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.requests.attributes import Owner
from dieselfs.fuse.requests.file_reader import FileReader
from dieselfs.fuse.requests.kernel_connection import KernelRequest
from dieselfs.fuse.requests.kernel_protocol import (
    CHANGES,
    FOREVER_S,
    ROOT_NODE,
    Opcode,
    answer_init,
)
from dieselfs.fuse.requests.nodes import CONTROL_NODE, DATASET_NODES, SHUFFLE_NODE, node_of
from dieselfs.fuse.requests.pending_reads import PendingReads
from dieselfs.fuse.serving.tree_server import TreeServer
from dieselfs.shuffle.shuffle_lists import ShuffleLists
from metadata.snapshot import ROOT, Snapshot
from tests.dieselfs.fuse.kernel_messages import (
    FakeConnection,
    decoded_attributes,
    decoded_entry_out,
    decoded_listing,
    lookup_request,
    read_request,
    request,
)
from tests.metadata.snapshot_trees import PETS, File, Tree, build

OWNER = Owner(12, 34)
NO_NAMES = struct.pack("=II", 0, 0)


class Source:
    """Chunks whose byte at each offset says where it lies."""

    cached = True
    error: Exception | None = None

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        return self.read(file, start, length) if self.cached else None

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        if self.error is not None:
            raise self.error
        first = file.offset + start
        return memoryview(bytes(at % 251 for at in range(first, first + length)))

    def read_aside(self, file: FileExtent, start: int, length: int) -> memoryview:
        return self.read(file, start, length)


@dataclass
class Fixture:
    server: TreeServer
    connection: FakeConnection
    source: Source
    snapshot: Snapshot
    reader: FileReader
    reads: list[int]

    def ask(self, request: KernelRequest) -> bytes | int:
        return self.connection.ask(self.server, request)

    def bytes_of(self, request: KernelRequest) -> bytes:
        answer = self.ask(request)
        assert isinstance(answer, bytes)
        return answer

    def node(self, path: bytes) -> int:
        inode = self.snapshot.resolve(path)
        assert inode is not None
        return node_of(inode)


@pytest.fixture
def make(tmp_path: Any) -> Iterator[Callable[[Tree], Fixture]]:
    opened: list[Any] = []

    def make(tree: Tree) -> Fixture:
        snapshot = Snapshot.open(build(tree, tmp_path))
        pools = PendingReads(2), PendingReads(2)
        connection, source, reads = FakeConnection(), Source(), list[int]()
        documents = {b"stats.json": lambda: b"document"}
        control = ControlDirectory(documents, ShuffleLists(), snapshot)
        reader = FileReader(source, pools[0])  # type: ignore[arg-type]
        server = TreeServer(
            *(connection, snapshot, OWNER, reader, control, pools[1]),  # type: ignore[arg-type]
            note_read=reads.append,
        )
        opened.extend([*pools, snapshot])
        return Fixture(server, connection, source, snapshot, reader, reads)

    yield make
    for closable in opened:
        closable.close()


@pytest.fixture
def pets(make: Callable[[Tree], Fixture]) -> Fixture:
    return make(PETS)


def test_names_are_found_for_good(pets: Fixture) -> None:
    reply = pets.bytes_of(lookup_request(ROOT_NODE, b"cat"))
    node, name_s, attributes_s, found = decoded_entry_out(reply)
    assert (node, name_s, attributes_s) == (pets.node(b"cat"), FOREVER_S, FOREVER_S)
    assert (found.mode, found.size, found.links, found.uid) == (0o40750, 4096, 3, 12)
    reply = pets.bytes_of(lookup_request(node, b"2.jpg"))
    file, _, _, found = decoded_entry_out(reply)
    assert file == pets.node(b"cat/2.jpg") >= DATASET_NODES
    assert (found.size, found.mtime_ns, found.links) == (5_000_000_000, 3, 1)
    assert decoded_attributes(pets.bytes_of(request(Opcode.GETATTR, file))[16:]) == found
    root = decoded_attributes(pets.bytes_of(request(Opcode.GETATTR, ROOT_NODE, bytes(16)))[16:])
    assert (root.node, root.links) == (1, 2 + 4)


def test_absent_names_are_absent_for_good(pets: Fixture) -> None:
    for name in (b"absent", b"x" * 255, b"\xff"):
        reply = pets.bytes_of(lookup_request(ROOT_NODE, name))
        assert decoded_entry_out(reply)[:2] == (0, FOREVER_S)
    assert pets.ask(lookup_request(ROOT_NODE, b"x" * 256)) == errno.ENAMETOOLONG


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    ("start", "size", "wanted"),
    [(0, 4096, range(64, 64 + 4096)), (4_999_999_999, 4096, range(5_000_000_063, 5_000_000_064))],
)
def test_a_read_has_all_bytes_that_exist(
    pets: Fixture, cached: bool, start: int, size: int, wanted: range
) -> None:
    pets.source.cached = cached
    file = pets.node(b"cat/2.jpg")
    reply = pets.bytes_of(read_request(Opcode.READ, file, start, size))
    assert reply == bytes(at % 251 for at in wanted)
    assert pets.bytes_of(read_request(Opcode.READ, file, 5_000_000_000, size)) == b""
    assert pets.bytes_of(read_request(Opcode.READ, file, 1 << 60, size)) == b""
    found = pets.reader.statistics()
    assert (found.bytes_read, found.thread_reads, found.past_end) == (len(reply), not cached, 2)
    assert pets.reads == [file - DATASET_NODES] * 3


def test_a_read_that_fails_is_eio(pets: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    pets.source.error = Unavailable("out")
    for pets.source.cached in (True, False):
        file = pets.node(b"README")
        assert pets.ask(read_request(Opcode.READ, file, 0, 10)) == errno.EIO
    assert pets.ask(read_request(Opcode.READ, node_of(ROOT), 0, 10)) == errno.EISDIR
    assert pets.reader.statistics().refused == 1


@pytest.mark.parametrize(("opcode", "plus"), [(Opcode.READDIR, False), (Opcode.READDIRPLUS, True)])
def test_listings(make: Callable[[Tree], Fixture], opcode: Opcode, plus: bool) -> None:
    hidden = {b".dieselfs/own": File(9, 0), b".dieselfs2": File(9, 1)}
    tree = make(Tree({**PETS.files, **hidden}, PETS.empty_directories))
    listing = tree.bytes_of(read_request(opcode, ROOT_NODE, 0, 1 << 17))
    names = [entry.name for entry in decoded_listing(listing, plus=plus)]
    assert names == [b"cat", b"cat.d", b"dog", b"empty", b".dieselfs2", b"README"]
    assert tree.ask(read_request(opcode, ROOT_NODE, 7, 1 << 17)) == b""
    document = tree.bytes_of(read_request(opcode, CONTROL_NODE, 0, 1 << 17))
    entries = list(decoded_listing(document, plus=plus))
    assert [(entry.name, entry.type) for entry in entries] == [
        *((b"stats.json", 8), (b"shuffle", 4), (b"plan", 4), (b"why", 4))
    ]
    assert all(entry.number and not entry.node for entry in entries)
    rest = tree.bytes_of(
        read_request(opcode, CONTROL_NODE, entries[0].following, 184 if plus else 40)
    )
    assert [entry.name for entry in decoded_listing(rest, plus=plus)] == [b"shuffle"]


@pytest.mark.parametrize("opcode", [Opcode.OPEN, Opcode.OPENDIR])
def test_open_is_refused_where_the_kernel_then_skips_it(pets: Fixture, opcode: Opcode) -> None:
    body = struct.pack("=II", os.O_RDONLY, 0)
    assert pets.ask(request(opcode, pets.node(b"cat"), body)) == errno.ENOSYS, "taken over"
    everything = struct.pack("=4I", 7, 45, 0, 0xFFFFFFFF)
    pets.connection.agreed, _ = answer_init(memoryview(everything), is_tree=True)
    for node in (pets.node(b"cat"), CONTROL_NODE):
        assert pets.ask(request(opcode, node, body)) == errno.ENOSYS
    nothing = struct.pack("=4I", 7, 31, 0, 0)
    pets.connection.agreed, _ = answer_init(memoryview(nothing), is_tree=True)
    reply = pets.bytes_of(request(opcode, pets.node(b"cat"), body))
    handle, flags, _ = struct.unpack("=QII", reply)
    assert handle == pets.node(b"cat")
    assert flags & 2, "keep the pages"
    if opcode == Opcode.OPEN:
        for writing in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC, os.O_APPEND):
            body = struct.pack("=II", writing, 0)
            assert pets.ask(request(opcode, pets.node(b"README"), body)) == errno.EROFS


def get_attribute(node: int, name: bytes, size: int = 100) -> KernelRequest:
    return request(Opcode.GETXATTR, node, struct.pack("=II", size, 0) + name + b"\0")


def test_extended_attributes(pets: Fixture) -> None:
    file, chunk = (
        pets.node(b"README"),
        str(pets.snapshot.extent(pets.node(b"README") - DATASET_NODES).chunk.id),
    )
    assert pets.ask(get_attribute(file, b"user.dieselfs.xxh3")) == b"0000000000001111"
    assert pets.ask(get_attribute(file, b"user.dieselfs.chunk")) == chunk.encode()
    assert pets.ask(get_attribute(file, b"user.dieselfs.xxh3", 0)) == struct.pack("=II", 16, 0)
    assert pets.ask(get_attribute(file, b"user.dieselfs.xxh3", 15)) == errno.ERANGE
    names = b"user.dieselfs.chunk\0user.dieselfs.xxh3\0"
    assert pets.ask(request(Opcode.LISTXATTR, file, struct.pack("=II", 99, 0))) == names
    for node in (file, ROOT_NODE, CONTROL_NODE, SHUFFLE_NODE):
        assert pets.ask(get_attribute(node, b"user.other")) == errno.ENODATA
        assert pets.ask(get_attribute(node, b"security.selinux")) == errno.ENOTSUP
        assert pets.ask(get_attribute(node, b"system.posix_acl_access")) == errno.ENOTSUP
        if node != file:
            assert pets.ask(request(Opcode.LISTXATTR, node, struct.pack("=II", 99, 0))) == b""


@pytest.mark.parametrize("node", [ROOT_NODE, CONTROL_NODE, DATASET_NODES])
def test_changes_and_what_the_kernel_does_itself(pets: Fixture, node: int) -> None:
    for opcode in CHANGES:
        assert pets.ask(request(opcode, node, bytes(40))) == errno.EROFS
    for number in (Opcode.FLUSH, 20, 30, 37, 40, 46, 52, 999):
        assert (
            pets.server.answer(KernelRequest(number, 1, node, 1, memoryview(b""))) == errno.ENOSYS
        )
    assert pets.ask(request(Opcode.IOCTL, node, bytes(32))) == errno.ENOTTY
    assert pets.ask(request(Opcode.ACCESS, node, struct.pack("=II", os.W_OK, 0))) == errno.EROFS
    assert pets.ask(request(Opcode.ACCESS, node, struct.pack("=II", os.R_OK, 0))) == b""
    blocks, _, _, files, *_ = struct.unpack_from("=5Q", pets.bytes_of(request(Opcode.STATFS, node)))
    assert (blocks, files) == (-(-pets.snapshot.total_bytes // 4096), 6 + 7)


def test_the_control_directory_is_looked_up_read_and_forgotten(pets: Fixture) -> None:
    node, *_ = decoded_entry_out(pets.bytes_of(lookup_request(ROOT_NODE, b".dieselfs")))
    assert node == CONTROL_NODE
    documents = []
    for _ in range(3):
        reply = pets.bytes_of(lookup_request(CONTROL_NODE, b"stats.json"))
        document, name_s, attributes_s, found = decoded_entry_out(reply)
        assert (name_s, attributes_s, found.size) == (0, 0, 8)
        documents.append(document)
        assert CONTROL_NODE < document < DATASET_NODES
    assert len(set(documents)) == 3
    read = read_request(Opcode.READ, documents[0], 2, 3)
    assert pets.ask(read) == b"cum"
    pets.server.answer(request(Opcode.FORGET, documents[0], struct.pack("=Q", 1)))
    assert pets.ask(read) == errno.ESTALE
    forgotten = [(documents[1], 1), (DATASET_NODES + 3, 5), (ROOT_NODE, 1), (CONTROL_NODE, 9)]
    body = struct.pack("=II", 4, 0) + b"".join(struct.pack("=QQ", *pair) for pair in forgotten)
    pets.server.answer(request(Opcode.BATCH_FORGET, 0, body))
    assert pets.ask(request(Opcode.GETATTR, documents[1])) == errno.ESTALE
    assert pets.bytes_of(request(Opcode.GETATTR, documents[2]))
    assert pets.ask(lookup_request(CONTROL_NODE, b"absent")) == errno.ENOENT


def test_a_bug_is_eio_with_a_traceback(pets: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    assert pets.ask(request(Opcode.GETATTR, DATASET_NODES + 99)) == errno.EIO
    assert pets.ask(read_request(Opcode.READDIR, pets.node(b"README"), 0, 4096)) == errno.EIO
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
