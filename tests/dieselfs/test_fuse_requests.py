"""The boundary of requests: everything becomes a reply."""

import errno
import logging

import pyfuse3
import pytest

from chunkstore.errors import Corrupt, Denied, NotFound, Unavailable
from dieselfs.fuse.control_operations import request
from dieselfs.fuse.errnos import RequestRefused
from metadata.errors import MetadataError, PathConflict, PathNotFound, SnapshotRefused


class Handlers:
    @request
    async def read(self, inode: int, error: Exception | None = None) -> int:
        if error is not None:
            raise error
        return inode


async def test_replies_pass() -> None:
    assert await Handlers().read(7) == 7
    assert await Handlers().read(inode=8) == 8


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
    assert raised.value.errno == number
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
    assert raised.value.errno == errno.ESTALE
    assert caplog.records == []
