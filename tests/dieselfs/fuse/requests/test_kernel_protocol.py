"""Messages of /dev/fuse have the layout of the kernel's `fuse.h`."""

import struct

import pytest

from dieselfs.fuse.requests import kernel_protocol
from dieselfs.fuse.requests.attributes import NodeAttributes, Owner
from dieselfs.fuse.requests.kernel_protocol import (
    CHANGES,
    FOREVER_S,
    MAX_READ_BYTES,
    NAMES,
    NO_ENTRY,
    NO_REPLY,
    Opcode,
    answer_init,
)
from tests.dieselfs.fuse.kernel_messages import decoded_attributes, decoded_entry_out

SIZES = {
    "IN_HEADER": 40,
    "OUT_HEADER": 16,
    "READ_IN": 40,
    "OPEN_IN": 8,
    "OPEN_OUT": 16,
    "RELEASE_IN": 24,
    "ATTRIBUTES": 88,
    "FORGET_IN": 8,
    "BATCH_FORGET_IN": 8,
    "ACCESS_IN": 8,
    "GETXATTR_IN": 8,
    "GETXATTR_OUT": 8,
    "DIRECTORY_ENTRY": 24,
}
OFFERED = 0xFFFFFFFF | (0xFFFFFFFF << 32)
INIT_EXT, RESEND, NO_OPEN, NO_OPENDIR, PLUS, PLUS_AUTO = 30, 39, 17, 24, 13, 14


@pytest.mark.parametrize("name", SIZES)
def test_structures_have_the_kernels_sizes(name: str) -> None:
    assert getattr(kernel_protocol, name).size == SIZES[name]


def init(minor: int, flags: int, *, is_tree: bool) -> tuple[kernel_protocol.Init, list[int]]:
    body = struct.pack("=5I", 7, minor, 128 << 10, flags & 0xFFFFFFFF, flags >> 32) + bytes(44)
    agreed, reply = answer_init(memoryview(body), is_tree=is_tree)
    assert len(reply) == 64
    fields = struct.unpack_from("=4I2H2I2H2I", reply)
    return agreed, [fields[0], fields[1], fields[3] | fields[10] << 32, fields[6], fields[8]]


def has(flags: int, bit: int) -> bool:
    return bool(flags >> bit & 1)


@pytest.mark.parametrize("is_tree", [True, False])
def test_a_new_kernel_is_asked_for_what_a_mount_needs(is_tree: bool) -> None:
    agreed, (major, minor, flags, max_write, max_pages) = init(46, OFFERED, is_tree=is_tree)
    assert (major, minor, max_write, max_pages) == (7, 45, 4096, MAX_READ_BYTES // 4096)
    assert flags == agreed.flags
    assert has(flags, RESEND)
    assert agreed.open_may_be_refused == is_tree == has(flags, NO_OPEN) == has(flags, NO_OPENDIR)
    assert (has(flags, PLUS), has(flags, PLUS_AUTO)) == (is_tree, False)


def test_an_old_kernel_is_not_asked_for_more_than_it_offers() -> None:
    agreed, (_, minor, flags, _, _) = init(31, 0xFFFFFFFF & ~(1 << INIT_EXT), is_tree=True)
    assert minor == 31
    assert flags >> 32 == 0
    assert agreed.open_may_be_refused
    agreed, (_, _, flags, _, _) = init(31, 0, is_tree=True)
    assert flags == 0
    assert not agreed.open_may_be_refused


@pytest.mark.parametrize("mtime_ns", [0, 1, -1, 1_600_000_000_123_456_789, -(1 << 62)])
def test_entries_carry_attributes(mtime_ns: int) -> None:
    file = NodeAttributes(1 << 40 | 5, 0o100640, 4097, mtime_ns, links=3, valid_s=9)
    node, name_s, attributes_s, found = decoded_entry_out(file.entry(Owner(1, 2)))
    assert (node, name_s, attributes_s) == (file.node, 9, 9)
    assert (found.node, found.mode, found.size, found.blocks) == (file.node, 0o100640, 4097, 9)
    assert (found.mtime_ns, found.links, found.uid, found.gid) == (mtime_ns, 3, 1, 2)
    reply = file.reply(Owner(1, 2))
    assert struct.unpack_from("=QII", reply) == (9, 0, 0)
    assert decoded_attributes(reply[16:]) == found


def test_an_absent_name_is_known_for_good() -> None:
    assert decoded_entry_out(NO_ENTRY)[:3] == (0, FOREVER_S, FOREVER_S)


def test_statfs_is_a_full_file_system() -> None:
    reply = kernel_protocol.statfs_reply(10, 20, 255)
    assert len(reply) == 80
    assert struct.unpack_from("=5Q3I", reply) == (10, 0, 0, 20, 0, 4096, 255, 4096)


def test_notifications_name_their_kind() -> None:
    store = kernel_protocol.store_notification(7, 4096, 100)
    assert struct.unpack("=IiQQQII", store) == (40 + 100, 4, 0, 7, 4096, 100, 0)
    assert struct.unpack("=IiQ", kernel_protocol.resend_notification()) == (16, 7, 0)


def test_every_request_that_is_answered_has_a_name() -> None:
    unnamed = CHANGES | {Opcode.INIT, Opcode.DESTROY}
    assert set(NAMES) | unnamed == set(Opcode)
    assert set(NAMES) >= NO_REPLY
