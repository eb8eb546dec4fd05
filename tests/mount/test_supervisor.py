"""A mount outlives the processes that serve it: killed, upgraded or unable to start, under readers
that check every byte."""

import errno
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.mount_table import MountState, entry_at
from dieselfs.fuse.mounts.mountpoint import unmount
from dieselfs.fuse.supervision.daemonize import start_in_background
from dieselfs.fuse.supervision.refresh_request import request_upgrade
from tests.eventually import eventually, scaled_by_load
from tests.mount.idle_servers import stop_idle
from tests.mount.mounting import (
    PATIENCE_S,
    Mount,
    both_fronts,
    daemon_command,
    end,
    is_alive,
    listed,
    mounted,
    names_in,
    start,
)
from tests.mount.packing import PackedDataset, pack, random_bytes, write_file

FILES = 400
KILLS = 10
UPGRADES = 2
"""The second is one of a supervisor that is itself the result of an upgrade."""
STEP_S = 0.002
"""The pause of a reader between two reads."""
BACK_S = 1.0
"""In this time another server answers, as issue 14 asks for."""
NOBODY_SERVES = (errno.EIO, errno.ENOTCONN, errno.ECONNABORTED)
"""The errors of a read without a server: which one it is depends on how far the read has come."""
_READ = """
import sys
try:
    open(sys.argv[1], "rb").read()
except OSError as error:
    sys.exit(error.errno)
"""

pytestmark = both_fronts


def size_of(number: int) -> int:
    return 1 + number * 977 % 30_000


@cache
def content_of(number: int) -> bytes:
    return random_bytes(size_of(number))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    folder = tmp_path_factory.mktemp("supervised")
    for n in range(FILES):
        write_file(folder / "source" / f"d{n % 7}" / f"{n}", content_of(n))
    return pack(folder / "source", folder)


# Little memory and no filling ahead, so that readers make requests all the time.
BUSY = ("--cache-bytes", str(2 << 20), "--prefill-bytes", "0")


@pytest.fixture
def mount(dataset: PackedDataset, tmp_path: Path) -> Iterator[Mount]:
    with mounted(dataset, tmp_path, *BUSY) as mount:
        yield mount


class Readers:
    """Threads that read all files again and again, past the page cache, and check every byte.
    `wrong` is what they complain of."""

    def __init__(self, mount: Path, count: int = 4) -> None:
        self.wrong: list[str] = []
        self.reads = 0
        self.longest_s = 0.0
        self._mount, self._ended = mount, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]

    def __enter__(self) -> "Readers":
        for thread in self._threads:
            thread.start()
        eventually(lambda: self.reads > 50, "reads")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads), "a reader hangs"

    def go_on(self) -> None:
        enough = self.reads + 100
        eventually(lambda: self.reads > enough or self.wrong, "reads that go on")

    def _run(self, seed: int) -> None:
        dice = random.Random(seed)
        while not self._ended.wait(STEP_S):
            number = dice.randrange(FILES)
            begun = time.monotonic()
            try:
                self._read(number)
            except OSError as error:
                self.wrong.append(f"{number}: {error!r}")
                return
            self.longest_s = max(self.longest_s, time.monotonic() - begun)
            self.reads += 1

    def _read(self, number: int) -> None:
        fd = os.open(self._mount / f"d{number % 7}" / f"{number}", os.O_RDONLY)
        try:
            if os.pread(fd, 1 << 20, 0) != content_of(number):
                self.wrong.append(f"{number}: wrong bytes")
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def test_a_killed_server_is_replaced_and_no_reader_notices(mount: Mount) -> None:
    with Readers(mount.path) as readers:
        for _ in range(KILLS):
            mount.kill_server()
            readers.go_on()
    assert readers.wrong == []
    assert readers.longest_s < scaled_by_load(10 * BACK_S)
    # On a busy machine one whose threads end late "hangs during its shutdown" instead.
    taken_over = re.findall(
        r"the server \d+ (was killed by SIGKILL|hangs during its shutdown); another one takes over",
        mount.log,
    )
    assert len(taken_over) == KILLS
    assert "Traceback" not in mount.log
    assert is_alive(mount.pid)


