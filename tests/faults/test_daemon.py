"""A mount's daemon, or the master of clients, killed or stopped under readers; a dataset published
anew, or removed, under a mount."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.mount_table import entry_at
from tests.eventually import PATIENCE_S, eventually, scaled_by_load
from tests.faults.case import Measured, fault_case
from tests.faults.flapping_store import calls, set_mode
from tests.faults.helpers_of_tasks import end_helpers, helpers_of
from tests.faults.reading import GONE, content, readers
from tests.faults.served import NAME, Place, Served
from tests.forked_programs import FORKER
from tests.mount.mounting import is_alive
from tests.stopping import stop

BOUND_S = 20.0
FILES = {path: content(path) for path in (f"f{number:03}" for number in range(200))}
PATHS = list(FILES)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("daemon") / "place").holding(FILES)


@pytest.fixture
def mount(place: Place, tmp_path: Path) -> Iterator[Served]:
    task = f"daemon-{os.getpid()}-{tmp_path.name}"
    with place.mounted(tmp_path / "mnt", "--task", task, "--prefill", "0") as mount:
        yield mount
        set_mode(place.folder, "ok")


@fault_case(
    "SIGKILL of the server, 5 times, while readers wait for a store that hangs",
    promise="another one answers what the killed one has not: readers notice a wait",
    bound_s=BOUND_S,
    check="dieselfs.fuse.requests.kernel_connection:KernelConnection.take_over=none",
)
def test_server_killed(place: Place, mount: Served, measured: Measured, tmp_path: Path) -> None:
    tried = calls(place.folder, "try")  # by other tests too
    set_mode(place.folder, "hung")
    with readers(mount.path, tmp_path / "readers", 4, PATHS) as reading:
        eventually(lambda: calls(place.folder, "try") != tried, "reads that wait")
        for _ in range(5):
            [server] = mount.servers()
            with measured.felt():
                os.kill(server, signal.SIGKILL)
                eventually(
                    lambda server=server: mount.servers() not in ([], [server]), "another server"
                )
                eventually(mount.statistics_or_none, "its answers")
        set_mode(place.folder, "ok")
        with measured.felt():
            assert [reader.end(PATIENCE_S) for reader in reading] == [""] * 4
    assert is_alive(mount.pid)


@fault_case(
    "SIGKILL of supervisor and server while readers wait for a store that hangs, then the same command again",
    promise="readers get an error at once; the dead mountpoint is mounted again without a manual step",
    bound_s=BOUND_S,
    check="dieselfs.fuse.mounts.mountpoint:_clear_if_dead=none",
)
def test_daemon_killed(place: Place, mount: Served, measured: Measured, tmp_path: Path) -> None:
    tried = calls(place.folder, "try")  # by other tests too
    set_mode(place.folder, "hung")
    with readers(mount.path, tmp_path / "readers", 4, PATHS) as reading:
        eventually(lambda: calls(place.folder, "try") != tried, "reads that wait")
        mount.kill()
        with measured.felt():
            said = [reader.end_without_mount(PATIENCE_S) for reader in reading]
        with pytest.raises(OSError) as raised:
            os.listdir(mount.path / ".dieselfs")
        assert raised.value.errno in GONE
    set_mode(place.folder, "ok")
    with measured.felt():
        again = place.mount(mount.path, "--prefill", "0")
    try:
        assert (again.path / PATHS[0]).read_bytes() == FILES[PATHS[0]]
    finally:
        again.end()
    measured.note(f"readers said: {said[0].partition(': ')[2].strip()}")


@fault_case(
    "SIGSTOP of the server, then SIGCONT",
    promise="readers wait and can be killed; the others go on when it does",
    bound_s=BOUND_S,
    why="the kernel lets go of a page that is waited for",
)
def test_daemon_stopped(place: Place, mount: Served, measured: Measured, tmp_path: Path) -> None:
    assert (mount.path / PATHS[0]).read_bytes() == FILES[PATHS[0]]
    [server] = mount.servers()
    stop(server)
    with readers(mount.path, tmp_path / "readers", 2, PATHS) as (first, second):
        eventually(
            lambda: all(waits_for_fuse(reader.process.pid) for reader in (first, second)),
            "readers that wait",
        )
        with measured.felt():
            first.process.kill()
            first.process.wait(PATIENCE_S)
        os.kill(server, signal.SIGCONT)
        with measured.felt():
            assert second.end(PATIENCE_S) == ""


def waits_for_fuse(pid: int) -> bool:
    return Path(f"/proc/{pid}/wchan").read_text().startswith(("request_wait", "folio_wait", "fuse"))


CLIENT = """
import sys, time
from pathlib import Path
from dieselfs.assembly import open_index
from dieselfs.client import Client
from metadata.snapshot import Snapshot
from tests.faults.flapping_store import FlappingStore
from tests.faults.reading import content
from chunkstore.stores.resilient import ResilientStore, ResiliencePolicy
from chunkstore.stores.retrying import RetryPolicy

