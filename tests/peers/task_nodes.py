"""A task on nodes of a network: a dataset on a disk that all of them read, their part in the task's
peer cache, mounts and reading programs."""

from __future__ import annotations

import fcntl
import json
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import xxhash

from benchmarks.shared_slow_store import SharedSlowStore, state_of
from dieselfs.client import Client
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.eventually import PATIENCE_S, eventually
from tests.services.network_nodes import REPOSITORY, Network, Node

READER: Final = Path(__file__).with_name("reader_node.py")
DLCMD: Final = REPOSITORY / "benchmarks/dlcmd_disk.py"
NAME: Final = "d"
TASK: Final = "task"
MEMCACHED_PORT: Final = 11211
PEER_PORT: Final = 7400
"""Machines that run tests stall for many seconds."""
SECRET: Final = "a secret of the nodes of a test"


@dataclass(frozen=True, slots=True)
class PeerDataset:
    disk: Path
    snapshot: Path
    paths: Path
    """See `reader_node`."""
    files: int
    bytes: int
    chunks: int

    def from_store_bytes(self) -> int:
        """What all have read of the disk together, since it was made or `forget`."""
        return state_of(self.disk).bytes

    def set_speed(self, *, seek_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Of whoever opens the disk from now on; the account begins anew."""
        SharedSlowStore.make(self.disk, seek_s=seek_s, bytes_per_s=bytes_per_s)


def make_dataset(
    folder: Path, files: int, size_bytes: int, target_bytes: int = 1 << 20
) -> PeerDataset:
    """Files of random content, `size_bytes` long each, in chunks of about `target_bytes`."""
    disk = folder / "disk"
    SharedSlowStore.make(disk)
    content = random.Random(1).randbytes(size_bytes + files)
    paths = []
    with Client.connect(
        NAME,
        store=SharedSlowStore(disk),
        index=MemoryStore(),
        create=True,
        snapshot_folder=folder / "snapshots",
        target_bytes=target_bytes,
        open_chunks=1,
    ) as client:
        for number in range(files):
            path, data = f"{number % 10}/{number:07d}", content[number : number + size_bytes]
            client.put(data, path)
            paths.append((path, size_bytes, xxhash.xxh3_64_hexdigest(data)))
        client.flush()
        made = client.save_meta()
    (folder / "paths.json").write_text(json.dumps(paths))
    with Snapshot.open(made) as snapshot:
        chunks = snapshot.chunk_count
    SharedSlowStore.make(disk)
    return PeerDataset(disk, made, folder / "paths.json", files, files * size_bytes, chunks)


@dataclass(slots=True)
class Reader:
    """A `reader_node` program; see there for what it may be told."""

    process: subprocess.Popen[str]
    output: Path
    _heard: int = 0
    said: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, **order: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)

    def hear(self) -> list[dict[str, Any]]:
        """All that it has said until now."""
        with self.output.open("rb") as output:
            output.seek(self._heard)
            new = output.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._heard += len(whole)
        self.said += map(json.loads, whole.splitlines())
        return self.said

    def wait_for(self, what: str, after: int = 0, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next thing that it says of this, of those behind the first `after` things."""
        found: list[dict[str, Any]] = []

        def is_said() -> bool:
            found.extend(said for said in self.hear()[after:] if what in said)
            assert found or self.process.poll() is None, f"the reader has ended before {what}"
            return bool(found)

        eventually(is_said, f"{what} of {self.output}", timeout_s)
        return found[0]

    def read(self, **order: Any) -> dict[str, Any]:
        """To the end, which must come without a failure."""
        before = len(self.hear())
        self.tell(**{"read": "files", **order})
        return self.end_of_read(before)

    def end_of_read(self, after: int = 0, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        ended = self.wait_for("ended", after, timeout_s)
        assert not ended["failure"], ended["failure"]
        return ended

    def statistics(self) -> dict[str, Any]:
        before = len(self.hear())
        self.tell(statistics=True)
        found: dict[str, Any] = self.wait_for("statistics", before)["statistics"]
        return found

    def files(self) -> int:
        """Read until now."""
        return sum(said["files"] for said in self.hear() if "at" in said)

    def close(self) -> None:
        """It leaves the task in order."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait(PATIENCE_S)


@dataclass(slots=True)
class TaskNodes:
    """The nodes of a network as those of one task."""

    network: Network
    dataset: PeerDataset
    index: str
    """URL of the Redis of index and leases; if there is none, the nodes have a static list of each
    other."""
    task: str = TASK
    secret: str = SECRET
    options: Mapping[str, str] = field(default_factory=dict)
    """More variables for all nodes, such as DIESELFS_CACHE_POLICY."""

    def environment(self, node: Node) -> dict[str, str]:
        """How the node takes part, as a user would write it."""
        everybody = ",".join(f"{each.address}:{PEER_PORT}" for each in self.network.nodes)
        by_redis = self.index.startswith("redis")
        return {
            "DIESELFS_STORE": f"disk://{self.dataset.disk}",
            "DIESELFS_INDEX": self.index,
            "DIESELFS_SNAPSHOTS": str(self.dataset.snapshot.parent),
            "DIESELFS_PEERS": "redis" if by_redis else everybody,
            "DIESELFS_PEER_LISTEN": node.address,
            "DIESELFS_PEER_NODES": str(len(self.network.nodes)),
            "DIESELFS_TASK": self.task,
            "DIESELFS_TASK_SECRET": self.secret,
            **self.options,
        }

    @contextmanager
    def clients(
        self,
        memory_bytes: int,
        options: Mapping[str, str] = {},
        nodes: Sequence[Node] | None = None,
    ) -> Iterator[list[Reader]]:
        """A reader through a `Client` on each of the nodes, all by default; a helper process leads
        on its node."""
        order = {
            "kind": "client",
            "paths": str(self.dataset.paths),
            "disk": str(self.dataset.disk),
            "dataset": NAME,
            "snapshot": str(self.dataset.snapshot),
            "memory_bytes": memory_bytes,
            "task": self.task,
        }
        found = self.network.nodes if nodes is None else nodes
        with self._readers([(node, order) for node in found], options) as readers:
            yield readers

    @contextmanager
    def mounts(
        self,
        memory_bytes: int,
        options: Mapping[str, str] = {},
        nodes: Sequence[Node] | None = None,
    ) -> Iterator[list[Reader]]:
        """A reader below a mount by `dlcmd mount` on each of the nodes, all by default; the mount's
        daemon leads on its node."""
        found = self.network.nodes if nodes is None else nodes
        logs: list[Path] = []
        try:
            with ThreadPoolExecutor(len(found)) as pool:
                made = [pool.submit(self.mount, node, memory_bytes, options) for node in found]
            logs += [each.result() for each in made]
            orders = [
                {
                    "kind": "mount",
                    "paths": str(self.dataset.paths),
                    "mountpoint": str(self.mountpoint(node)),
                }
                for node in found
            ]
            with self._readers(list(zip(found, orders, strict=True)), options) as readers:
                yield readers
        except BaseException:
            for log in logs:
                print(f"{log}:\n{log.read_text()}")
            raise
        finally:
            for node in found:
                command = ["umount", "--lazy", self.mountpoint(node)]
                subprocess.run(command, check=False, capture_output=True)
            for log in logs:
                log.unlink()

    @contextmanager
    def memcached_clients(self, memory_mib: int) -> Iterator[list[Reader]]:
        """memcached on each of the nodes, and a reader on each that asks all of them, and the store
        for what they lack. For benchmarks: the nodes take no part in the task."""
        from benchmarks.memcached_server import memcached_command

        order = {
            "kind": "memcached",
            "paths": str(self.dataset.paths),
            "disk": str(self.dataset.disk),
            "snapshot": str(self.dataset.snapshot),
            "servers": [f"{node.address}:{MEMCACHED_PORT}" for node in self.network.nodes],
        }
        servers = []
        try:
            for node in self.network.nodes:
                command = memcached_command(node.address, MEMCACHED_PORT, memory_mib)
                servers.append(node.start(command))
            with self._readers([(node, order) for node in self.network.nodes], {}) as readers:
                yield readers
        finally:
            for server in servers:
                server.kill()
                server.wait()

    def mountpoint(self, node: Node) -> Path:
        return node.folder / "mnt"

    def mount(self, node: Node, memory_bytes: int, options: Mapping[str, str] = {}) -> Path:
        """Mount the dataset in a node's network; the daemon's log, which is not below the node's
        folder."""
        self.mountpoint(node).mkdir(exist_ok=True)
        flags = ["--json", "--no-index", "--prefill", "0", "--memory", str(memory_bytes)]
        said = node.run(
            [sys.executable, DLCMD, "mount", *flags, NAME, self.mountpoint(node)],
            {**self.environment(node), **options},
        )
        return Path(json.loads(said)["log"])

    def master(self, node: Node) -> int:
        """Process id of the node's master, as soon as there is one."""
        lock = lock_of(node.folder / "memory", self.task)
        found = 0

        def is_led() -> bool:
            nonlocal found
            found = locker(lock)
            return found > 0

        eventually(is_led, f"a master of {node.name}")
        return found

    def show(self, node: Node) -> dict[str, Any]:
        """What `dlcmd task show` knows of the task on a node."""
        command = [sys.executable, DLCMD, "task", "show", "--json", self.task]
        document: dict[str, Any] = json.loads(node.run(command, self.environment(node)))
        return document

    @contextmanager
    def _readers(
        self, orders: Sequence[tuple[Node, Mapping[str, Any]]], options: Mapping[str, str]
    ) -> Iterator[list[Reader]]:
        readers: list[Reader] = []
        try:
            for node, order in orders:
                output = node.folder / f"reader-{time.monotonic_ns()}"
                environment = {**self.environment(node), **options}
                with output.open("w") as file:
                    readers.append(Reader(_program(node, order, environment, file), output))
            for reader in readers:
                reader.wait_for("ready")
            yield readers
            for reader in readers:
                reader.close()
        finally:
            for reader in readers:
                reader.process.kill()
                reader.process.communicate()


def read_together(readers: Sequence[Reader], timeout_s: float = PATIENCE_S, **order: Any) -> float:
    """Seconds in which the readers read all files between them: those of the slowest."""
    before = [len(reader.hear()) for reader in readers]
    for rank, reader in enumerate(readers):
        reader.tell(**{"read": "files", **order, "rank": rank, "world": len(readers)})
    ends = [
        reader.end_of_read(said, timeout_s) for reader, said in zip(readers, before, strict=True)
    ]
    return max(float(ended["seconds"]) for ended in ends)


def _program(
    node: Node, order: Mapping[str, Any], environment: Mapping[str, str], output: IO[str]
) -> subprocess.Popen[str]:
    return node.start(
        [sys.executable, READER, json.dumps(order)],
        environment,
        stdin=subprocess.PIPE,
        stdout=output,
        text=True,
    )


def lock_of(memory: Path, task: str) -> Path:
    """In a node's memory folder."""
    return memory / f"dieselfs-{os.geteuid()}" / task / "lock"


def locker(lock: Path) -> int:
    """Who holds the first byte of a lock file; 0 if nobody does."""
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        with lock.open("rb+") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, request)
    except FileNotFoundError:
        return 0
    kind, _, _, _, pid = struct.unpack("hhqqi4x", answer)
    return 0 if kind == fcntl.F_UNLCK else pid
