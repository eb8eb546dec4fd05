"""Real Redis servers and clusters on free ports of this machine, in folders of their own.

A process is ended by its id when its owner closes it, and by the kernel if the test run dies first.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import redis
from redis.crc import key_slot

from tests.eventually import eventually
from tests.stopping import stop

BOUNDS = [0, 5461, 10923, 16384]
"""The masters of a cluster divide the slots at these."""
MEETING_S = 6.0
"""Redis forgets a node that does not answer for a second or two, and asks it no more."""
FAIL_OVER_S = 6.0
"""Redis gives up a fail-over by hand after 5 s."""
_PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to whoever names none, at any time."""
_LOCKS = os.open(
    f"/tmp/dieselfs-test-ports-{os.geteuid()}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
)
"""A process locks the byte of each port that it was given, until it ends."""
_given: set[int] = set()


def free_port() -> int:
    """Return a port that is free just now, and that no other process of the tests is given."""
    while True:
        port = random.choice(_PORTS)
        if port in _given:
            continue
        try:
            fcntl.lockf(_LOCKS, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            _given.add(port)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return port


@contextmanager
def refusing_port() -> Iterator[int]:
    """A port that refuses connections: nobody else can listen there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


class RedisProcess:
    """One redis-server. `stop` and `start` again keep its data and port."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        cluster: bool = False,
        host: str = "127.0.0.1",
        inside: Sequence[str] = (),
    ) -> None:
        """`inside`: what a command begins with that runs in another network, where `host` is;
        clients of here then use a socket in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._options = options
        self._cluster = cluster
        self._host = host
        self._inside = list(inside)
        self._process: subprocess.Popen[bytes] | None = None
        for attempt in range(5):
            self.port = free_port()
            self.bus_port = free_port() if cluster else None
            try:
                self.start()
                return
            except RuntimeError:  # somebody was faster with the port
                if attempt == 4:
                    raise

    @property
    def url(self) -> str:
        return f"redis://{self._host}:{self.port}/0"

    def client(self) -> redis.Redis:
        if self._inside:
            return redis.Redis(unix_socket_path=str(self._folder / "socket"), socket_timeout=10)
        return redis.Redis(port=self.port, socket_timeout=10)

    def start(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise FileNotFoundError("redis-server: install the package of that name")
        command = [program, "--bind", self._host, "--port", str(self.port), "--save", ""]
        command += ["--dir", str(self._folder), "--logfile", "log", "--daemonize", "no"]
        command += ["--appendonly", "yes", "--appendfsync", "no"]  # kept over kill -9, not power
        if self._cluster:
            command += ["--cluster-enabled", "yes", "--cluster-port", str(self.bus_port)]
        command += self._options
        if self._inside:
            command += ["--unixsocket", str(self._folder / "socket"), "--protected-mode", "no"]
        if guard := shutil.which("setpriv"):
            command = [guard, "--pdeathsig", "KILL", *command]
        command = [*self._inside, *command]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            eventually(self._answers, "an answer of redis-server", ignored=redis.RedisError)
        except BaseException:
            self.stop()
            raise

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            log = (self._folder / "log").read_text() if (self._folder / "log").exists() else ""
            raise RuntimeError(f"redis-server ended at start:\n{log[-2000:]}")
        with self.client() as client:
            return bool(client.info("server")["process_id"] == self._process.pid)

    def stop(self) -> None:
        """As abruptly as a crash; what was acknowledged is there after `start`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def forget(self) -> None:
        """When stopped: as if it had kept nothing."""
        shutil.rmtree(self._folder / "appendonlydir", ignore_errors=True)

    def lose_all(self) -> None:
        """A crash after which it starts empty."""
        self.stop()
        self.forget()
        self.start()

    def pause(self) -> None:
        assert self._process is not None
        stop(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> RedisProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class RedisCluster:
    """Three masters with a replica each. Up in about three seconds."""

    def __init__(self, folder: Path, node_timeout_ms: int = 2000) -> None:
        self.nodes: list[RedisProcess] = []
        try:
            for number in range(6):
                self.nodes.append(
                    RedisProcess(
                        folder / str(number),
                        *("--cluster-node-timeout", str(node_timeout_ms)),
                        *("--repl-diskless-sync-delay", "0"),
                        cluster=True,
                    )
                )
            self._join()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])

    def masters(self) -> list[RedisProcess]:
        """Of the running nodes, those that are masters now."""
        return [node for node in self.nodes if node._process and self._role(node) == "master"]

    def fail_over(self, key: bytes) -> tuple[RedisProcess, RedisProcess]:
        """Let the master of a key and its replica change places; return both, the former first.

        One that a busy machine does not end in time is asked for again.
        """
        number = next(n for n in range(3) if key_slot(key) < BOUNDS[n + 1])
        former, present = self.nodes[number], self.nodes[number + 3]

        def is_done() -> bool:
            return {former, present} & set(self.masters()) == {present} and self.is_whole()

        def ends() -> bool:
            if self._role(present) != "master":
                self._ask(present, "CLUSTER", "FAILOVER")
            return eventually(is_done, timeout_s=FAIL_OVER_S, ignored=redis.RedisError)

        eventually(ends, "a fail-over", ignored=(redis.RedisError, AssertionError))
        return former, present

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def bear_pauses(self) -> None:
        """Fail over when asked, and not because a busy machine has paused a node for seconds."""
        for node in self.nodes:
            with node.client() as client:
                client.config_set("cluster-node-timeout", 15_000)

    def rest(self) -> None:
        """Look after each other once a second, as is enough for a cluster that nobody stops: six
        idle nodes would take 2 % of a core."""
        self.bear_pauses()
        for node in self.nodes:
            with node.client() as client:
                client.config_set("hz", 1)

    def bear_stalls(self) -> None:
        """Take no node for failed that a busy machine stalls."""
        for node in self.nodes:
            with node.client() as client:
                client.config_set("cluster-node-timeout", 60_000)

    def is_whole(self) -> bool:
        """Every slot is served, every node agrees, every replica follows."""
        return all(self._info(node)["cluster_state"] == "ok" for node in self.nodes) and all(
            self._role(node) == "master" or self._follows(node) for node in self.nodes
        )

    def _join(self) -> None:
        ids = [self._ask(node, "CLUSTER", "MYID") for node in self.nodes]
        for number, master in enumerate(self.nodes[:3]):
            self._ask(master, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self._ask(*(master, "CLUSTER", "ADDSLOTSRANGE"), BOUNDS[number], BOUNDS[number + 1] - 1)
        eventually(
            self._meet, "the nodes find each other", ignored=(redis.RedisError, AssertionError)
        )
        for replica, master_id in zip(self.nodes[3:], ids[:3], strict=True):
            eventually(
                lambda replica=replica, master_id=master_id: (
                    self._ask(replica, "CLUSTER", "REPLICATE", master_id) == b"OK"
                ),
                "a replica accepts its master",
                ignored=redis.RedisError,
            )
        eventually(
            lambda: self.is_whole() and len(self.masters()) == 3,
            "the cluster comes up",
            ignored=redis.RedisError,
        )

    def _meet(self) -> bool:
        """Let the nodes find each other, as often as a busy machine makes one of them too late."""
        for node in self.nodes[1:]:
            self._ask(self.nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        return eventually(
            lambda: all(self._info(node)["cluster_known_nodes"] == "6" for node in self.nodes),
            timeout_s=MEETING_S,
        )

    def _ask(self, node: RedisProcess, *words: object) -> object:
        with node.client() as client:
            client.response_callbacks.clear()
            return client.execute_command(*words)

    def _info(self, node: RedisProcess) -> dict[str, str]:
        text = self._ask(node, "CLUSTER", "INFO").decode()
        return dict(line.split(":", 1) for line in text.split())

    def _role(self, node: RedisProcess) -> str:
        with node.client() as client:
            return str(client.info("replication")["role"])

    def _follows(self, node: RedisProcess) -> bool:
        with node.client() as client:
            return client.info("replication").get("master_link_status") == "up"

    def __enter__(self) -> RedisCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
