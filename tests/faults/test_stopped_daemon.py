"""Processes of a mount that are stopped and stay so: the mount can be ended all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.mount_table import entry_at
from tests.eventually import eventually
from tests.faults.case import Measured, fault_case
from tests.faults.flapping_store import calls, set_mode
from tests.faults.reading import Reader, content, is_reading, readers
from tests.faults.served import Place, Served, send
from tests.mount.mounting import is_alive
from tests.stopping import stop

BOUND_S = 25.0
FILES = {path: content(path) for path in (f"f{number:03}" for number in range(50))}
FRONTS = ["fuse", "erofs", "erofs-loop"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("stopped") / "place").holding(FILES)


def task_of(folder: Path) -> str:
    return f"stopped-{os.getpid()}-{folder.name}"


@pytest.fixture
def mount(place: Place, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    front = getattr(request, "param", "fuse")
    options = ("--front", front, "--task", task_of(tmp_path), "--prefill", "0")
    with place.mounted(tmp_path / "mnt", *options) as mount:
        try:
            yield mount
        finally:
            send(signal.SIGCONT, mount.pid)
        set_mode(place.folder, "ok")


@contextmanager
def waiting_readers(place: Place, mount: Served, folder: Path) -> Iterator[list[Reader]]:
    """Readers whose requests the server has taken and cannot answer: not even SIGKILL ends them."""
    set_mode(place.folder, "hung")
    before = calls(place.folder, "try").total()  # those of other mounts of this store
    with readers(mount.path, folder / "readers", 3, list(FILES)) as reading:
        eventually(lambda: calls(place.folder, "try").total() > before, "a request that waits")
        # One that has not begun would find no mount later, not one that fails.
        eventually(
            lambda: all(is_reading(reader.process.pid, mount.path) for reader in reading),
            "readers that wait",
        )
        processes = [mount.pid, *mount.servers()]
        try:
            yield reading
        finally:  # after a failure the readers could not be ended otherwise
            set_mode(place.folder, "ok")
            send(signal.SIGCONT, *processes)


def assert_ended(reading: list[Reader]) -> None:
    for reader in reading:
        reader.end_without_mount(2 * BOUND_S)


def assert_gone(path: Path, *pids: int) -> None:
    assert entry_at(path) is None
    eventually(lambda: not any(map(is_alive, pids)), "the end of the processes", 2 * BOUND_S)


@pytest.mark.parametrize("mount", FRONTS, indirect=True)
@fault_case(
    "SIGSTOP of the server while readers wait for it, then `dlcmd umount`",
    promise="the mount is aborted and says so: readers get an error, and no process is left",
    bound_s=BOUND_S,
    check="dieselfs.fuse.mounts.unanswered:_end_unanswered=none",
)
def test_umount_of_a_stopped_server(
    place: Place, mount: Served, measured: Measured, tmp_path: Path
) -> None:
    [server] = mount.servers()
    with waiting_readers(place, mount, tmp_path) as reading:
        stop(server)
        with measured.felt():
            listed = place.dlcmd("mounts")
        assert f"{mount.path}" in listed.stdout
        assert "hung" in listed.stdout
        with measured.felt():
            done = place.dlcmd("umount", mount.path)
            assert_ended(reading)
    assert done.returncode == 0, done.stderr
    assert "did not answer: the connection was aborted" in done.stderr
    assert_gone(mount.path, mount.pid, server)
    assert f"the server {server} is stopped" in mount.log


@fault_case(
    "SIGSTOP of supervisor and server while readers wait, then `dlcmd umount` of it and of a sound "
    "mount",
    promise="both end",
    bound_s=BOUND_S,
    check="dieselfs.fuse.mounts.unanswered:_end_unanswered=none",
)
def test_umount_of_all_processes_stopped(
    place: Place, mount: Served, measured: Measured, tmp_path: Path
) -> None:
    [server] = mount.servers()
    sound = place.mount(tmp_path / "sound", "--front", "fuse", "--prefill", "0")
    try:
        with waiting_readers(place, mount, tmp_path) as reading:
            stop(mount.pid)
            stop(server)
            with measured.felt():
                done = place.dlcmd("umount", mount.path, sound.path)
                assert_ended(reading)
        assert done.returncode == 0, done.stderr
        assert_gone(mount.path, mount.pid, server)
        assert_gone(sound.path, sound.pid)
    finally:
        set_mode(place.folder, "ok")
        sound.end()


@pytest.mark.parametrize("mount", FRONTS, indirect=True)
@fault_case(
    "SIGSTOP of the supervisor, then `dlcmd umount`",
    promise="the mount serves on; then it ends in order, and no process is left",
    bound_s=BOUND_S,
    check="dieselfs.fuse.mounts.unanswered:_kill=none",
)
def test_umount_with_a_stopped_supervisor(place: Place, mount: Served, measured: Measured) -> None:
    [server] = mount.servers()
    stop(mount.pid)
    assert mount.wrong(FILES) == []
    with measured.felt():
        done = place.dlcmd("umount", mount.path)
        assert done.returncode == 0, done.stderr
        assert_gone(mount.path, mount.pid, server)


@pytest.mark.parametrize("mount", FRONTS, indirect=True)
@fault_case(
    "SIGSTOP of the server while readers wait for it, then SIGTERM to the supervisor",
    promise="the server is killed, readers get an error, and the mount is gone",
    bound_s=BOUND_S,
    check="dieselfs.fuse.supervision.served_mount:ServedMount.detach=none",
)
def test_end_of_a_supervisor_with_a_stopped_server(
    place: Place, mount: Served, measured: Measured, tmp_path: Path
) -> None:
    [server] = mount.servers()
    with waiting_readers(place, mount, tmp_path) as reading:
        stop(server)
        with measured.felt():
            os.kill(mount.pid, signal.SIGTERM)
            assert_ended(reading)
            eventually(lambda: not is_alive(mount.pid), "the end of the supervisor")
    assert_gone(mount.path, mount.pid, server)


@fault_case(
    "SIGSTOP of the server, then SIGCONT while `dlcmd umount` waits for an answer of the mount, "
    "which is in use",
    promise="nothing is aborted: umount says that the mount is in use, and readers go on",
    bound_s=BOUND_S,
    check="dieselfs.fuse.mounts.unanswered:_answers=false",
)
def test_server_stopped_for_a_while(place: Place, mount: Served, measured: Measured) -> None:
    [server] = mount.servers()
    path = next(iter(FILES))
    with open(mount.path / path, "rb") as file, ThreadPoolExecutor(1) as umount:
        stop(server)
        with measured.felt():
            assert "hung" in place.dlcmd("mounts").stdout
        eventually(lambda: f"the server {server} is stopped" in mount.log, "a line in the log")
        before = asking(mount.path)
        with measured.felt():
            ending = umount.submit(place.dlcmd, "umount", mount.path)
            try:
                eventually(lambda: ending.done() or asking(mount.path) - before, "a question")
            finally:
                os.kill(server, signal.SIGCONT)
            done = ending.result()
        assert done.returncode != 0
        assert "in use" in done.stderr
        assert file.read() == FILES[path]
    assert mount.wrong(FILES) == []
    assert mount.servers() == [server]
    eventually(lambda: f"the server {server} continues" in mount.log, "a line in the log")


def asking(mountpoint: Path) -> set[str]:
    """The helpers that ask a mount what it is."""
    found = set()
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(mountpoint / ".dieselfs/dataset.json") in command.read_bytes():
                found.add(command.parent.name)
        except OSError:
            continue
    return found
