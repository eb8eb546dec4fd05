"""Nodes as network namespaces: what they reach, what each fault does to a connection, and that
nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.eventually import PATIENCE_S, eventually
from tests.services.network_nodes import REPOSITORY, Network, Node, network_nodes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are made by root")

_ECHO = """
import socket, threading
listener = socket.create_server(("0.0.0.0", 7))
print("ready", flush=True)
def serve(peer):
    while data := peer.recv(100):
        peer.sendall(data)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
_ASK = """
import socket, sys
peer = None
for line in sys.stdin:
    patience_s, order, *address = line.split()
    try:
        if order == "connect":
            peer = socket.create_connection((*address, 7), float(patience_s))
        else:
            peer.settimeout(float(patience_s))
            peer.sendall(b"x" * 100)
            got = 0
            while got < 100:
                got += len(peer.recv(100)) or sys.exit("ended")
        print("ok", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""

SILENCE_S = 0.2
"""The time after which an answer is not waited for any more."""


@pytest.fixture
def network() -> Iterator[Network]:
    with network_nodes(3) as network:
        yield network


@contextmanager
def program(node: Node, text: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    process = node.start([sys.executable, "-S", "-c", text], stdin=pipe, stdout=pipe, text=True)
    with process:
        try:
            yield process
        finally:  # a program that goes on would be waited for without end
            process.kill()


def answer(process: subprocess.Popen[str], order: str, patience_s: float = SILENCE_S) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{patience_s} {order}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def is_served(process: subprocess.Popen[str], by: Node) -> bool:
    return answer(process, f"connect {by.address}") == "ok" and answer(process, "send") == "ok"


def _unplug(node: Node, _: Node) -> None:
    node.unplug()


FAULTS: dict[str, tuple[Callable[[Node, Node], None], str, str]] = {
    "cut off": (lambda node, _: node.cut_off(), "TimeoutError", "TimeoutError"),
    "cut off from one": (lambda node, peer: node.cut_off(peer), "TimeoutError", "TimeoutError"),
    "deaf": (lambda node, _: node.deafen(), "TimeoutError", "TimeoutError"),
    "mute for one": (lambda node, peer: node.mute(peer), "TimeoutError", "TimeoutError"),
    "resetting": (lambda node, _: node.reset(), "ConnectionResetError", "ConnectionRefusedError"),
    "unplugged": (_unplug, "TimeoutError", "TimeoutError"),
}
"""What is done to the node that serves, what becomes of a connection that was there, and what of a
new one."""


def test_faults_and_their_ends(network: Network) -> None:
    served, asking, other = network.nodes
    with (
        program(served, _ECHO) as echo,
        program(asking, _ASK) as client,
        program(other, _ASK) as bystander,
    ):
        assert echo.stdout is not None
        assert echo.stdout.readline() == "ready\n"
        sent = served.sent_bytes()
        eventually(lambda: is_served(client, served), "service")  # within 0.2 s
        assert served.sent_bytes() - sent >= 100
        eventually(lambda: (served.established(), asking.established()) == (1, 0), "one connection")
        for fault, (begin, of_old, of_new) in FAULTS.items():
            eventually(lambda: is_served(client, served), f"service before {fault}")
            begin(served, asking)
            # Only silence ends by the clock: a busy machine delivers an answer late.
            patience_s = SILENCE_S if of_old == of_new == "TimeoutError" else PATIENCE_S
            assert answer(client, "send", patience_s) == of_old, fault
            assert answer(client, f"connect {served.address}", patience_s) == of_new, fault
            if fault in ("cut off from one", "mute for one"):
                eventually(lambda: is_served(bystander, served), f"others beside {fault}")
            else:
                assert answer(bystander, f"connect {served.address}", patience_s) == of_new, fault
            served.heal()
            served.plug()
            eventually(lambda: is_served(client, served), f"the end of {fault}")


def test_a_redis_for_all_nodes_and_for_the_test(network: Network) -> None:
    with network.redis() as server:
        with server.client() as client:
            client.set("k", "v")
        address = ["-h", network.hub.address, "-p", str(server.port)]
        for node in network.nodes:
            assert node.run(["redis-cli", *address, "get", "k"]) == "v\n"


def left_in(node: Node) -> int:
    """The process that `run` left. In the moments of an exec it shows no environment."""

    def running() -> list[int]:
        return [
            pid for pid in node.processes() if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
        ]

    [left] = eventually(running, f"a process in {node.name}", ignored=OSError)
    return left


def test_a_node_s_processes_end_and_no_other(network: Network) -> None:
    first, second, _ = network.nodes
    for node in (first, second):
        node.run(["sh", "-c", "setsid sleep infinity >/dev/null 2>&1 &"])
    left, of_the_first = left_in(second), left_in(first)
    assert first.processes() == [of_the_first]
    first.end_processes()
    assert first.processes() == []
    assert second.processes() == [left]
    assert second.run(["echo", "there"]) == "there\n"


def test_two_networks_at_once_do_not_meet(network: Network) -> None:
    with network_nodes(1) as second:
        assert second.nodes[0].address == network.nodes[0].address
        with program(network.nodes[0], _ECHO) as echo, program(second.nodes[0], _ASK) as client:
            assert echo.stdout is not None
            assert echo.stdout.readline() == "ready\n"
            order = f"connect {second.nodes[0].address}"
            assert answer(client, order, PATIENCE_S) == "ConnectionRefusedError"


@pytest.fixture
def own_tmpfs(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for networks in which no other test run sweeps."""
    monkeypatch.setattr("tests.services.network_nodes.TMPFS", short_folder)
    yield short_folder
    with network_nodes(0):
        pass


def test_nothing_is_left_of_a_killed_run(own_tmpfs: Path) -> None:
    program = """if True:
        import sys
        from pathlib import Path
        from tests.eventually import eventually
        from tests.services import network_nodes
        network_nodes.TMPFS = Path(sys.argv[1])
        with network_nodes.network_nodes(1) as network:
            node = network.nodes[0]
            print(network.folder, flush=True)
            node.run(["mount", "-t", "tmpfs", "tmpfs", node.folder / "home"])
            node.run(["sh", "-c", "setsid sleep infinity >/dev/null 2>&1 & echo $!"])
            print(eventually(node.processes), flush=True)
            input()
        """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program, own_tmpfs],
        stdin=pipe,
        stdout=pipe,
        text=True,
        cwd=REPOSITORY,
    ) as run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().strip())
        [left] = [int(pid) for pid in run.stdout.readline().strip("[]\n").split(",")]
        with network_nodes(0):
            assert folder.exists(), "its owner lives"
        run.send_signal(signal.SIGKILL)
    assert folder.exists()
    assert Path(f"/proc/{left}").exists()
    with network_nodes(0):
        pass
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text(errors="replace")
    eventually(lambda: not Path(f"/proc/{left}").exists(), "the end of what was left")
