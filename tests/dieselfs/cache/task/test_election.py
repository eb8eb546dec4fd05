"""Masters that are killed, and members that elect another: real processes, SIGKILL."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import pytest

from chunkstore.errors import Corrupt
from dieselfs.cache.node.task_folder import TaskFolder, sweep
from dieselfs.cache.ports.peer_settings import PeerSettings, StaticPeers
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.task import master_process, node_memory, remote_master, task_session
from dieselfs.cache.task.leader import MemorySettings
from dieselfs.cache.task.master_process import LOG, SourceNotPortable
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.cache.task.remote_master import RemoteMaster
from dieselfs.cache.task.succession import Succession
from dieselfs.cache.task.task_session import _STARTER
from dieselfs.errors import MasterGone
from dieselfs.prefetch.plan_file import ReadingPlan, write_plan
from tests.dieselfs.cache.logged_source import CHUNK_BYTES, CORRUPT, LoggedSource, chunk, extent
from tests.dieselfs.cache.processes import (
    FORK,
    LINGER_S,
    SPAWN,
    all_ended_well,
    is_alive,
    is_right,
    open_and_wait,
    opened,
    read_until,
)
from tests.eventually import PATIENCE_S, eventually
from tests.stopping import stop

pytestmark = pytest.mark.usefixtures("patient_members")

START_PYTHON = master_process._start_process


def master_pid(memory: NodeMemory) -> int:
    master = memory._membership.current()
    assert master is not None
    return master.pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid), "an end of it")


@contextmanager
def killed_at_the_end(process: BaseProcess) -> Iterator[None]:
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


@pytest.fixture
def helpers_start_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's do; those of other tests are forked."""
    monkeypatch.setattr(master_process, "_start_process", START_PYTHON)


@pytest.mark.usefixtures("helpers_start_python")
def test_the_helper_is_nobody_s_child_and_ends_soon_after_its_last_member(
    folder: TaskFolder, source: LoggedSource
) -> None:
    with opened(folder, source) as memory:
        assert is_right(memory, 1)
        helper = master_pid(memory)
        with pytest.raises(ChildProcessError):
            os.waitpid(helper, os.WNOHANG)
        assert os.getsid(helper) != os.getsid(0)
        assert os.readlink(f"/proc/{helper}/cwd") == "/"
        assert (folder.path / LOG).read_text() == ""
        with opened(folder, source) as other:
            assert master_pid(other) == helper
        assert is_alive(helper)
    eventually(lambda: not is_alive(helper), "an end of the helper")
    assert not folder.path.exists()


