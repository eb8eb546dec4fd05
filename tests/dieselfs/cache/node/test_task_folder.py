"""Who leads a task: real processes, their deaths, and sweeps meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chunkstore.chunk_format import DatasetRef
from dieselfs.cache.node import task_folder
from dieselfs.cache.node.task_folder import TaskFolder, default_task, memory_root, sweep
from dieselfs.errors import LocalFileError, UsageError
from tests.eventually import PATIENCE_S, eventually
from tests.forked_programs import ForkedProgram, start_forked

DEADLINE_S = PATIENCE_S

LEAD = """
import os, sys
from pathlib import Path
from dieselfs.cache.node import task_folder
from dieselfs.cache.node.task_folder import TaskFolder
root = Path(sys.argv[1])
leadership = TaskFolder.at("task", root).try_lead()
"""


@contextmanager
def program(text: str, root: Path) -> Iterator[ForkedProgram]:
    """A process that runs `text` after it has tried to lead; killed at the end."""
    process = start_forked([sys.executable, "-c", LEAD + text, str(root)], env=os.environ)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: ForkedProgram) -> str:
    return process.stdout.readline().decode().strip()


@pytest.fixture
def folder(tmp_path: Path) -> TaskFolder:
    return TaskFolder.at("task", tmp_path)


# Names and places


def test_the_root_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(tmp_path))
    root = memory_root()
    assert root == tmp_path / f"dieselfs-{os.geteuid()}"
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert memory_root() == root
    root.chmod(0o755)
    with pytest.raises(LocalFileError) as caught:
        memory_root()
    assert caught.value.hint is not None
    assert "DIESELFS_MEMORY_FOLDER" in caught.value.hint
    root.rmdir()
    root.write_text("")
    with pytest.raises(LocalFileError):
        memory_root()


def test_a_link_in_its_place_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"dieselfs-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalFileError):
        memory_root()


def test_a_folder_that_is_not_there_is_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(tmp_path / "none"))
    with pytest.raises(LocalFileError, match="does not exist"):
        memory_root()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir(mode=0o700)
    os.chown(tmp_path / "task", 12345, -1)
    with pytest.raises(LocalFileError):
        TaskFolder.at("task", tmp_path)
    assert sweep(tmp_path) == 0
    assert (tmp_path / "task").exists()


def test_the_folder_has_its_parts(folder: TaskFolder, tmp_path: Path) -> None:
    assert folder.path == tmp_path / "task"
    assert folder.chunks.is_dir()
    assert folder.plans.is_dir()
    assert folder.socket_path.parent == folder.lock_path.parent == folder.path
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert TaskFolder.at("task", tmp_path) == folder


@pytest.mark.parametrize("task", ["", ".", "..", ".hidden", "a/b", "a b", "ä", "x" * 65, "a\n"])
def test_odd_names_are_refused(task: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        TaskFolder.at(task, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir(mode=0o700)
    with pytest.raises(LocalFileError, match="at most 107 bytes"):
        TaskFolder.at("y" * 64, deep)


def test_the_default_task_is_a_dataset(tmp_path: Path) -> None:
    short = default_task(DatasetRef("faces", bytes(range(16))))
    assert short == "faces-0001020304050607"
    long = default_task(DatasetRef("n" * 128, bytes(16)))
    assert len(long) == 64
    assert long.endswith("-" + "0" * 16)
    TaskFolder.at(short, tmp_path)
    socket = Path("/dev/shm") / f"dieselfs-{2**32 - 1}" / long / "socket"
    assert len(os.fsencode(socket)) <= 107


# One leader


def test_a_process_leads_once(folder: TaskFolder, tmp_path: Path) -> None:
    leadership = folder.try_lead()
    assert leadership is not None
    assert leadership.held
    assert folder.try_lead() is None
    alias = tmp_path / "alias"
    alias.symlink_to(tmp_path)
    assert TaskFolder.at("task", alias).try_lead() is None, "the same folder by another path"
    with program("print(leadership)", tmp_path) as other:
        assert line_of(other) == "None", "to have tried again did not drop the lock"
    leadership.release()
    leadership.release()
    assert not leadership.held
    with folder.try_lead() or pytest.fail("free") as second:
        assert second.held
    assert not second.held


def test_a_leader_whose_folder_was_removed_leaves_that_of_the_next_one(folder: TaskFolder) -> None:
    former = folder.try_lead()
    assert former is not None
    shutil.rmtree(folder.path)
    following = folder.try_lead()
    assert following is not None
    former.release(remove_folder=True)
    assert folder.chunks.is_dir()
    following.release(remove_folder=True)
    assert not folder.path.exists()


def test_another_process_leads_when_the_first_has_released(tmp_path: Path) -> None:
    with program(
        "print(leadership is not None, flush=True); input(); leadership.release(); print('free', flush=True); input()",
        tmp_path,
    ) as other:
        assert line_of(other) == "True"
        folder = TaskFolder.at("task", tmp_path)
        assert folder.try_lead() is None
        other.stdin.write(b"\n")
        other.stdin.flush()
        assert line_of(other) == "free"
        leadership = folder.try_lead()
        assert leadership is not None
        leadership.release()


def test_a_killed_leader_that_has_forked_leaves_the_lock_free(tmp_path: Path) -> None:
    text = """
