"""DIESEL Fig. 6 redrawn: how fast are files read when a share of the cache has been lost, from a
task's peers and from memcached?

20 nodes hold a dataset of 110 KiB files between them: as masters of one task, and as servers of
memcached. A part of them is killed, then every file is read once, in random order. What is lost is
read from a slow disk (8.3 ms a seek, 150 MB/s, one queue): from behind memcached file by file, as
users do, and again at each epoch, for libmemcached goes on asking the server that is gone; by peers
in whole chunks, once, by their next owners. Killed masters come back before the next measurement.

Expectation: 5% of 2,400 files are 120 reads of 9 ms, 1.1 s, for memcached, whose whole epoch takes
0.15 s: nine tenths of its speed, the paper's figure. For peers 5% of 66 chunks are 3 reads of 36
ms.

    python -m benchmarks.bench_node_loss [--quick] >> benchmarks/results/node_loss.jsonl
    python -m benchmarks.plot_node_loss
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.contender_process import (
    ContenderPlan,
    ContenderProcess,
    contender,
    contenders,
)
from benchmarks.harness import report, scratch
from benchmarks.memcached_server import (
    CacheAside,
    MemcachedServer,
    memcached_client,
    memcached_servers,
)
from benchmarks.peer_nodes import NO_MEMORY_BYTES, OnLoopback, contents, on_loopback
from tests.peers.reader_node import FromClient
from tests.peers.task_nodes import TASK, PeerDataset, lock_of, locker, make_dataset

SIZE_BYTES = 110 << 10
CHUNK_BYTES = 4 << 20
SEEK_S, BYTES_PER_S = 8.3e-3, 150e6
LOST = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
SETTLED_S = 60.0

Rates = dict[int, list[float]]
"""Files a second of each round, by the number of nodes lost."""


class Holder:
    """A node of the task; what it leads is a process of its own, which is what is killed."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._source = FromClient(order)

    def run(self) -> dict[str, Any]:
        return self._source.statistics()

    def close(self) -> None:
        self._source.close()


class PeerEpoch:
    def __init__(self, order: dict[str, Any], paths: list[str]) -> None:
        self._source = FromClient(order)
        self._paths = paths

    def run(self, seed: int) -> float:
        """Seconds of an epoch."""
        paths = random.Random(seed).sample(self._paths, len(self._paths))
        begin = time.perf_counter()
        for path in paths:
            self._source.read(path)
        return time.perf_counter() - begin

    def close(self) -> None:
        self._source.close()


class MemcachedEpoch:
    def __init__(self, ports: Sequence[int], dataset: PeerDataset) -> None:
        self._source = CacheAside(ports, dataset.disk, dataset.snapshot)
        self._paths = [path for path, _, _ in json.loads(dataset.paths.read_bytes())]

    def run(self, seed: int) -> float:
        paths = random.Random(seed).sample(self._paths, len(self._paths))
        begin = time.perf_counter()
        for path in paths:
            self._source.read(path)
        return time.perf_counter() - begin

    def close(self) -> None:
        self._source.close()


class Peers:
    """All masters of the task, and the one reader that is measured, which gives no memory."""

    def __init__(self, task: OnLoopback, budget_bytes: int, paths: list[str], nodes: int) -> None:
        self._task = task
        self._count = nodes
        self._budget_bytes = budget_bytes
        self._paths = paths
        self._stack = ExitStack()
        self._nodes: dict[int, ContenderProcess] = {}
        self._reader: ContenderProcess | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._stack:
            self.start(list(range(self._count)))
            environment = self._task.environment(self._count, gives_memory=False)
            self._reader = self._stack.enter_context(
                contender(
                    PeerEpoch,
                    self._task.order(NO_MEMORY_BYTES),
                    self._paths,
                    environment=environment,
                )
            )
            yield

    def start(self, numbers: Sequence[int]) -> None:
        """Side by side."""
        order = self._task.order(self._budget_bytes)
        plans = [
            ContenderPlan(Holder, (order,), self._task.environment(number, gives_memory=True))
            for number in numbers
        ]
        made = self._stack.enter_context(contenders(plans))
        self._nodes.update(zip(numbers, made, strict=True))

    def kill(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            pid = locker(lock_of(self._task.memory(number), TASK))
            self._nodes.pop(number).end()
            if pid:
                os.kill(pid, signal.SIGKILL)

    def epoch(self, seed: int) -> float:
        assert self._reader is not None
        taken: float = self._reader.run(seed)
        return taken

    def settle(self) -> None:
        """Until an epoch reads nothing from the store."""
        deadline = time.monotonic() + SETTLED_S
        while True:
            before = self._task.dataset.from_store_bytes()
            self.epoch(0)
            if self._task.dataset.from_store_bytes() == before:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"files still come from the store after {SETTLED_S} s")


def losses(nodes: int) -> list[int]:
    return sorted({round(share * nodes) for share in LOST})


def of_peers(
    task: OnLoopback, budget_bytes: int, paths: list[str], nodes: int, rounds: int
) -> Rates:
    rates: Rates = {count: [] for count in losses(nodes)}
    peers = Peers(task, budget_bytes, paths, nodes)
    with peers.running():
        for number in range(rounds):
            for count in rates:
                peers.settle()
                lost = list(range(count))
                peers.kill(lost)
                rates[count].append(len(paths) / peers.epoch(1 + number))
                peers.start(lost)
    return rates


def of_memcached(dataset: PeerDataset, nodes: int, rounds: int) -> Rates:
    rates: Rates = {count: [] for count in losses(nodes)}
    memory_mib = 3 * dataset.bytes // nodes // (1 << 20) + 64
    with memcached_servers(nodes, memory_mib, threads=1) as servers:
        client = memcached_client([server.port for server in servers])
        for path, data in contents(dataset):
            client.set(path, bytes(data))
        with contender(MemcachedEpoch, [server.port for server in servers], dataset) as reader:
            reader.run(0)
            for count in rates:
                _stop(servers[:count])
                for number in range(rounds):
                    rates[count].append(dataset.files / reader.run(1 + number))
    return rates


def _stop(servers: Sequence[MemcachedServer]) -> None:
    for server in servers:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--files", type=int, default=2_400)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.files, options.rounds = 4, 300, 1
    with scratch("node-loss") as folder:
        dataset = make_dataset(folder, options.files, SIZE_BYTES, CHUNK_BYTES)
        dataset.set_speed(seek_s=SEEK_S, bytes_per_s=BYTES_PER_S)
        paths = [path for path, _, _ in json.loads(dataset.paths.read_bytes())]
        with on_loopback(dataset) as task:
            rates = {"peers": of_peers(task, dataset.bytes, paths, options.nodes, options.rounds)}
        rates["memcached"] = of_memcached(dataset, options.nodes, options.rounds)
    for count in losses(options.nodes):
        found = {name: statistics.median(of[count]) for name, of in rates.items()}
        report(
            "rate against the share of the cache that was lost",
            lost=count / options.nodes,
            files_per_s=found,
            of_whole={
                name: rate / statistics.median(rates[name][0]) for name, rate in found.items()
            },
            nodes=options.nodes,
            files=options.files,
        )


if __name__ == "__main__":
    main()
