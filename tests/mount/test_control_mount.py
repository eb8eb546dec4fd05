"""The control directory as a mount of its own: over a descriptor that is mounted already, or a new
one."""

import errno
import json
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.control.foreign_plans import ForeignPlan
from dieselfs.fuse.fronts.control_mount import ControlMount
from dieselfs.fuse.mounts.mount_syscalls import attach, detach
from dieselfs.fuse.requests.attributes import Owner
from dieselfs.shuffle.shuffle_lists import ListedOrder, ShuffleLists
from tests.dieselfs.shuffle.test_shuffle_lists import FILES, Counting
from tests.eventually import PATIENCE_S, eventually
from tests.mount.test_tree_server import mount_by_system_calls

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="mounts as root"
)


class Plans:
    """Each plan waits until the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.is_asked = threading.Event()

    def take(self, name: bytes) -> bytes:
        self.is_asked.set()
        self.gate.wait(PATIENCE_S)
        return b"taken " + name

    def follow(self, plan: ForeignPlan) -> bytes:
        return b"followed " + plan.id.encode()

    def note_list(self, order: ListedOrder) -> None:
        pass


class Ends:
    """Counts the calls of `on_end`."""

    def __init__(self) -> None:
        self.count = 0
        self._called = threading.Event()

    def note(self) -> None:
        self.count += 1
        self._called.set()

    def wait(self) -> None:
        assert self._called.wait(PATIENCE_S)
        assert self.count == 1


def make_control(plans: Plans) -> ControlDirectory:
    serial = count()
    documents = {b"stats.json": lambda: json.dumps([next(serial)] * 10).encode()}
    snapshot: Any = Counting()
    return ControlDirectory(documents, ShuffleLists(), snapshot, plans)


def mounted(path: Path, plans: Plans, ends: Ends) -> ControlMount:
    """A mount that somebody else has made."""
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    mount_by_system_calls(fd, path)
    owner, control = Owner(12, 34), make_control(plans)
    return ControlMount(control, owner, "dieselfs:test", fuse=fd, on_end=ends.note)


@contextmanager
def served(path: Path, plans: Plans) -> Iterator[ControlMount]:
    """A mount that ends when it is detached."""
    ends = Ends()
    mount = mounted(path, plans, ends)
    try:
        yield mount
    finally:
        plans.gate.set()
        detach(path)
        ends.wait()


@contextmanager
def closed(path: Path, plans: Plans) -> Iterator[ControlMount]:
    """A mount that is closed before it is detached."""
    ends = Ends()
    mount = mounted(path, plans, ends)
    try:
        yield mount
    finally:
        mount.close()
        plans.gate.set()
        detach(path)
    ends.wait()


def look_at_everything(root: Path) -> None:
    assert os.listdir(root) == ["stats.json", "shuffle", "plan", "why"]
    assert {entry.name: entry.is_dir() for entry in os.scandir(root)} == {
        **{"stats.json": False, "shuffle": True, "plan": True, "why": True}
    }
    found = os.stat(root)
    assert (found.st_ino, found.st_nlink, found.st_uid, found.st_gid) == (1, 5, 12, 34)
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
    assert os.statvfs(root).f_namemax == 255


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


def test_all_of_it_is_served(tmp_path: Path) -> None:
    with served(tmp_path, Plans()):
        look_at_everything(tmp_path)
        be_refused(tmp_path)


def test_a_mount_that_was_nowhere_is_shown_and_served(tmp_path: Path) -> None:
    ends = Ends()
    mount = ControlMount(make_control(Plans()), Owner(12, 34), "dieselfs:test", on_end=ends.note)
    attach(mount.mount, tmp_path)
    mount.shown()
    assert mount.mount == -1
    look_at_everything(tmp_path)
    detach(tmp_path)
    ends.wait()
    mount.close()
    assert ends.count == 1


def test_a_plan_that_takes_long_does_not_stop_the_rest(tmp_path: Path) -> None:
    plans = Plans()
    path = tmp_path / "plan" / "12ab"
    with served(tmp_path, plans), ThreadPoolExecutor(1) as announcing:
        answer = announcing.submit(path.read_bytes)
        for _ in range(20):
            (tmp_path / "stats.json").read_bytes()
        assert not answer.done()
        plans.gate.set()
        assert answer.result(PATIENCE_S) == b"taken 12ab"


def test_plans_that_fill_all_threads_leave_attributes_and_listings(tmp_path: Path) -> None:
    plans = Plans()
    with served(tmp_path, plans), ThreadPoolExecutor(5) as announcing:
        os.stat(tmp_path / "plan")
        paths = [tmp_path / "plan" / f"{number}" for number in range(5)]
        answers = [announcing.submit(path.read_bytes) for path in paths]
        assert plans.is_asked.wait(PATIENCE_S)
        assert os.stat(tmp_path).st_nlink == 5
        assert os.listdir(tmp_path / "plan") == ["README"]
        plans.gate.set()
        found = [answer.result(PATIENCE_S) for answer in answers]
        assert found == [b"taken %d" % n for n in range(5)]


def fuse_descriptors() -> set[int]:
    return {int(fd) for fd in os.listdir("/proc/self/fd") if leads_to_fuse(fd)}


def leads_to_fuse(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == "/dev/fuse"
    except FileNotFoundError:  # the one that listed them
        return False


@contextmanager
def descriptor_of(path: Path, number: int) -> Iterator[None]:
    """A new file that is open for writing under this number."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    try:
        yield
    finally:
        os.close(number)


def test_serving_ends_when_it_is_unmounted_or_closed(tmp_path: Path) -> None:
    before = fuse_descriptors()
    for _ in range(3):
        with served(tmp_path, Plans()):
            os.listdir(tmp_path)
    with closed(tmp_path, Plans()) as mount:
        os.listdir(tmp_path)
        assert fuse_descriptors(), "it would be seen"
        mount.close()
        eventually(  # the thread that closes it may be late; other tests' may have been closed
            lambda: fuse_descriptors() <= before, "no descriptor is left"
        )
        assert errno_of(os.listdir, tmp_path) == errno.ENOTCONN


def test_a_file_that_is_open_keeps_a_detached_mount(tmp_path: Path) -> None:
    ends = Ends()
    mount = mounted(tmp_path, Plans(), ends)
    with open(tmp_path / "shuffle" / "seed=1", "rb") as reading:
        detach(tmp_path)
        assert reading.read().count(b"\n") == FILES
        assert ends.count == 0
    ends.wait()
    mount.close()


def test_a_request_that_waits_ends_when_it_is_closed(tmp_path: Path) -> None:
    plans = Plans()
    other = tmp_path.parent / f"{tmp_path.name}-other"
    with closed(tmp_path, plans) as mount:
        fuse = mount._connection.fd
        with ThreadPoolExecutor(1) as announcing:
            waiting = announcing.submit(errno_of, os.stat, tmp_path / "plan" / "12ab")
            assert plans.is_asked.wait(PATIENCE_S)
            mount.close()
            assert waiting.result(PATIENCE_S) in (errno.ENOTCONN, errno.ECONNABORTED)
        late = [thread for thread in threading.enumerate() if thread.name == "control"]
        with descriptor_of(other, fuse):
            plans.gate.set()
            for thread in late:
                thread.join(PATIENCE_S)
    assert other.read_bytes() == b"", "no late answer is written to another file"
