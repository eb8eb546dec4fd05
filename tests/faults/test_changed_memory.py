"""Chunks in node memory that somebody changes, after a SIGKILL of the process that leads the task
or under a mount that runs."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dieselfs.cache.node.task_folder import memory_root
from tests.eventually import eventually
from tests.faults.case import Measured, fault_case
from tests.faults.helpers_of_tasks import end_helpers, helpers_of
from tests.faults.reading import content
from tests.faults.served import Place
from tests.forked_programs import PATIENT, ForkedProgram, start_forked
from tests.own_node_memory import own_node_memory

BOUND_S = 20.0
FILES = {path: content(path) for path in (f"f{number:03}" for number in range(150))}
Change = Callable[[Path], None]


def flip(file: Path) -> None:
    """Change one bit in the middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def overwrite(file: Path) -> None:
    file.write_bytes(os.urandom(file.stat().st_size))


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def grow(file: Path) -> None:
    os.truncate(file, file.stat().st_size + 4096)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("memory") / "place").holding(FILES)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a task. On a busy machine its master may be late: a scrub would pass over it,
    and a client would read without node memory."""
    monkeypatch.setenv(PATIENT, "1")
    with own_node_memory():
        yield f"changed-{os.getpid()}"


def chunks_of(task: str) -> list[Path]:
    return sorted((memory_root() / task / "chunks").glob("[!.]*"))


def change_half(task: str, change: Change) -> int:
    """Change every second chunk that the task's node memory has; how many these are."""
    cached = chunks_of(task)
    assert len(cached) > 10, "nothing to change"
    for file in cached[::2]:
        file.chmod(0o600)
        change(file)
    return len(cached[::2])


def check_mount(
    place: Place, task: str, change: Change, measured: Measured, mountpoint: Path
) -> None:
    options = ("--task", task, "--prefill", "0", "--front", "fuse")
    mount = place.mount(mountpoint, *options)
    try:
        assert mount.wrong(FILES) == []
        mount.kill()
        changed = change_half(task, change)
        with measured.felt():
            mount = place.mount(mountpoint, *options)
            assert mount.wrong(FILES) == []
        # A chunk fetched ahead can be read before it is counted.
        eventually(
            lambda: mount.statistics()["cache"]["node"]["fetches"] == changed,
            "what was changed is fetched again, and nothing else",
        )
    finally:
        mount.end()
    measured.note(f"{changed} chunks fetched again, 0 of {len(FILES)} reads wrong")


@pytest.mark.parametrize("change", [flip, overwrite])
@fault_case(
    "SIGKILL of a mount's daemon, then a bit flipped in half of the chunks in node memory, or all their bytes overwritten",
    promise="the next mount fetches these chunks again, and serves the others from memory; 0 wrong bytes, no EIO",
    bound_s=BOUND_S,
    check="dieselfs.cache.node.chunk_files:file_matches=true",
)
def test_changed_after_a_mount_was_killed(
    place: Place, task: str, change: Change, measured: Measured, tmp_path: Path
) -> None:
    check_mount(place, task, change, measured, tmp_path / "mnt")


@pytest.mark.parametrize("change", [cut, grow])
@fault_case(
    "SIGKILL of a mount's daemon, then half of the chunks in node memory cut or grown",
    promise="the next mount fetches these chunks again; 0 wrong bytes, no EIO",
    bound_s=BOUND_S,
    why="the length is checked where a file is adopted, where it is verified, and where it is mapped",
)
def test_resized_after_a_mount_was_killed(
    place: Place, task: str, change: Change, measured: Measured, tmp_path: Path
) -> None:
    check_mount(place, task, change, measured, tmp_path / "mnt")


@pytest.mark.parametrize("change", [flip, overwrite, grow])
@fault_case(
    "half of the chunks in the node memory of a mount that runs changed or grown, then `dlcmd scrub --cached`",
    promise="it ends with the exit code 7, names and evicts these chunks; the mount fetches them again",
    bound_s=BOUND_S,
    check="dieselfs.cache.node.chunk_files:file_matches=true",
)
def test_scrubbed_under_a_mount(
    place: Place, task: str, change: Change, measured: Measured, tmp_path: Path
) -> None:
    with place.mounted(tmp_path / "mnt", "--task", task, "--prefill", "0") as mount:
        assert mount.wrong(FILES) == []
        cached = chunks_of(task)
        changed = change_half(task, change)
        with measured.felt():
            done = place.dlcmd("scrub", "--cached", "--task", task, "--json")
        assert done.returncode == 7, done.stderr
        record = json.loads(done.stdout)
        assert set(record["damaged"]) == {file.name for file in cached[::2]}
        assert (record["blocks"], record["verdict"]) == (len(cached), "damaged")
        assert mount.wrong(FILES) == []
        done = place.dlcmd("scrub", "--cached")
        assert done.returncode == 0, done.stderr
        assert f"{task}: clean" in done.stdout
    measured.note(f"{changed} of {len(cached)} chunks evicted")


CLIENT = """
import sys, time
from pathlib import Path
from dieselfs.assembly import open_index
from dieselfs.client import Client
from tests.faults.helpers_of_tasks import end_helpers, helpers_of
from tests.faults.reading import content
from chunkstore.stores.local_directory import LocalDirectory

folder, snapshot, task = sys.argv[1:]
store, index = LocalDirectory(Path(folder, "store")), open_index("memory://none")
with Client.connect("d", store=store, index=index, snapshot_folder=Path(folder, "snapshots")) as client:
    client.load_meta(Path(snapshot), check_fresh=False)
    client.open_memory(10_000_000, task)
    paths = [client.snapshot.path_of(inode).decode() for inode in range(client.snapshot.file_count)]
    print(sum(client.get(path) != content(path) for path in paths), flush=True)
    sys.stdin.read()
"""


@contextmanager
def client_of(place: Place, task: str) -> Iterator[ForkedProgram]:
    """A client that reads all files once; its helper ends too."""
    [snapshot] = (place.folder / "snapshots").glob("d-*.snapshot")
    command = [sys.executable, "-c", CLIENT, str(place.folder), str(snapshot), task]
    client = start_forked(command, env=os.environ)
    try:
        yield client
    finally:
        client.kill()
        client.communicate()
        end_helpers(task)


@pytest.mark.parametrize("change", [flip, overwrite])
@fault_case(
    "SIGKILL of a client and of its helper, then half of the chunks in node memory changed: a bit, or all their bytes",
    promise="the next client reads 0 wrong bytes, and no error",
    bound_s=BOUND_S,
    check="dieselfs.cache.node.chunk_files:file_matches=true",
)
def test_changed_after_a_helper_was_killed(
    place: Place, task: str, change: Change, measured: Measured
) -> None:
    with client_of(place, task) as client:
        assert client.stdout.readline() == b"0\n"
        eventually(lambda: helpers_of(task), "a helper")
        for helper in helpers_of(task):
            os.kill(helper, signal.SIGKILL)
    change_half(task, change)
    with client_of(place, task) as client, measured.felt():
        assert client.stdout.readline() == b"0\n"
    measured.note(f"0 of {len(FILES)} reads wrong")
