"""Connections: made once, replaced when they end, of one process each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire import peer_connection
from dieselfs.cache.wire.messages import Data, Ping, Pong, ReadFile
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_server import PeerServer
from dieselfs.errors import PeerFailed, PeerRefused
from tests.dieselfs.cache.peers.plain_chunks import PlainChunks, chunk, content
from tests.dieselfs.cache.peers.scripted_peer import LOOPBACK, SECRET, SOON_S, TASK
from tests.eventually import PATIENCE_S, eventually, scaled_by_load
from tests.services.redis_processes import free_port
from tests.stopping import stop

pytestmark = pytest.mark.usefixtures("patience")

RUNTIME = OperatingSystem()
CHUNK = chunk(1)
READ = ReadFile(CHUNK, 5, 4096, False)
EXPECTED = Data(memoryview(content(CHUNK))[5 : 5 + 4096])


def serve(member: str = "peer", listen: PeerAddress = LOOPBACK) -> PeerServer:
    return PeerServer(RUNTIME, SECRET, TASK, member, listen, PlainChunks([CHUNK]))


@pytest.fixture
def server() -> Iterator[PeerServer]:
    server = serve()
    yield server
    assert server.close(SOON_S)


@pytest.fixture
def peer(server: PeerServer) -> Member:
    return Member("peer", server.address, 1)


@pytest.fixture
def client() -> Iterator[PeerClient]:
    client = PeerClient(RUNTIME, SECRET, TASK, "test")
    yield client
    client.close()


def test_first_users_share_one_connection(
    client: PeerClient, server: PeerServer, peer: Member
) -> None:
    together = threading.Barrier(8)
    answers = []

    def ask() -> None:
        together.wait(SOON_S)
        answers.append(client.ask(peer, READ))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [EXPECTED] * 8
    assert client.connected == 1
    assert server.statistics().accepted == 1
    assert server.statistics().sent_bytes == 8 * 4096, "an answer is counted before it is sent"


def test_several_members_are_asked_at_once(client: PeerClient, peer: Member) -> None:
    other = serve("other")
    try:
        pending = [client.begin(peer, READ), client.begin(Member("other", other.address, 1), READ)]
        assert [one.result() for one in pending] == [EXPECTED] * 2
        assert client.connections() == 2
    finally:
        assert other.close(SOON_S)


def test_a_connection_that_ended_is_replaced(client: PeerClient) -> None:
    # A port that the kernel chooses may be another process's before the second server listens.
    address = PeerAddress("127.0.0.1", free_port())
    server = serve(listen=address)
    peer = Member("peer", address, 1)
    assert client.ask(peer, READ) == EXPECTED
    assert server.close(SOON_S)
    with pytest.raises(PeerFailed):
        client.ask(peer, READ)
    with pytest.raises(PeerFailed):  # nobody listens
        client.ask(peer, READ)
    assert client.connections() == 0
    server = serve(listen=address)
    try:
        assert client.ask(peer, READ) == EXPECTED
        assert client.connected == 2
    finally:
        assert server.close(SOON_S)


def test_a_member_is_followed_to_its_new_address(client: PeerClient, peer: Member) -> None:
    assert client.ask(peer, READ) == EXPECTED
    elsewhere = serve()
    try:
        assert client.ask(Member("peer", elsewhere.address, 1), READ) == EXPECTED
        assert elsewhere.statistics().connections == 1
        assert client.connections() == 1
    finally:
        assert elsewhere.close(SOON_S)


@pytest.mark.parametrize(
    ("secret", "task", "member"),
    [
        (TaskSecret(b"another secret, as long"), TASK, "peer"),
        (SECRET, "another task", "peer"),
        (SECRET, TASK, "another"),
    ],
    ids=["secret", "task", "member"],
)
def test_who_is_not_of_the_task_is_refused(
    server: PeerServer, secret: TaskSecret, task: str, member: str
) -> None:
    stranger = PeerClient(RUNTIME, secret, task, "stranger")
    with pytest.raises(PeerRefused):
        stranger.ask(Member(member, server.address, 1), READ)
    assert stranger.connections() == 0
    eventually(lambda: server.statistics().refused, "a refusal")
    assert server.statistics().refused == 1
    assert server.statistics().connections == 0
    stranger.close()


def test_a_closed_client_makes_no_connection(
    client: PeerClient, server: PeerServer, peer: Member
) -> None:
    client.close()
    with pytest.raises(PeerFailed, match="closed"):
        client.ask(peer, READ)
    assert server.statistics().accepted == 0


def test_a_forked_child_has_connections_of_its_own(
    client: PeerClient, server: PeerServer, peer: Member
) -> None:
    assert client.ask(peer, READ) == EXPECTED
    child = os.fork()
    if not child:
        status = 1
        try:
            assert client.connections() == 0
            for _ in range(50):
                assert client.ask(peer, READ) == EXPECTED
            assert client.connections() == 1
            client.close()
            status = 0
        finally:
            os._exit(status)
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        assert client.ask(peer, READ) == EXPECTED
    assert ended[1] == 0
    assert client.ask(peer, READ) == EXPECTED
    assert client.connected == 1
    assert server.statistics().accepted == 2


STOPPABLE = """
import sys
from tests.dieselfs.cache.patience import be_patient
from tests.dieselfs.cache.wire.test_peer_client import serve
be_patient()
server = serve()
print(server.address.port, flush=True)
sys.stdin.read()
"""


def test_a_stopped_process_costs_a_second_once(
    client: PeerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPABLE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
    )
    try:
        assert process.stdout is not None
        peer = Member("peer", PeerAddress("127.0.0.1", int(process.stdout.readline())), 1)
        assert isinstance(client.ask(peer, Ping()), Pong)
        monkeypatch.setattr(peer_connection, "SILENCE_S", 1.0)
        stop(process.pid)
        begin = time.monotonic()
        with pytest.raises(PeerFailed):
            client.ask(peer, READ)
        assert 0.9 < time.monotonic() - begin < scaled_by_load(10)
        monkeypatch.setattr(peer_connection, "SILENCE_S", PATIENCE_S)
        os.kill(process.pid, signal.SIGCONT)
        assert client.ask(peer, READ) == EXPECTED
    finally:
        process.kill()
        process.communicate()
