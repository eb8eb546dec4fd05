"""Which task and which peers a client's memory has; and two clients that are two nodes, each with a
memory folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dieselfs.cache.ports.peer_settings import PeerSettings, StaticPeers
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.ports.task_statistics import MemberStatistics
from dieselfs.cache.task.running_tasks import ask, running_tasks
from dieselfs.errors import UsageError
from tests.dieselfs.client.test_client_memory import Packed
from tests.eventually import PATIENCE_S, eventually
from tests.forked_programs import PATIENT
from tests.mount.mounting import is_alive
from tests.services.redis_processes import free_port

SECRET = "a secret that is long enough"
DEADLINE_S = PATIENCE_S
BUDGET_BYTES = 4 << 20


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return Packed(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def memories(patient_members: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Folders for the memory of two nodes; nobody is left in them afterwards.

    Their masters do not take each other for silent if a busy machine makes one of them late.
    """
    monkeypatch.setenv(PATIENT, "1")
    made = [Path(tempfile.mkdtemp(prefix="dieselfs-test-", dir="/dev/shm")) for _ in range(2)]
    yield made
    for folder in made:
        for task in folder.glob("*/*"):
            if (leader := ask(task).leader_pid) is not None:
                with suppress(ProcessLookupError):  # it has lingered
                    os.kill(leader, signal.SIGTERM)  # rather than wait for it to linger
                eventually(lambda leader=leader: not is_alive(leader), "end of a master")
        eventually(lambda folder=folder: is_removed(folder), f"{folder} is removed")


def is_removed(folder: Path) -> bool:
    """Remove a folder, from which a master that ends may be removing its files too."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def settings(own: int, *ports: int, task: str = "run1") -> PeerSettings:
    addresses = tuple(PeerAddress("127.0.0.1", port) for port in ports)
    return PeerSettings(
        task, TaskSecret(SECRET.encode()), StaticPeers(addresses), listen=addresses[own]
    )


def members(*states: str) -> list[MemberStatistics]:
    """Return those of the task in these states; none if this node's master does not answer."""
    [task] = running_tasks()
    return [m for m in task.peers.members if m.state in states] if task.peers else []


def test_the_environment_names_the_task(packed: Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_TASK", "of-the-environment")
    with packed.client() as client, packed.client() as other:
        client.load_meta(packed.snapshot)
        client.shuffle(memory_bytes=BUDGET_BYTES)
        other.open_memory(task="of-the-code")
        names = {task.name for task in running_tasks()}
    assert "of-the-environment" in names


def test_settings_that_contradict_each_other_are_refused(packed: Packed) -> None:
    with packed.client() as client:
        with pytest.raises(UsageError, match="run2 differs from the task of the peers, run1"):
            client.open_memory(task="run2", peers=settings(0, 1))


def test_variables_that_make_no_sense_are_refused(
    packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_PEERS", "localhost:1")
    with packed.client() as client, pytest.raises(UsageError) as caught:
        client.shuffle()
    assert "DIESELFS_TASK" in str(caught.value.hint)


def test_two_clients_put_their_memory_together(
    packed: Packed, memories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is told by variables alone; a third has nothing but the task's name."""
    ports = [free_port() for _ in memories]
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(memories[0]))
    with packed.client() as one, packed.client() as two, packed.client() as three:
        for client in (one, two, three):
            client.load_meta(packed.snapshot)
        one.open_memory(BUDGET_BYTES, peers=settings(0, *ports))
        monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(memories[1]))
        with monkeypatch.context() as patch:
            patch.setenv("DIESELFS_PEERS", ",".join(f"127.0.0.1:{port}" for port in ports))
            patch.setenv("DIESELFS_PEER_LISTEN", f"127.0.0.1:{ports[1]}")
            patch.setenv("DIESELFS_TASK", "run1")
            patch.setenv("DIESELFS_TASK_SECRET", SECRET)
            two.shuffle(memory_bytes=BUDGET_BYTES)
        three.open_memory(task="run1")
        eventually(lambda: len(members("me", "up")) == 2, "second member")
        for client in (one, two, three):
            assert client.get_many(list(packed.files)) == list(packed.files.values())
        eventually(lambda: [task.processes for task in running_tasks()] == [2], "two processes")
        [own] = eventually(lambda: members("me"), "the master's answer")
        assert own.status.from_peers_bytes > 0
