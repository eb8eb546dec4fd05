"""Requests of the control directory's own mount, and what the kernel does not send to a real one."""

import errno
from typing import Any

import pyfuse3
import pytest

from dieselfs.fuse.attributes import Owner
from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.control_operations import ControlOperations
from dieselfs.fuse.shuffle_lists import ShuffleLists
from dieselfs.worker_threads import WorkerThreads

NO_CONTEXT: Any = None


@pytest.fixture
def operations() -> ControlOperations:
    no_snapshot: Any = None
    control = ControlDirectory({b"stats.json": lambda: b"12"}, ShuffleLists(), no_snapshot)
    return ControlOperations(control, Owner(1, 2), WorkerThreads(1))


async def test_the_root_of_the_mount_is_the_control_directory(
    operations: ControlOperations,
) -> None:
    root = await operations.getattr(1, NO_CONTEXT)
    assert (root.st_ino, root.st_nlink, root.st_uid, root.st_gid) == (1, 4, 1, 2)
    found = await operations.lookup(1, b"stats.json", NO_CONTEXT)
    assert (found.st_size, found.entry_timeout, found.attr_timeout) == (2, 0, 0)
    assert bytes(await operations.read(found.st_ino, 0, 100)) == b"12"
    await operations.forget([(1, 5), (found.st_ino, 1)])
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await operations.read(found.st_ino, 0, 100)
    assert raised.value.errno == errno.ESTALE


async def test_a_forget_never_fails(
    operations: ControlOperations,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(operations, "_control", None)  # a bug
    await operations.forget([(5, 1)])
    assert "forget failed unexpectedly" in caplog.text


async def test_the_kernel_answers_for_us_what_we_do_not_need(operations: ControlOperations) -> None:
    for answer in (
        operations.flush(1),
        operations.fsync(1, False),
        operations.access(1, 0, NO_CONTEXT),
        operations.mkdir(1, b"name", 0, NO_CONTEXT),
    ):
        with pytest.raises(pyfuse3.FUSEError) as raised:
            await answer
        assert raised.value.errno == errno.ENOSYS
