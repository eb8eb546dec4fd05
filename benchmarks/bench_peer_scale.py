"""How many connections does a task have, and does its memory stay flat?

8 nodes (network namespaces), each with a client that forks 8 readers, as a data loader does. All
read in random order, each node with memory for an eighth of the dataset and a little. Counted on
each node: TCP connections that its server has; sampled: the memory that is its processes' own
(RssAnon). Expectation (DIESEL Fig. 7): a reader has at most one connection to each other node, so p
x (n - 1) for p = 64 readers, and as many more for each of the 8 masters; none of it grows with
time. Needs root.

    python -m benchmarks.bench_peer_scale [--seconds 60] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

from benchmarks.bench_memory import anonymous_bytes
from benchmarks.harness import report
from tests.peers.reader_node import FromClient
from tests.peers.task_nodes import NAME, TASK, TaskNodes, make_dataset
from tests.services.network_nodes import Network, network_nodes

SIZE_BYTES, CHUNK_BYTES = 32 << 10, 1 << 20
READY_S = 120.0


def read_for_ever(order: dict[str, object]) -> None:
    """In a node: a client, and forked readers of it, until it is killed."""
    source = FromClient(order)
    paths = [path for path, _, _ in json.loads(Path(str(order["paths"])).read_bytes())]
    source.read(paths[0])
    for number in range(int(str(order["readers"]))):
        if os.fork() == 0:
            draw = random.Random(number)
            while True:
                source.read(draw.choice(paths))
                time.sleep(1e-3)  # there are more readers than cores
    print("ready", flush=True)
    time.sleep(1e6)


def connections(network: Network) -> int:
    return sum(node.established() for node in network.nodes)


def memory_bytes(network: Network) -> int:
    return sum(anonymous_bytes(pid) for node in network.nodes for pid in node.processes())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--readers", type=int, default=8, help="of each node")
    parser.add_argument("--seconds", type=float, default=60.0, help="watched")
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    parser.add_argument("--in-node", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_node:
        read_for_ever(json.loads(options.in_node))
        return
    if options.quick:
        options.nodes, options.readers, options.seconds = 3, 2, 6.0
    with network_nodes(options.nodes) as network, network.redis() as server:
        dataset = make_dataset(network.folder, 8_000, SIZE_BYTES, CHUNK_BYTES)
        task = TaskNodes(network, dataset, server.url)
        order = {
            "disk": str(dataset.disk),
            "dataset": NAME,
            "snapshot": str(dataset.snapshot),
            "paths": str(dataset.paths),
            "memory_bytes": dataset.bytes * 3 // 2 // options.nodes,
            "task": TASK,
            "readers": options.readers,
        }
        command = [sys.executable, "-m", "benchmarks.bench_peer_scale", "--in-node"]
        programs = []
        try:
            for node in network.nodes:
                log = (node.folder / "log").open("w")
                with log:
                    programs.append(
                        node.start(
                            [*command, json.dumps(order)], task.environment(node), stdout=log
                        )
                    )
            deadline = time.monotonic() + READY_S
            while not all("ready" in (node.folder / "log").read_text() for node in network.nodes):
                if time.monotonic() > deadline:
                    raise RuntimeError("the readers do not start")
                time.sleep(0.1)
            found = watch(network, options.seconds)
        finally:
            for program in programs:
                program.kill()
                program.wait()
    p, n = options.readers * options.nodes, options.nodes
    most = max(count for count, _ in found)
    third = len(found) // 3
    report(
        f"connections and memory of {n} nodes with {options.readers} readers each",
        connections=most,
        of_readers=p * (n - 1),
        of_readers_and_masters=(p + n) * (n - 1),
        met=most <= (p + n) * (n - 1),
        memory_mib={"after a third": found[third][1] / 2**20, "at the end": found[-1][1] / 2**20},
        growth=found[-1][1] / found[third][1],
    )


def watch(network: Network, seconds: float) -> list[tuple[int, int]]:
    """Connections and bytes of memory, each second."""
    found = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(1.0)
        found.append((connections(network), memory_bytes(network)))
    return found


if __name__ == "__main__":
    main()
