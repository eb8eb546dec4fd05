"""The boundary of requests: everything becomes a reply, and is counted."""

import errno
import logging

import pyfuse3
import pytest

from chunkstore.errors import Corrupt, Denied, NotFound, Unavailable
from dieselfs.fuse.errnos import RequestRefused, errno_of
from dieselfs.fuse.requests import request
from metadata.errors import MetadataError, PathConflict, PathNotFound, SnapshotRefused


class Handlers:
    def __init__(self) -> None:
        self.request_counts: dict[str, int] = {}

    @request
    async def read(self, inode: int, error: Exception | None = None) -> int:
        if error is not None:
            raise error
        return inode


async def test_replies_pass_and_are_counted() -> None:
    handlers = Handlers()
    assert await handlers.read(7) == 7
    assert await handlers.read(inode=8) == 8
    assert handlers.request_counts == {"read": 2}


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
async def test_expected_errors_become_their_errno_and_one_line(
    error: Exception, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await Handlers().read(42, error)
    assert raised.value.errno == number == errno_of(error)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is None
    assert f"read of 42: {errno.errorcode[number]}: {type(error).__name__}: x" in record.message


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), KeyError(1), OSError(5, "x")])
async def test_a_bug_is_eio_with_a_traceback(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await Handlers().read(42, error)
    assert raised.value.errno == errno.EIO
    [record] = caplog.records
    assert record.exc_info is not None


async def test_a_reply_that_is_an_errno_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await Handlers().read(42, pyfuse3.FUSEError(errno.ENOENT))
    assert raised.value.errno == errno.ENOENT
    assert caplog.records == []


async def test_a_refusal_becomes_its_errno_and_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await Handlers().read(42, RequestRefused(errno.ESTALE))
    assert raised.value.errno == errno.ESTALE == errno_of(RequestRefused(errno.ESTALE))
    assert caplog.records == []