@pytest.mark.parametrize("threads", [1, 6])
def test_kills_and_upgrades_with_as_many_threads(
    dataset: PackedDataset, tmp_path: Path, threads: int
) -> None:
    with mounted(dataset, tmp_path, *BUSY, "--threads", str(threads)) as mount:
        with Readers(mount.path, count=8) as readers:
            for _ in range(UPGRADES):
                mount.kill_server()
                readers.go_on()
                upgrade(mount)
                readers.go_on()
        assert readers.wrong == []
        assert "Traceback" not in mount.log


def test_servers_that_are_killed_as_soon_as_they_serve(mount: Mount) -> None:
    """Also before they have told that they are ready: then the supervisor tries a few times."""
    with Readers(mount.path) as readers:
        for _ in range(5):
            before = set(mount.servers())
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            eventually(lambda before=before: set(mount.servers()) - before, "another server")
        readers.go_on()
    assert readers.wrong == []


def test_what_was_open_and_mapped_is_read_on_after_a_kill(mount: Mount) -> None:
    directory = os.open(mount.path / "d1", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with open(mount.path / "d1" / "1", "rb") as kept:
            mount.kill_server()
            assert kept.read() == content_of(1)
            fd = os.open("8", os.O_RDONLY, dir_fd=directory)
            assert os.pread(fd, 1 << 20, 0) == content_of(8)
            os.close(fd)
            assert len(names_in(directory)) == len(range(1, FILES, 7))
    finally:
        os.close(directory)
    assert mount.control("dataset.json")["pid"] == mount.pid


def test_a_killed_supervisor_leaves_the_mount_to_its_server(mount: Mount) -> None:
    with Readers(mount.path) as readers:
        server = mount.server_pid
        os.kill(mount.pid, signal.SIGKILL)
        mount.wait_until_ended()
        readers.go_on()
        assert mount.server_pid == server
    assert readers.wrong == []
    unmount(mount.path)
    eventually(lambda: not is_alive(server), "the end of the server")


def test_a_signal_to_the_server_that_is_left_unmounts(mount: Mount) -> None:
    server = mount.server_pid
    os.kill(mount.pid, signal.SIGKILL)
    mount.wait_until_ended()
    for harmless in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(server, harmless)
    assert mount.server_pid == server
    os.kill(server, signal.SIGTERM)
    eventually(lambda: not is_alive(server), "the end of the server")
    assert entry_at(mount.path) is None


def test_a_mount_without_a_supervisor_says_so_when_it_is_to_be_upgraded(mount: Mount) -> None:
    os.kill(mount.pid, signal.SIGKILL)
    mount.wait_until_ended()

    def asked() -> bool:
        info = listed(mount.path)
        if info.pid == mount.pid:
            return False
        with pytest.raises(MountError, match=r"the supervisor of .* was killed"):
            request_upgrade(info)
        return True

    eventually(asked, "a server that knows that it is alone")
    assert (mount.path / "d1" / "1").read_bytes() == content_of(1)


def test_when_both_are_killed_readers_get_an_error_at_once_and_a_mount_heals(
    dataset: PackedDataset, tmp_path: Path
) -> None:
    first = start(dataset, tmp_path, "--prefill-bytes", "0")
    try:
        cached = first.path / "d0" / "0"
        content = cached.read_bytes()
        first.kill()
        begun = time.monotonic()
        with pytest.raises(OSError) as raised:
            (first.path / "d3" / "381").read_bytes()
        assert raised.value.errno in NOBODY_SERVES
        assert time.monotonic() - begun < scaled_by_load(10 * BACK_S)
        assert content == content_of(0)
        info = listed(first.path)
        assert info.state is MountState.DEAD
        with mounted(dataset, tmp_path) as second:
            assert (second.path / "d3" / "381").read_bytes() == content_of(381)
    finally:
        end(first)


def test_readers_that_wait_get_an_error_when_both_are_killed(
    dataset: PackedDataset, tmp_path: Path
) -> None:
    mount = start(dataset, tmp_path)
    try:
        mount.fail_with("stuck")
        command = [sys.executable, "-c", _READ, str(mount.path / "d2" / "2")]
        with subprocess.Popen(command) as reader:
            eventually(lambda: mount.statistics()["reads_through_threads"], "a read that waits")
            mount.kill()
            assert reader.wait(scaled_by_load(10 * BACK_S)) in NOBODY_SERVES
    finally:
        end(mount)


def test_a_read_that_waits_for_a_killed_server_is_answered_by_the_next(
    dataset: PackedDataset, tmp_path: Path
) -> None:
    """The kernel sends it again: Linux 6.9."""
    with mounted(dataset, tmp_path) as mount:
        mount.fail_with("stuck")
        found: list[bytes] = []
        path = mount.path / "d2" / "2"
        reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
        reader.start()
        eventually(lambda: mount.statistics()["reads_through_threads"], "a read that waits")
        mount.fail_with("")
        mount.kill_server()
        reader.join(PATIENCE_S)
        assert found == [content_of(2)]


@pytest.fixture
def mount_with_exec(dataset: PackedDataset, tmp_path: Path) -> Iterator[Mount]:
    """Its upgrades start Python, as those of a user's mount do."""
    with mounted(dataset, tmp_path, *BUSY, "--exec") as mount:
        yield mount


def test_an_upgrade_under_readers(mount_with_exec: Mount) -> None:
    mount = mount_with_exec
    with Readers(mount.path) as readers:
        for _ in range(UPGRADES):
            before = mount.server_pid
            following = request_upgrade(listed(mount.path))
            # Until its end the server before may still be the one that answers.
            eventually(lambda before=before: not is_alive(before), "the end of the server before")
            assert following == mount.server_pid != before
            readers.go_on()
    assert readers.wrong == []
    assert is_alive(mount.pid)
    assert mount.control("dataset.json")["pid"] == mount.pid
    assert "Traceback" not in mount.log
    mount.kill_server()
    assert (mount.path / "d1" / "1").read_bytes() == content_of(1)


def upgrade(mount: Mount) -> None:
    before = mount.server_pid
    os.kill(mount.pid, signal.SIGUSR2)
    mount.await_server_after(before)


def test_upgrades_that_are_asked_for_while_one_is_under_way(mount: Mount) -> None:
    for _ in range(3):
        upgrade(mount)
    assert is_alive(mount.pid)


def test_a_mount_that_is_unmounted_while_two_servers_serve_it(mount: Mount) -> None:
    """What the kernel says of its end is said to one of them."""
    before = mount.server_pid
    mount.faults.with_name("startup").write_text("supervisor-stopped")
    upgrade(mount)
    [following] = set(mount.servers()) - {before}
    entry = entry_at(mount.path)
    assert entry is not None
    stop_idle(following, entry.device)
    unmount(mount.path)
    eventually(lambda: not is_alive(before), "the end of the server before")
    for stopped in (following, mount.pid):
        os.kill(stopped, signal.SIGCONT)
    mount.wait_until_ended()
    assert not is_alive(following)


def test_a_signal_while_the_installed_version_starts_is_not_lost(mount_with_exec: Mount) -> None:
    mount = mount_with_exec
    servers = mount.servers()
    os.kill(mount.pid, signal.SIGUSR2)
    eventually(lambda: "changing to the installed version" in mount.log, "its start")
    os.kill(mount.pid, signal.SIGTERM)
    mount.wait_until_ended()
    assert entry_at(mount.path) is None
    eventually(lambda: not any(map(is_alive, servers)), "the end of its servers")


def test_a_read_that_waits_during_an_upgrade_is_answered(
    dataset: PackedDataset, tmp_path: Path
) -> None:
    """By the new server, if it waits for longer than the one before may take to end."""
    with mounted(dataset, tmp_path) as mount:
        mount.fail_with("stuck")
        found: list[bytes] = []
        path = mount.path / "d2" / "2"
        reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
        reader.start()
        eventually(lambda: mount.statistics()["reads_through_threads"], "a read that waits")
        upgrade(mount)
        mount.fail_with("")  # for reads that begin now
        reader.join(PATIENCE_S)
        assert found == [content_of(2)]


def test_a_read_that_waits_in_a_server_that_is_killed_as_it_retires_is_answered(
    dataset: PackedDataset, tmp_path: Path
) -> None:
    with mounted(dataset, tmp_path) as mount:
        mount.fail_with("stuck")
        found: list[bytes] = []
        path = mount.path / "d2" / "2"
        reader = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
        reader.start()
        eventually(lambda: mount.statistics()["reads_through_threads"], "a read that waits")
        before = mount.server_pid
        upgrade(mount)
        mount.fail_with("")  # for reads that begin now
        os.kill(before, signal.SIGKILL)  # it waits for the read before it hands it over
        reader.join(PATIENCE_S)
        assert found == [content_of(2)]


def test_an_upgrade_with_a_server_that_never_starts_leaves_the_one_before(mount: Mount) -> None:
    before = mount.server_pid
    mount.faults.with_name("startup").write_text("killed")
    with Readers(mount.path) as readers:
        os.kill(mount.pid, signal.SIGUSR2)
        eventually(lambda: f"server {before} continues" in mount.log, "a supervisor that gives up")
        readers.go_on()
    assert readers.wrong == []
    assert is_alive(mount.pid)
    assert mount.server_pid == before


def test_an_upgrade_with_a_server_that_cannot_start_ends_in_one_that_can(mount: Mount) -> None:
    mount.faults.with_name("startup").write_text("killed-once")
    with Readers(mount.path) as readers:
        upgrade(mount)
        readers.go_on()
    assert readers.wrong == []
    assert "another one takes over" in mount.log


def test_a_server_that_can_never_start_again_ends_the_mount(mount: Mount) -> None:
    mount.faults.with_name("startup").write_text("killed")
    os.kill(mount.server_pid, signal.SIGKILL)
    mount.wait_until_ended()
    assert "servers in a row have failed: the mount ends" in mount.log
    with pytest.raises(OSError):
        (mount.path / "d1" / "1").read_bytes()


@contextmanager
def refused_start(dataset: PackedDataset, folder: Path, startup: str) -> Iterator[str]:
    """What a start says in which the first server does not come up."""
    (folder / "mnt").mkdir()
    (folder / "startup").write_text(startup)
    command = daemon_command(dataset, folder / "mnt", "--startup", str(folder / "startup"))
    with pytest.raises(MountError) as raised:
        start_in_background(command, folder / "mnt", log_file=folder / "log", timeout_s=PATIENCE_S)
    assert entry_at(folder / "mnt") is None
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert entry_at(folder / "mnt") is None
    yield str(raised.value)


@pytest.mark.parametrize(
    ("startup", "said"), [("fails", "this server cannot start, because the test says so")]
)
def test_a_first_server_that_cannot_start_is_one_line_and_an_exit_code(
    dataset: PackedDataset, tmp_path: Path, startup: str, said: str
) -> None:
    with refused_start(dataset, tmp_path, startup) as line:
        assert line == said


def test_a_first_server_that_is_killed_leaves_no_mount(
    dataset: PackedDataset, tmp_path: Path
) -> None:
    with refused_start(dataset, tmp_path, "killed") as line:
        assert "\n" not in line
        assert "nothing is mounted: the server" in line
        assert "was killed by SIGKILL" in line


def test_a_supervisor_has_one_thread_and_ends_its_servers(mount: Mount) -> None:
    servers = mount.servers()
    assert len(os.listdir(f"/proc/{mount.pid}/task")) == 1
    os.kill(mount.pid, signal.SIGTERM)
    mount.wait_until_ended()
    assert not any(map(is_alive, servers))
    assert entry_at(mount.path) is None
