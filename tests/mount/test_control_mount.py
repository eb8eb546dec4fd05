"""The control directory as a mount of its own, through libfuse over a descriptor that is mounted already."""

import errno
import json
import os
import stat
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from dieselfs.fuse.attributes import Owner
from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.control_operations import serve_control
from dieselfs.fuse.mount_syscalls import detach
from dieselfs.fuse.shuffle_lists import ShuffledOrder, ShuffleLists
from tests.dieselfs.test_fuse_shuffle_lists import FILES, Counting
from tests.mount.test_tree_server import mount_by_system_calls

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="mounts as root"
)


class Plans:
    def __init__(self) -> None:
        self.gate = threading.Event()

    def take(self, name: bytes) -> bytes:
        self.gate.wait(30)
        return b"taken " + name

    def note_list(self, order: ShuffledOrder) -> None:
        pass


def make_control(plans: Plans) -> ControlDirectory:
    serial = count()
    documents = {b"stats.json": lambda: json.dumps([next(serial)] * 10).encode()}
    snapshot: Any = Counting()
    return ControlDirectory(documents, ShuffleLists(), snapshot, plans)


@asynccontextmanager
async def served(path: Path, plans: Plans) -> AsyncIterator[None]:
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    mount_by_system_calls(fd, path)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_control, fd, make_control(plans), Owner(12, 34))
            try:
                yield
            finally:
                detach(path)
                os.close(fd)
    finally:
        plans.gate.set()


def look_at_everything(root: Path) -> None:
    assert os.listdir(root) == ["stats.json", "shuffle", "plan"]
    assert {entry.name: entry.is_dir() for entry in os.scandir(root)} == {
        **{"stats.json": False, "shuffle": True, "plan": True}
    }
    found = os.stat(root)
    assert (found.st_ino, found.st_nlink, found.st_uid, found.st_gid) == (1, 4, 12, 34)
    assert stat.S_IMODE(found.st_mode) == 0o555
    with open(root / "stats.json", "rb") as reading:
        first = reading.read()
        assert os.fstat(reading.fileno()).st_size == len(first)
        assert (root / "stats.json").read_bytes() != first
        reading.seek(0)
        assert reading.read() == first
    assert (root / "shuffle" / "seed=1").read_bytes().count(b"\n") == FILES
    assert os.stat(root / "shuffle" / "seed=1").st_size == FILES * 5
    assert b"seed=1" in (root / "shuffle" / "README").read_bytes()
    assert os.listxattr(root / "stats.json") == []


def errno_of(function: Any, *arguments: Any) -> int | None:
    with pytest.raises(OSError) as raised:
        function(*arguments)
    return raised.value.errno


def be_refused(root: Path) -> None:
    assert errno_of(os.stat, root / "absent") == errno.ENOENT
    assert errno_of(os.stat, root / "shuffle" / "seed=x") == errno.EINVAL
    assert errno_of(os.mkdir, root / "new") == errno.EROFS
    assert errno_of(os.open, root / "stats.json", os.O_WRONLY) == errno.EROFS
    assert errno_of(os.getxattr, root, "security.selinux") == errno.ENOTSUP
    assert errno_of(os.getxattr, root, "user.other") == errno.ENODATA


async def test_all_of_it_is_served(tmp_path: Path) -> None:
    async with served(tmp_path, Plans()):
        await trio.to_thread.run_sync(look_at_everything, tmp_path)
        await trio.to_thread.run_sync(be_refused, tmp_path)


async def test_a_plan_that_takes_long_does_not_stop_the_rest(tmp_path: Path) -> None:
    plans = Plans()
    answers: list[bytes] = []
    path = tmp_path / "plan" / "12ab"

    async def announce() -> None:
        answers.append(await trio.to_thread.run_sync(path.read_bytes))

    async with served(tmp_path, plans):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(announce)
            for _ in range(20):
                await trio.to_thread.run_sync((tmp_path / "stats.json").read_bytes)
            assert answers == []
            plans.gate.set()
    assert answers == [b"taken 12ab"]


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


async def test_serving_ends_when_it_is_unmounted_or_cancelled(tmp_path: Path) -> None:
    before = await trio.to_thread.run_sync(descriptors)
    for _ in range(3):  # one session after the other in a process
        with trio.fail_after(30):
            async with served(tmp_path, Plans()):
                await trio.to_thread.run_sync(os.listdir, tmp_path)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
            mount_by_system_calls(fd, tmp_path)
            nursery.start_soon(serve_control, fd, make_control(Plans()), Owner(12, 34))
            await trio.to_thread.run_sync(os.listdir, tmp_path)
            nursery.cancel_scope.cancel()
    os.close(fd)
    assert descriptors() == before
    assert errno_of(os.listdir, tmp_path) == errno.ENOTCONN
    detach(tmp_path)