child = os.fork()
if child == 0:
    assert not leadership.held
    leadership.release(remove_folder=True)  # not its own
    sys.stdin.read()
print(child, flush=True)
sys.stdin.read()
"""
    with program(text, tmp_path) as leader:
        child = int(line_of(leader))
        try:
            folder = TaskFolder.at("task", tmp_path)
            assert folder.try_lead() is None
            leader.send_signal(signal.SIGKILL)
            leader.wait(DEADLINE_S)
            os.kill(child, 0)  # it lives on
            leadership = folder.try_lead()
            assert leadership is not None
            leadership.release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_lead_and_harms_no_leader(folder: TaskFolder) -> None:
    leadership = folder.try_lead()
    assert leadership is not None
    child = os.fork()
    if child == 0:
        try:
            sound = not leadership.held and folder.try_lead() is None
            leadership.release(remove_folder=True)
            os._exit(0 if sound else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    with program("print(leadership)", folder.path.parent) as other:
        assert line_of(other) == "None"
    assert folder.chunks.is_dir()
    leadership.release()


def test_one_of_many_that_start_at_once_leads(tmp_path: Path) -> None:
    text = "print(leadership is not None, flush=True); input()"
    with program(text, tmp_path) as a, program(text, tmp_path) as b, program(text, tmp_path) as c:
        assert sorted(map(line_of, (a, b, c))) == ["False", "False", "True"]


def test_one_of_many_threads_leads(folder: TaskFolder) -> None:
    found = []
    barrier = threading.Barrier(8)

    def race() -> None:
        barrier.wait()
        found.append(folder.try_lead())

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [leadership] = [each for each in found if each is not None]
    leadership.release(remove_folder=True)


def test_the_folder_goes_with_its_leader_if_it_shall(folder: TaskFolder) -> None:
    leadership = folder.try_lead()
    assert leadership is not None
    (folder.chunks / "piece").write_bytes(b"content")
    leadership.release(remove_folder=True)
    assert os.listdir(folder.path.parent) == []
    again = folder.try_lead()
    assert again is not None
    assert os.listdir(folder.chunks) == []
    again.release(remove_folder=True)


# Sweeping


def test_what_a_killed_leader_leaves_is_swept(tmp_path: Path) -> None:
    text = """
