"""Requests of a killed server: sent again, or EIO where the kernel cannot do that."""

from __future__ import annotations

import errno
import os

from dieselfs.fuse.requests.in_flight import SLOTS, InFlight
from dieselfs.fuse.requests.kernel_connection import KernelConnection
from dieselfs.fuse.requests.kernel_protocol import OUT_HEADER, Notification


def test_what_is_not_answered_is_left_to_the_next_server() -> None:
    first = InFlight.new()
    for unique in (2, 4, 6):
        first.begin(unique)
    first.end(4)
    following = InFlight(first.fd)
    assert sorted(following.left()) == [2, 6]
    assert following.left() == []
    os.close(first.fd)


def test_more_requests_than_slots_are_served_all_the_same() -> None:
    table = InFlight.new()
    for unique in range(1, SLOTS + 10):
        table.begin(unique)
    for unique in range(1, SLOTS + 10):
        table.end(unique)
    assert table.left() == []
    os.close(table.fd)


def test_a_kernel_that_cannot_resend_gets_eio(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Before Linux 6.9 an unknown notification is EINVAL."""

    def refused(fd: int, data: bytes) -> int:
        assert OUT_HEADER.unpack_from(data)[1] == Notification.RESEND
        raise OSError(errno.EINVAL, "Invalid argument")

    written: list[bytes] = []
    monkeypatch.setattr(os, "write", refused)
    monkeypatch.setattr(os, "writev", lambda fd, parts: written.append(b"".join(parts)))
    table = InFlight.new()
    table.begin(77)
    connection = KernelConnection(-1, is_tree=False, in_flight=InFlight(table.fd))
    connection.take_over()
    assert [OUT_HEADER.unpack(reply) for reply in written] == [(16, -errno.EIO, 77)]
    os.close(table.fd)