folder, snapshot, task = sys.argv[1:]
store = ResilientStore(FlappingStore(Path(folder)), ResiliencePolicy(RetryPolicy.patient()))
index = open_index("memory://none")
with Client.connect("d", store=store, index=index, snapshot_folder=Path(folder, "snapshots")) as client:
    client.load_meta(Path(snapshot), check_fresh=False)
    client.open_memory(300_000, task)
    while True:
        for inode in range(client.snapshot.file_count):
            path = client.snapshot.path_of(inode).decode()
            assert client.get(path) == content(path), path
            sys.stdout.write("."); sys.stdout.flush()
"""


@fault_case(
    "SIGKILL of the master (a helper process) of 3 clients that read, twice",
    promise="they elect another, which adopts what is in memory, and go on",
    bound_s=60.0,
    why="whoever misses elects",
)
def test_helper_killed(place: Place, measured: Measured, tmp_path: Path) -> None:
    task = f"helper-{os.getpid()}"
    [snapshot] = (place.folder / "snapshots").glob("d-*.snapshot")
    command = [sys.executable, "-c", CLIENT, str(place.folder), str(snapshot), task]
    clients = []
    for n in range(3):
        beats_file, log_file = tmp_path / f"beats{n}", tmp_path / f"log{n}"
        with open(os.devnull) as nothing, open(beats_file, "w") as file, open(log_file, "w") as log:
            stdin, stdout, stderr = (stream.fileno() for stream in (nothing, file, log))
            clients.append(
                FORKER.start(command, stdin=stdin, stdout=stdout, stderr=stderr, env=os.environ)
            )

    def beats() -> int:
        return min((tmp_path / f"beats{n}").stat().st_size for n in range(3))

    def only_helper() -> int | None:
        """One that another client has started at the same time is about to end."""
        found = helpers_of(task)
        return found[0] if len(found) == 1 else None

    try:
        eventually(beats, "reads")
        with measured.felt():
            for _ in range(2):
                os.kill(eventually(only_helper, "one master"), signal.SIGKILL)
                goal = beats() + 500
                eventually(lambda goal=goal: beats() > goal, "reads that go on")
                eventually(lambda: helpers_of(task), "another master")
        said = [(tmp_path / f"log{n}").read_text() for n in range(3)]
        assert [client.poll() for client in clients] == [None] * 3, said
    finally:
        for client in clients:
            client.kill()
            client.wait()
        end_helpers(task)


@fault_case(
    "a dataset published anew, its files changed, under readers that go on reading",
    promise="each read has one version's bytes; the refreshed mount shows the new one; what is open stays as it was",
    bound_s=BOUND_S,
    check="dieselfs.fuse.mounts.erofs_mounts:_show_at=none",
)
def test_republished(measured: Measured, tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    old = {f"d/f{number}": content(f"old{number}", 20_000) for number in range(20)}
    new = {path: content(f"new{path}", 30_000) for path in old}
    place.make(old, target_bytes=64_000).close()
    wrong: list[str] = []
    seen: set[bool] = set()
    stop = threading.Event()
    with place.mounted(tmp_path / "mnt") as mount:

        def read() -> None:
            while not stop.is_set():
                for path in old:
                    data = (mount.path / path).read_bytes()
                    seen.add(data == new[path])
                    if data not in (old[path], new[path]):
                        wrong.append(path)

        reading = [threading.Thread(target=read) for _ in range(3)]
        kept = open(mount.path / "d/f0", "rb")  # noqa: SIM115
        for reader in reading:
            reader.start()
        try:
            eventually(lambda: seen, "reads")
            place.make(new, target_bytes=64_000).close()
            with measured.felt():
                done = place.dlcmd("mount", "--refresh", NAME, mount.path)
                assert done.returncode == 0, done.stderr
                assert mount.wrong(new) == []
            assert kept.read() == old["d/f0"]
            eventually(lambda: True in seen, "readers that see it", scaled_by_load(10))
        finally:
            stop.set()
            for reader in reading:
                reader.join(PATIENCE_S)
            kept.close()
    assert wrong == []


@fault_case(
    "a dataset removed under a mount",
    promise="what is in memory is read; EIO for the rest, without a crash",
    bound_s=BOUND_S,
    why="a chunk that is missing",
)
def test_removed(measured: Measured, tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    with place.make(FILES, target_bytes=64_000) as snapshot:
        cached = [PATHS[inode] for inode in range(len(PATHS)) if snapshot.chunk_number(inode) == 0]
        with place.mounted(tmp_path / "mnt", "--prefill", "0") as mount:
            assert (mount.path / cached[0]).read_bytes() == FILES[cached[0]]
            done = place.dlcmd("dataset", "rm", NAME, "--yes", "--force")
            assert done.returncode == 0, done.stderr
            for path in PATHS:
                found = measured.call((mount.path / path).read_bytes)
                if path in cached:
                    assert found == FILES[path]
                else:
                    assert isinstance(found, OSError)
                    assert found.errno == errno.EIO
            assert "Traceback" not in mount.log
            assert is_alive(mount.pid)
    assert entry_at(tmp_path / "mnt") is None
