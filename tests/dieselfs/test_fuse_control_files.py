"""Control files by look-up and forget: content fixed, memory given back, numbers never used again."""

import errno
import stat
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyfuse3
import pytest

from dieselfs.fuse import control_files
from dieselfs.fuse.attributes import Owner
from dieselfs.fuse.control_documents import timestamp
from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.inodes import CONTROL_INODE, SHUFFLE_INODE, is_control
from dieselfs.fuse.shuffle_lists import ShuffleLists
from dieselfs.worker_threads import WorkerThreads
from tests.dieselfs.test_fuse_shuffle_lists import Counting


@pytest.fixture
def control() -> ControlDirectory:
    serial: Iterator[int] = count()
    documents = {
        b"stats.json": lambda: b"%d" % next(serial) * 100,
        b"nothing": lambda: b"",
    }
    snapshot: Any = Counting()
    return ControlDirectory(
        documents, ShuffleLists(WorkerThreads(1)), lambda: snapshot, Owner(1, 2)
    )


async def looked_up(control: ControlDirectory, name: bytes, parent: int = CONTROL_INODE) -> int:
    return (await control.lookup(parent, name)).st_ino


def errno_of_attributes(control: ControlDirectory, inode: int) -> int:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        control.attributes(inode)
    return raised.value.errno


async def test_each_look_up_fixes_a_content_under_a_new_inode(control: ControlDirectory) -> None:
    first, second = [await looked_up(control, b"stats.json") for _ in range(2)]
    assert first != second
    assert is_control(first)
    assert bytes(await control.read(second, 0, 1000)) == b"1" * 100
    assert bytes(await control.read(first, 0, 1000)) == b"0" * 100
    assert bytes(await control.read(first, 90, 1000)) == b"0" * 10
    assert control.attributes(first).st_size == 100


async def test_attributes_are_asked_for_again_each_time(control: ControlDirectory) -> None:
    entry = await control.lookup(CONTROL_INODE, b"stats.json")
    assert (entry.entry_timeout, entry.attr_timeout) == (0, 0)
    assert entry.st_mode == stat.S_IFREG | 0o444
    assert (entry.st_uid, entry.st_gid) == (1, 2)


async def test_an_empty_document_reads_as_empty(control: ControlDirectory) -> None:
    inode = await looked_up(control, b"nothing")
    assert control.attributes(inode).st_size == 0
    assert bytes(await control.read(inode, 0, 100)) == b""


async def test_what_the_kernel_forgets_is_dropped_and_its_number_not_used_again(
    control: ControlDirectory,
) -> None:
    inode = await looked_up(control, b"stats.json")
    control.forget(inode, 1)
    assert errno_of_attributes(control, inode) == errno.ESTALE
    assert await looked_up(control, b"stats.json") > inode
    control.forget(inode, 1)  # harmless


async def test_a_list_is_kept_until_every_look_up_is_forgotten(control: ControlDirectory) -> None:
    first = await looked_up(control, b"seed=1", SHUFFLE_INODE)
    assert await looked_up(control, b"seed=1,epoch=0", SHUFFLE_INODE) == first
    control.forget(first, 1)
    assert await looked_up(control, b"seed=1", SHUFFLE_INODE) == first
    control.forget(first, 2)
    assert errno_of_attributes(control, first) == errno.ESTALE
    assert await looked_up(control, b"seed=1", SHUFFLE_INODE) > first


async def test_documents_that_are_never_forgotten_are_bounded(
    control: ControlDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_files, "MAX_FILES", 10)
    inodes = [await looked_up(control, b"stats.json") for _ in range(25)]
    assert errno_of_attributes(control, inodes[14]) == errno.ESTALE
    assert control.attributes(inodes[15]).st_size == 200


@pytest.mark.parametrize(
    ("parent", "name", "number"),
    [
        (CONTROL_INODE, b"other", errno.ENOENT),
        (CONTROL_INODE, b"seed=1", errno.ENOENT),
        (SHUFFLE_INODE, b"stats.json", errno.ENOENT),
        (SHUFFLE_INODE, b"seed=", errno.EINVAL),
        (SHUFFLE_INODE, b"seed=\xff", errno.EINVAL),
        (SHUFFLE_INODE, b"rank=1,world=1", errno.EINVAL),
        (12345, b"x", errno.ENOENT),
    ],
)
async def test_other_names(
    control: ControlDirectory, parent: int, name: bytes, number: int
) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        await control.lookup(parent, name)
    assert raised.value.errno == number


def test_times_are_shown_in_utc() -> None:
    assert timestamp(1_600_000_000_999_999_999) == "2020-09-13T12:26:40+00:00"
