"""The kernel's side of /dev/fuse for tests: requests as it sends them, answers as it reads them."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

from dieselfs.fuse.requests.kernel_connection import Handler, KernelRequest, Part, Pending
from dieselfs.fuse.requests.kernel_protocol import Init, Opcode

_READ_IN = struct.Struct("=QQIIQII")


@dataclass(frozen=True)
class Attributes:
    """`struct fuse_attr`."""

    node: int
    size: int
    blocks: int
    mtime_ns: int
    mode: int
    links: int
    uid: int
    gid: int
    block_size: int


@dataclass(frozen=True)
class Entry:
    """One name of a listing; `node` and `attributes` are of READDIRPLUS alone."""

    name: bytes
    number: int
    following: int
    type: int
    node: int | None = None
    attributes: Attributes | None = None


@dataclass
class FakeConnection:
    """As much of a connection as its handlers need."""

    agreed: Init | None = None
    replies: "SimpleQueue[tuple[int, Sequence[Part] | int]]" = field(default_factory=SimpleQueue)

    def reply(self, unique: int, answer: Sequence[Part] | int) -> bool:
        self.replies.put((unique, answer))
        return True

    def ask(self, server: Handler, request: KernelRequest) -> bytes | int:
        """The server's answer, also if it comes later."""
        answer = server.answer(request)
        if isinstance(answer, Pending):
            assert answer.work is not None
            answer.work()
            unique, answer = self.replies.get(timeout=60)
            assert unique == request.unique
        return answer if isinstance(answer, int) else joined(answer)


def request(opcode: Opcode, node: int, body: bytes = b"", unique: int = 7) -> KernelRequest:
    return KernelRequest(opcode, unique, node, 1, memoryview(body))


def read_request(opcode: Opcode, node: int, start: int, size: int) -> KernelRequest:
    return request(opcode, node, _READ_IN.pack(0, start, size, 0, 0, 0, 0))


def lookup_request(parent: int, name: bytes) -> KernelRequest:
    return request(Opcode.LOOKUP, parent, name + b"\0")


def joined(answer: object) -> bytes:
    assert isinstance(answer, Sequence)
    parts: Sequence[Part] = answer
    return b"".join(parts)


def decoded_attributes(data: bytes) -> Attributes:
    node, size, blocks, atime, mtime, ctime = struct.unpack_from("=6Q", data)
    times = struct.unpack_from("=3I", data, 48)
    mode, links, uid, gid, rdev, block_size, flags = struct.unpack_from("=7I", data, 60)
    assert (atime, ctime, rdev, flags) == (mtime, mtime, 0, 0)
    assert times == (times[0],) * 3
    seconds = mtime - (1 << 64) if mtime >> 63 else mtime
    mtime_ns = seconds * 1_000_000_000 + times[0]
    return Attributes(node, size, blocks, mtime_ns, mode, links, uid, gid, block_size)


def decoded_entry_out(data: bytes) -> tuple[int, int, int, Attributes]:
    """Node, how long the name and the attributes are valid, and the attributes."""
    node, generation, name_s, attributes_s, name_ns, attributes_ns = struct.unpack_from(
        "=4Q2I", data
    )
    assert (generation, name_ns, attributes_ns) == (0, 0, 0)
    return node, name_s, attributes_s, decoded_attributes(data[40:128])


def decoded_listing(data: bytes, *, plus: bool) -> Iterator[Entry]:
    at = 0
    while at < len(data):
        node = attributes = None
        if plus:
            node, _, _, attributes = decoded_entry_out(data[at : at + 128])
            at += 128
        number, following, length, kind = struct.unpack_from("=QQII", data, at)
        name = data[at + 24 : at + 24 + length]
        padding = -length % 8
        assert data[at + 24 + length : at + 24 + length + padding] == bytes(padding)
        at += 24 + length + padding
        yield Entry(name, number, following, kind, node, attributes)
