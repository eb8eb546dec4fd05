"""Nodes of a cluster on one machine: network namespaces on a bridge, each with a tmpfs folder of
its own, and faults between them.

The bridge is in a namespace of its own (the hub), so the machine's network is untouched, and all
networks use the same names and addresses without meeting. A namespace lives as long as the
processes in it: the first of them, which does nothing, is ended by the kernel when the test run
dies. What else a node has left, daemons and mounts, is ended with the network, or by whoever makes
the next one if the test run was killed. Needs root.

    with network_nodes(3) as network:
        server = network.nodes[0].start([sys.executable, "-m", "http.server"])
        network.nodes[1].cut_off()
        ...
        network.nodes[1].heal()
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.eventually import eventually
from tests.services.redis_processes import RedisProcess

REPOSITORY: Final = Path(__file__).parents[2]
TMPFS: Final = Path("/dev/shm")
MARK: Final = "DIESELFS_TEST_NETWORK"
"""In the environment of all that runs in a node: the folder of its network."""
END_S: Final = 60.0
_PREFIX: Final = "dieselfs-nodes-"
_DEVICE: Final = "eth0"
_ESTABLISHED, _LISTEN = "01", "0A"
"""In /proc/net/tcp."""
_OWN: Final = (
    ("DIESELFS_MEMORY_FOLDER", "memory"),
    ("HOME", "home"),
    ("XDG_CONFIG_HOME", "home/.config"),
    ("XDG_DATA_HOME", "home/.local/share"),
    ("XDG_STATE_HOME", "home/.local/state"),
    ("XDG_CACHE_HOME", "home/.cache"),
)
"""Variables that name a folder of the node's."""