(leadership.folder.chunks / "piece").write_bytes(b"content")
print("leads", flush=True)
sys.stdin.read()
"""
    with program(text, tmp_path) as leader:
        line_of(leader)
        assert sweep(tmp_path) == 0
        assert (tmp_path / "task" / "chunks" / "piece").exists()
        leader.send_signal(signal.SIGKILL)
        leader.wait(DEADLINE_S)
        assert sweep(tmp_path) == 1
    assert os.listdir(tmp_path) == []


def test_a_sweep_spares_what_its_own_process_leads(folder: TaskFolder, tmp_path: Path) -> None:
    leadership = folder.try_lead()
    assert leadership is not None
    TaskFolder.at("other", tmp_path)
    assert sweep(tmp_path) == 1
    assert os.listdir(tmp_path) == ["task"]
    with program("print(leadership)", tmp_path) as other:
        assert line_of(other) == "None", "to have looked at it did not drop the lock"
    leadership.release(remove_folder=True)


def test_a_sweep_follows_no_links_and_spares_what_is_not_a_task(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "chunks").mkdir(parents=True)
    elsewhere.chmod(0o700)
    (root / "link").symlink_to(elsewhere)
    (root / "file").write_text("")
    (root / "open").mkdir()
    (root / "open").chmod(0o755)
    inner = TaskFolder.at("inner", root)
    inner.chunks.rmdir()
    inner.chunks.symlink_to(elsewhere)
    tricked = TaskFolder.at("tricked", root)
    tricked.lock_path.symlink_to(elsewhere / "created")
    assert sweep(root) == 1
    assert sorted(os.listdir(root)) == ["file", "link", "open", "tricked"]
    assert os.listdir(elsewhere) == ["chunks"]


def test_what_a_killed_sweep_has_left_is_swept(tmp_path: Path) -> None:
    folder = TaskFolder.at("task", tmp_path)
    os.rename(folder.path, tmp_path / ".1234567890abcdef")
    assert sweep(tmp_path) == 1
    assert os.listdir(tmp_path) == []
    assert sweep(tmp_path) == 0


def test_a_sweep_that_comes_late_spares_the_folder_made_meanwhile(
    folder: TaskFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at the lock file and its lock, another sweep and a start come about."""
    try_lock = task_folder._try_lock

    def late(fd: int, first: int, last: int | None = None) -> bool:
        os.rename(folder.path, tmp_path / ".other")
        TaskFolder.at("task", tmp_path).lock_path.touch()
        return try_lock(fd, first, last)

    monkeypatch.setattr(task_folder, "_try_lock", late)
    assert sweep(tmp_path) == 0
    assert folder.path.exists()


def test_the_default_root_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(tmp_path))
    TaskFolder.at("task")
    assert sweep() == 1


def test_sweeps_and_starts_race(tmp_path: Path) -> None:
    """Who starts alone leads at once and keeps its folder, however often others sweep meanwhile."""
    text = """
from dieselfs.cache.node import task_folder
from dieselfs.cache.node.task_folder import sweep
if leadership is not None:  # the other sweeper may lead the task at this moment
    leadership.release(remove_folder=True)
print("sweeps", flush=True)
while True:
    sweep(root)
"""
    with program(text, tmp_path) as first, program(text, tmp_path) as second:
        assert [line_of(first), line_of(second)] == ["sweeps", "sweeps"]
        ends = time.monotonic() + 1.5
        rounds = 0
        while time.monotonic() < ends or rounds < 50:
            rounds += 1
            leadership = TaskFolder.at(f"own{rounds % 3}", tmp_path).try_lead()
            assert leadership is not None, "a sweeper is no leader"
            folder = leadership.folder
            (folder.chunks / "piece").write_bytes(b"content")
            for _ in range(20):
                assert (folder.chunks / "piece").exists()
                assert folder.plans.is_dir()
            leadership.release(remove_folder=rounds % 2 == 0)
        assert first.poll() is None, "a sweep bears that others sweep"
        assert second.poll() is None
    sweep(tmp_path)
    eventually(lambda: sweep(tmp_path) == 0 and os.listdir(tmp_path) == [])


def test_chunks_that_are_not_deleted_in_time_are_deleted_by_another_process(
    folder: TaskFolder,
) -> None:
    leadership = folder.try_lead()
    assert leadership is not None
    for number in range(200):
        (folder.chunks / str(number)).write_bytes(b"x")
    leadership.release(remove_folder=True, timeout_s=0.0)
    assert not folder.path.exists()
    root = folder.path.parent
    eventually(lambda: not list(root.iterdir()), "the files are deleted")
