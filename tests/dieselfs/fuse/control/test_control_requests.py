"""The boundary of requests: everything becomes a reply, at once or later."""

import errno
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from chunkstore.errors import Corrupt, Denied, NotFound, Unavailable
from dieselfs.fuse.control.control_requests import ControlRequests
from dieselfs.fuse.requests.attributes import Owner
from dieselfs.fuse.requests.errnos import RequestRefused
from dieselfs.fuse.requests.kernel_connection import Pending
from dieselfs.fuse.requests.kernel_protocol import Opcode
from dieselfs.fuse.requests.nodes import CONTROL_NODE
from dieselfs.fuse.requests.pending_reads import PendingReads
from metadata.errors import MetadataError, PathConflict, PathNotFound, SnapshotRefused
from tests.dieselfs.fuse.kernel_messages import FakeConnection, read_request, request


class Control:
    """A control directory whose files fail, or wait."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.payer_of = None

    def read(self, node: int, start: int, size: int) -> memoryview:
        if self.error is not None:
            raise self.error
        return memoryview(b"%d" % node)

    def names(self, node: int) -> list[bytes]:
        return []


@pytest.fixture
def control() -> Control:
    return Control()


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def requests(control: Any, connection: FakeConnection) -> Iterator[ControlRequests]:
    pending = PendingReads(1)
    yield ControlRequests(control, Owner(1, 2), pending, connection.reply)
    pending.close()


READ = read_request(Opcode.READ, 42, 0, 100)


def test_replies_pass(requests: ControlRequests, connection: FakeConnection) -> None:
    assert connection.ask(requests, READ) == b"42"


def test_a_request_that_blocks_is_answered_later_and_keeps_its_body(
    requests: ControlRequests, control: Control, connection: FakeConnection
) -> None:
    body = bytearray(READ.body)
    answer = requests.answer(READ._replace(body=memoryview(body)))
    body[:] = bytes(len(body))  # the next request of the kernel
    assert connection.ask(requests, request(Opcode.READDIR, CONTROL_NODE, bytes(40))) == b""
    assert connection.replies.empty()
    assert isinstance(answer, Pending)
    assert answer.work is not None
    answer.work()
    assert connection.replies.get(timeout=60) == (READ.unique, [b"42"])


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (Corrupt("x"), errno.EIO),
        (Unavailable("x"), errno.EIO),
        (NotFound("x"), errno.EIO),
        (Denied("x"), errno.EIO),
        (PathNotFound("x"), errno.ENOENT),
        (PathConflict("x"), errno.ENOTDIR),
        (SnapshotRefused("x"), errno.EIO),
        (MetadataError("x"), errno.EIO),
    ],
)
def test_expected_errors_become_their_errno_and_one_line(
    requests: ControlRequests,
    control: Control,
    connection: FakeConnection,
    error: Exception,
    number: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    control.error = error
    assert connection.ask(requests, READ) == number
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is None
    said = f"read of control node 42: {errno.errorcode[number]}: {type(error).__name__}: x"
    assert said in record.message


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), KeyError(1), OSError(5, "x")])
def test_a_bug_is_eio_with_a_traceback(
    requests: ControlRequests,
    control: Control,
    connection: FakeConnection,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    control.error = error
    assert connection.ask(requests, READ) == errno.EIO
    [record] = caplog.records
    assert record.exc_info is not None


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
def test_a_refusal_becomes_its_errno_and_is_not_logged(
    requests: ControlRequests,
    control: Control,
    connection: FakeConnection,
    number: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    control.error = RequestRefused(number)
    assert connection.ask(requests, READ) == number
    assert caplog.records == []