@dataclass(frozen=True, slots=True)
class Node:
    """A host, as far as its processes see: an address, a network that may fail, and folders that no
    other node has.

    Processes keep the machine's mounts, so what a node mounts can be read from outside too, and is
    best mounted below `folder`. Faults replace each other, but for the link, which is a fault of
    its own.
    """

    name: str
    address: str
    folder: Path
    """On a tmpfs; removed with the network, and so is what is mounted below."""
    holder: int
    """The process that keeps the namespace."""
    network: Path
    """The network's folder."""

    @property
    def inside(self) -> list[str]:
        """The beginning of a command that runs in this node, in the process that is started."""
        return ["nsenter", f"--net=/proc/{self.holder}/ns/net", "--"]

    @property
    def environment(self) -> dict[str, str]:
        own = {variable: os.fspath(self.folder / folder) for variable, folder in _OWN}
        return {
            **os.environ,
            **own,
            "PYTHONPATH": os.fspath(REPOSITORY),
            MARK: os.fspath(self.network),
        }

    def start(
        self, command: Sequence[str | Path], environment: Mapping[str, str] = {}, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a program in this node; SIGKILLed when the thread that calls this ends. `options`
        are those of `Popen`."""
        guarded = [*self.inside, "setpriv", "--pdeathsig", "KILL", *map(os.fspath, command)]
        return subprocess.Popen(guarded, env={**self.environment, **environment}, **options)

    def run(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str] = {},
        timeout_s: float = 120.0,
    ) -> str:
        """Run a program to its end; what it prints. What it has started itself goes on.
        `AssertionError` with its errors if it fails."""
        done = subprocess.run(
            [*self.inside, *map(os.fspath, command)],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{command} in {self.name}: {done.stderr}"
        return done.stdout

    def cut_off(self, peer: Node | None = None) -> None:
        """Drop all that comes and goes, from and to `peer` if one is named: connections hang."""
        self._filter(
            arriving=f"{_from(peer)} drop",
            leaving=f"{_to(peer)} drop",
        )

    def deafen(self, peer: Node | None = None) -> None:
        """Drop what arrives; what is sent goes out."""
        self._filter(arriving=f"{_from(peer)} drop")

    def mute(self, peer: Node | None = None) -> None:
        """Drop what is sent; what arrives comes in."""
        self._filter(leaving=f"{_to(peer)} drop")

    def reset(self, peer: Node | None = None) -> None:
        """Answer all TCP that arrives with a reset: connections break at once."""
        self._filter(arriving=f"{_from(peer)} meta l4proto tcp reject with tcp reset")

    def lose(self, percent: int) -> None:
        """Drop so much of what arrives, and of what is sent, at random."""
        chance = f"numgen random mod 100 < {percent} drop"
        self._filter(arriving=f"{_from(None)} {chance}", leaving=f"{_to(None)} {chance}")

    def heal(self) -> None:
        """End all of the above."""
        self._filter()

    def unplug(self) -> None:
        """The link is down: what is sent fails, with an error where a new connection is made."""
        self._ip("link", "set", _DEVICE, "down")

    def plug(self) -> None:
        self._ip("link", "set", _DEVICE, "up")

    def limit_rate(self, bytes_per_s: int) -> None:
        """Of what is sent, from now on."""
        limit = ["tbf", "rate", f"{8 * bytes_per_s}bit", "burst", "64kb", "latency", "100ms"]
        self.run(["tc", "qdisc", "replace", "dev", _DEVICE, "root", *limit])

    def unlimit_rate(self) -> None:
        self.run(["tc", "qdisc", "del", "dev", _DEVICE, "root"])

    def processes(self) -> list[int]:
        """What runs here now, but for the holder of the namespace."""
        own = os.stat(f"/proc/{self.holder}/ns/net").st_ino
        return [
            pid for pid in _marked(self.network) if pid != self.holder and _namespace(pid) == own
        ]

    def end_processes(self) -> None:
        """SIGKILL for all that runs here, as when a host dies; its folder and its mounts stay."""
        deadline = time.monotonic() + END_S
        while pids := self.processes():
            assert time.monotonic() < deadline, f"processes {pids} of {self.name} do not end"
            for pid in pids:
                _kill(pid, self.network)

    def sent_bytes(self) -> int:
        """By its device, since it was made."""
        return self._counted(8)

    def received_bytes(self) -> int:
        return self._counted(0)

    def established(self) -> int:
        """TCP connections to servers of this node."""
        lines = Path(f"/proc/{self.holder}/net/tcp").read_text().splitlines()[1:]
        found = [(line.split()[1].rpartition(":")[2], line.split()[3]) for line in lines]
        listening = {port for port, state in found if state == _LISTEN}
        return sum(port in listening and state == _ESTABLISHED for port, state in found)

    def _counted(self, column: int) -> int:
        lines = Path(f"/proc/{self.holder}/net/dev").read_text().splitlines()
        [counts] = [line.split(":")[1] for line in lines if line.strip().startswith(_DEVICE)]
        return int(counts.split()[column])

    def _filter(self, arriving: str = "", leaving: str = "") -> None:
        """One rule each way, in one transaction."""
        rules = f"""
            table inet faults
            delete table inet faults
            table inet faults {{
                chain arriving {{
                    type filter hook input priority 0
                    {arriving}
                }}
                chain leaving {{
                    type filter hook output priority 0
                    {leaving}
                }}
            }}
            """
        subprocess.run([*self.inside, "nft", "-f", "-"], input=rules, text=True, check=True)

    def _ip(self, *arguments: str) -> None:
        subprocess.run([*self.inside, "ip", *arguments], check=True)


@dataclass(frozen=True, slots=True)
class Network:
    folder: Path
    """On a tmpfs, removed at the end."""
    hub: Node
    """Whose address all nodes reach; for servers that are no nodes themselves."""
    nodes: tuple[Node, ...]

    def redis(self, *options: str) -> RedisProcess:
        """A Redis that the nodes reach, and this process too, which is not in their network."""
        folder = self.folder / "redis"
        return RedisProcess(folder, *options, host=self.hub.address, inside=self.hub.inside)


@contextmanager
def network_nodes(count: int) -> Iterator[Network]:
    """A network of `count` nodes. At its end nothing is left of it: no process, no mount, no
    file."""
    _sweep()
    owner = f"{_PREFIX}{os.getpid()}-{_began(os.getpid())}-"
    folder = Path(tempfile.mkdtemp(prefix=owner, dir=TMPFS))
    try:
        hub = _node("hub", "10.0.0.1", folder)
        hub._ip("link", "add", "bridge", "type", "bridge")
        hub._ip("addr", "add", f"{hub.address}/24", "dev", "bridge")
        hub._ip("link", "set", "bridge", "up")
        nodes = tuple(_node(f"node{n}", f"10.0.0.{n + 2}", folder) for n in range(count))
        for node in nodes:
            _connect(node, hub)
        yield Network(folder, hub, nodes)
    finally:
        _remove(folder)


def _node(name: str, address: str, network: Path) -> Node:
    """A namespace with nothing but a loopback."""
    folder = network / name
    for _, own in _OWN:
        (folder / own).mkdir(mode=0o700, parents=True, exist_ok=True)
    command = ["unshare", "--net", "setpriv", "--pdeathsig", "KILL", "sleep", "infinity"]
    nothing = subprocess.DEVNULL
    environment = {**os.environ, MARK: os.fspath(network)}
    holder = subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing)
    own_network = os.readlink("/proc/self/ns/net")

    def is_apart() -> bool:
        assert holder.poll() is None, "no network namespace can be made: is this root?"
        return os.readlink(f"/proc/{holder.pid}/ns/net") != own_network

    eventually(is_apart, "unshare makes a network namespace")
    _holders[holder.pid] = holder
    node = Node(name, address, folder, holder.pid, network)
    node._ip("link", "set", "lo", "up")
    return node


_holders: dict[int, subprocess.Popen[bytes]] = {}
"""Children of this process, which it has to wait for."""


def _connect(node: Node, hub: Node) -> None:
    pair = ["type", "veth", "peer", "name", _DEVICE, "netns", str(node.holder)]
    hub._ip("link", "add", node.name, *pair)
    hub._ip("link", "set", node.name, "master", "bridge", "up")
    node._ip("addr", "add", f"{node.address}/24", "dev", _DEVICE)
    node.plug()


def _from(peer: Node | None) -> str:
    return f"iifname {_DEVICE}" + (f" ip saddr {peer.address}" if peer else "")


def _to(peer: Node | None) -> str:
    return f"oifname {_DEVICE}" + (f" ip daddr {peer.address}" if peer else "")


def _remove(folder: Path) -> None:
    """All that belongs to a network: mounts first, so that whoever waits for one gets an error and
    can end."""
    _unmount_below(folder)

    def is_empty() -> bool:
        for pid in (marked := _marked(folder)):
            _kill(pid, folder)
            if pid in _holders:
                _holders.pop(pid).wait()
        return not marked

    eventually(is_empty, f"the end of the processes of {folder}")
    _unmount_below(folder)
    shutil.rmtree(folder)


def _sweep() -> None:
    """What test runs have left that were killed."""
    for folder in TMPFS.glob(f"{_PREFIX}*"):
        pid, began, _ = folder.name.removeprefix(_PREFIX).split("-", 2)
        if _began(int(pid)) != began:
            with suppress(FileNotFoundError):  # another test run sweeps too
                _remove(folder)


def _unmount_below(folder: Path) -> None:
    lines = [
        line.split()
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    ]
    for fields in lines:
        point = Path(fields[4].encode().decode("unicode_escape"))
        if point.is_relative_to(folder):
            subprocess.run(["umount", "--lazy", point], check=False)


def _marked(folder: Path) -> list[int]:
    return [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if _is_marked(int(process.name), folder)
    ]


def _namespace(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # ended meanwhile
        return 0


def _is_marked(pid: int, folder: Path) -> bool:
    try:
        return f"{MARK}={folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile
        return False


def _kill(pid: int, folder: Path) -> None:
    """This very process, not one that has its number by now."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _is_marked(pid, folder):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            select.select([fd], [], [], END_S)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def _began(pid: int) -> str:
    """When it started, in the kernel's ticks; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""
