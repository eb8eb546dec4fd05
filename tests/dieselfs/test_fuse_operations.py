"""Requests that the kernel's own `ro` keeps from a real mount: refused all the same."""

import errno
import os

import pyfuse3
import pytest

from dieselfs.fuse.operations import MountOperations

CHANGES = [
    *("setattr", "mknod", "mkdir", "unlink", "rmdir", "symlink", "rename", "link", "create"),
    *("write", "setxattr", "removexattr"),
]


@pytest.fixture
def operations() -> MountOperations:
    return MountOperations(None, None, None, {})  # type: ignore[arg-type]  # none of them is asked


@pytest.mark.parametrize("kind", CHANGES)
async def test_every_change_is_refused(operations: MountOperations, kind: str) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await getattr(operations, kind)(1, b"name", 0, None)
    assert raised.value.errno == errno.EROFS
    assert operations.request_counts == {kind: 1}


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_APPEND])
async def test_opening_to_write_is_refused(operations: MountOperations, flags: int) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await operations.open(1 << 40, flags, None)  # type: ignore[arg-type]
    assert raised.value.errno == errno.EROFS


async def test_access_to_write_is_refused(operations: MountOperations) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await operations.access(1 << 40, os.W_OK, None)  # type: ignore[arg-type]
    assert raised.value.errno == errno.EROFS
    assert await operations.access(1 << 40, os.R_OK | os.X_OK, None)  # type: ignore[arg-type]


async def test_a_forget_never_fails(
    operations: MountOperations, caplog: pytest.LogCaptureFixture
) -> None:
    await operations.forget([(1 << 40, 1), (5, 1)])  # the control directory is None here: a bug
    assert "forget failed unexpectedly" in caplog.text


async def test_the_kernel_is_left_to_answer_what_we_do_not_need() -> None:
    operations = MountOperations(None, None, None, {})  # type: ignore[arg-type]
    for answer in (operations.flush(1), operations.fsync(1, False)):
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await answer
        assert raised.value.errno == errno.ENOSYS