def test_a_member_that_is_killed_has_left(
    folder: TaskFolder, source: LoggedSource, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    with killed_at_the_end(
        SPAWN.Process(target=open_and_wait, args=(folder, source, ready, False))
    ):
        eventually(ready.exists, "a member")
        member = RemoteMaster(folder.socket_path)
        helper = member.pid
        member.close()
    eventually(lambda: not is_alive(helper), "an end of the helper")
    assert not folder.path.exists()


@pytest.mark.usefixtures("helpers_start_python")
def test_a_helper_that_nobody_joins_ends(
    folder: TaskFolder, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = MemorySettings(folder, None, "uniform", LINGER_S)

    def joined() -> RemoteMaster:
        master_process.start(settings, source)
        return RemoteMaster(folder.socket_path)

    # A helper waits for its first member for 5 s, in which a busy machine may start no other.
    member = eventually(joined, "a member", ignored=MasterGone)
    master_process.start(settings, source)  # one leads: well too
    helper = member.pid
    member.close()
    eventually(lambda: not is_alive(helper), "an end of the helper")


def test_reads_go_on_while_helpers_are_killed(
    folder: TaskFolder, source: LoggedSource, tmp_path: Path
) -> None:
    stop, rounds = tmp_path / "stop", tmp_path / "rounds"
    rounds.touch()
    with opened(folder, source) as memory:
        assert is_right(memory, 1)
        # Chunk 13 is corrupt, and stays so whoever the master is.
        readers = [
            FORK.Process(
                target=read_until,
                args=(memory, [n for n in range(20) if n != CORRUPT], stop, rounds),
            )
            for _ in range(3)
        ]
        for reader in readers:
            reader.start()
        killed = set()
        for _ in range(3):
            done = rounds.stat().st_size
            eventually(lambda done=done: rounds.stat().st_size > done + 3, "progress")
            memory._membership.master()
            killed.add(master_pid(memory))
            kill(master_pid(memory))
            number = 100 + len(killed)
            assert is_right(memory, number)
        stop.touch()
        assert all_ended_well(readers)
        assert len(killed) == 3
        with pytest.raises(Corrupt):
            memory.read(extent(chunk(CORRUPT)), 0, 1)
        found = memory.statistics()
        assert (found.joins, found.fallbacks) == (4, 1)
    assert (source.payloads, source.ranges) == (1 + 18 + 3 + 1, 1), "adopted, not fetched again"


def test_members_that_find_no_master_at_once_use_the_same_one(
    folder: TaskFolder, source: LoggedSource
) -> None:
    members = [opened(folder, source) for _ in range(4)]
    try:
        kill(master_pid(members[0]))
        threads = [
            threading.Thread(target=is_right, args=(member, number))
            for number, member in enumerate(members)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({master_pid(member) for member in members}) == 1
        assert source.payloads == 4
    finally:
        for member in members:
            member.close()


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_member_whose_plan_cannot_be_followed_any_more_joins_the_next_master(
    folder: TaskFolder, source: LoggedSource, has_ended: bool
) -> None:
    """The epoch has ended, or the plan's snapshot was removed."""
    plan = ReadingPlan("1-a", np.arange(1, dtype=np.uint32), np.array([0, 1]), "/removed")
    file = write_plan(folder.path, plan)
    if has_ended:
        file.remove()
    with opened(folder, source) as memory:
        memory.follow(file.path)
        kill(master_pid(memory))
        assert is_right(memory, 1)
        assert memory.statistics().fallbacks == 0
    assert (source.payloads, source.ranges) == (1, 0)


def test_when_the_process_that_leads_is_killed_its_members_go_on(
    folder: TaskFolder, source: LoggedSource, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    leader = SPAWN.Process(target=open_and_wait, args=(folder, source, ready, True))
    with killed_at_the_end(leader):
        eventually(ready.exists, "a leader")
        with opened(folder, source) as memory:
            assert master_pid(memory) == leader.pid
            assert is_right(memory, 1)
            leader.kill()
            assert is_right(memory, 2)
            assert master_pid(memory) != leader.pid
            memory._blocks.mapped.clear()
            assert is_right(memory, 1)
            assert memory.statistics().fallbacks == 0
    assert source.payloads == 2


def test_when_the_process_that_leads_ends_in_order_its_members_keep_the_files(
    folder: TaskFolder, source: LoggedSource
) -> None:
    with opened(folder, source, lead=True) as leading:
        assert master_pid(leading) == os.getpid()
        memory = opened(folder, source)
        assert is_right(leading, 1)
    assert is_right(memory, 1)
    assert is_right(memory, 2)
    assert master_pid(memory) != os.getpid()
    memory.close()
    assert (source.payloads, source.ranges) == (2, 0)


def test_a_member_that_never_led_leaves_no_files_of_a_leader_that_ended_before(
    folder: TaskFolder, source: LoggedSource
) -> None:
    """As the server of a refreshed mount that nobody has read through."""
    former = opened(folder, source, lead=True)
    with opened(folder, source, lead=True):
        assert is_right(former, 1)
        former.close()
        assert folder.chunks.exists()
    assert not folder.path.exists()


def test_a_member_that_ends_leaves_the_files_to_the_leader(
    folder: TaskFolder, source: LoggedSource
) -> None:
    with opened(folder, source, lead=True) as leading:
        with opened(folder, source, lead=True) as member:
            assert is_right(member, 1)
        assert is_right(leading, 1)
    assert source.payloads == 1


def test_a_process_that_may_lead_takes_over_from_a_helper_that_died(
    folder: TaskFolder, source: LoggedSource
) -> None:
    with opened(folder, source) as client, opened(folder, source, lead=True) as mount:
        assert master_pid(mount) == master_pid(client) != os.getpid()
        assert is_right(client, 1)
        kill(master_pid(mount))
        assert is_right(mount, 2)
        assert master_pid(mount) == os.getpid()
        assert is_right(client, 3)
        assert master_pid(client) == os.getpid()
        assert is_right(client, 1)
    assert source.payloads == 3


def test_after_all_were_killed_the_next_adopts_what_is_there(
    folder: TaskFolder, source: LoggedSource, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    with killed_at_the_end(
        SPAWN.Process(target=open_and_wait, args=(folder, source, ready, False))
    ):
        eventually(ready.exists, "a member")
        member = RemoteMaster(folder.socket_path)
        kill(member.pid)
        member.close()
    assert os.listdir(folder.chunks)
    with opened(folder, source) as memory:
        assert is_right(memory, 1)
        assert is_right(memory, 2)
        assert memory.statistics().fallbacks == 0
    assert source.payloads == 2


def test_a_new_master_is_told_what_its_members_map_and_members_what_has_left(
    folder: TaskFolder, source: LoggedSource
) -> None:
    with opened(folder, source) as memory:
        assert is_right(memory, 1)
        assert is_right(memory, 2)
        memory.expect([str(chunk(number).id) for number in (1, 2, 3)])
        kill(master_pid(memory))
        (folder.chunks / str(chunk(1).id)).unlink()  # as if evicted without a word
        assert is_right(memory, 3)
        found = memory.statistics()
        assert (found.joins, found.mapped_blocks) == (2, 2)
        memory.discard(chunk(2).id)
        numbers = itertools.count(CORRUPT + 1)
        eventually(
            lambda: is_right(memory, next(numbers)) and is_dropped(memory, 2),
            "news of the new master",
        )


def test_a_new_master_is_told_the_quota(folder: TaskFolder, source: LoggedSource) -> None:
    with opened(folder, source) as memory:
        memory.set_quota(CHUNK_BYTES)
        memory.expect([str(chunk(1).id)], 2 * CHUNK_BYTES)
        kill(master_pid(memory))
        assert is_right(memory, 1)
        node = memory.statistics().node
        assert node is not None
        assert node.budget_bytes == 2 * CHUNK_BYTES
        memory.expect([])
        assert memory.cached_bytes() == CHUNK_BYTES
        memory.set_quota(None)
        node = memory.statistics().node
        assert node is not None
        assert node.budget_bytes > 2 * CHUNK_BYTES


def is_dropped(memory: NodeMemory, number: int) -> bool:
    return str(chunk(number).id) not in set(memory._blocks.mapped.names())


def test_a_member_that_nobody_calls_leads_when_its_leader_has_ended(
    folder: TaskFolder, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server of a mount that is read by its peers alone."""
    monkeypatch.setattr(node_memory, "Succession", partial(Succession, look_s=0.001))
    peers = PeerSettings("task", TaskSecret(b"0123456789abcdef"), StaticPeers(()))
    former = opened(folder, source, lead=True)
    with opened(folder, source, lead=True, peers=peers) as member:
        membership = member._membership
        assert membership.has_master()
        assert membership._leader is None
        former.close()
        eventually(lambda: membership._leader is not None, "its leadership")
        assert is_right(member, 1)


def test_a_master_that_is_given_up_while_another_thread_looks_at_it_stays_so(
    folder: TaskFolder, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Poll:
        def register(self, *_: object) -> None:
            pass

        def poll(self, timeout_ms: int) -> list[object]:
            master.is_gone = True
            return []

    with opened(folder, source, lead=True), closing(RemoteMaster(folder.socket_path)) as master:
        assert not master.has_ended()
        with monkeypatch.context() as patched:
            patched.setattr(remote_master, "select", SimpleNamespace(poll=Poll, POLLRDHUP=0))
            assert master.has_ended()


def test_a_client_whose_helper_is_killed_at_its_start_starts_another(
    folder: TaskFolder, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = master_process._start_process, list[object]()

    def start_one_that_ends(given: IO[bytes]) -> subprocess.Popen[bytes]:
        started.append(given)
        if len(started) > 1:
            return start(given)
        return subprocess.Popen(["true"], stdout=subprocess.PIPE)

    monkeypatch.setattr(master_process, "_start_process", start_one_that_ends)
    with opened(folder, source) as memory:
        assert len(started) == 2
        assert is_right(memory, 1)
        assert memory.statistics().fallbacks == 0


def test_a_helper_has_its_log_also_if_its_folder_was_swept(
    folder: TaskFolder, source: LoggedSource
) -> None:
    assert sweep(folder.path.parent) == 1
    with opened(folder, source) as memory:
        assert is_right(memory, 1)
        assert (folder.path / LOG).read_text() == ""
        assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_client_whose_helpers_all_end_at_their_start_reads_without(
    folder: TaskFolder, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[object]()

    def start_one_that_ends(given: IO[bytes]) -> subprocess.Popen[bytes]:
        started.append(given)
        return subprocess.Popen(["true"], stdout=subprocess.PIPE)

    monkeypatch.setattr(master_process, "_start_process", start_one_that_ends)
    with opened(folder, source) as memory:
        assert is_right(memory, 1)
        assert memory.statistics().fallbacks == 1
    assert len(started) == 2


def test_what_a_killed_starter_has_left_stops_nobody(
    folder: TaskFolder, source: LoggedSource
) -> None:
    (folder.path / _STARTER).touch()
    folder.socket_path.touch()
    with opened(folder, source) as memory:
        assert is_right(memory, 1)
        assert memory.statistics().joins == 1


def test_a_master_that_hangs_is_read_past(
    folder: TaskFolder, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another member stays, or the helper might end before the one that gave it up is back.
    with opened(folder, source) as memory, closing(RemoteMaster(folder.socket_path)):
        helper = master_pid(memory)
        stop(helper)
        try:
            with monkeypatch.context() as patched:
                patched.setattr(remote_master, "ANSWER_TIMEOUT_S", 0.1)
                patched.setattr(remote_master, "CONNECT_TIMEOUT_S", 0.1)
                patched.setattr(task_session, "PATIENCE_S", 0.1)
                assert is_right(memory, 1)
                assert memory.statistics().fallbacks == source.ranges == 1
        finally:
            os.kill(helper, signal.SIGCONT)
        memory._membership._try_again_at = 0.0  # some seconds later
        assert is_right(memory, 2)
        assert master_pid(memory) == helper
        assert memory.statistics().fallbacks == 1


class Unknown(LoggedSource):
    """Pickles to what nobody can make."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("not a number",)


@pytest.mark.usefixtures("helpers_start_python")
def test_a_source_that_cannot_be_made_elsewhere_is_told_apart(
    folder: TaskFolder, tmp_path: Path
) -> None:
    source = Unknown(tmp_path / "asked")
    settings = MemorySettings(folder, None, "uniform", LINGER_S)
    with pytest.raises(SourceNotPortable, match="not a number"):
        master_process.start(settings, source)
    with opened(folder, source) as memory:
        assert is_right(memory, 1)
        assert memory._membership.folder != folder


def test_a_helper_that_cannot_serve_says_why(folder: TaskFolder, source: LoggedSource) -> None:
    folder.socket_path.mkdir()
    settings = MemorySettings(folder, None, "uniform", LINGER_S)
    with pytest.raises(MasterGone, match="directory"):
        master_process.start(settings, source)
    assert "Traceback" in (folder.path / LOG).read_text()


SCRIPT = """
import sys
from pathlib import Path
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.cache.node.task_folder import TaskFolder
from tests.dieselfs.cache.logged_source import LoggedSource, chunk, extent
from tests.dieselfs.cache.patience import be_patient_members
be_patient_members()
memory = NodeMemory.open(TaskFolder(Path(sys.argv[1])), LoggedSource(Path(sys.argv[2])), linger_s=0.2)
assert len(memory.read(extent(chunk(1)), 0, 10)) == 10
"""


def test_a_program_that_never_closes_it_ends_in_silence(
    folder: TaskFolder, source: LoggedSource
) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, folder.path, source.log],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    eventually(lambda: not folder.path.exists(), "an end of the helper")
