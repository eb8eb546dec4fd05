"""How fast are the empty memories of three nodes filled (DIESEL Fig. 11b), beside memcached, and
does each byte leave the store once?

Three nodes (network namespaces) open the same task with the policy *oneshot*, over a store that
gives 500 MB/s to all of them together: its queue is one for all processes. Time is from the first
chunk held to the last. Then each node reads a third of the files, in random order, each byte
checked. Beside it, in the same rounds, memcached on the same nodes: each reads a third of the files
from the store, one by one, and sets them. Expectation: the store is the slowest part by far (a core
fetches and verifies GB/s), so its rate but for the end, when the nodes with smaller shares are done
already: 0.95 for 170 chunks a node. memcached gets a file in some 0.5 ms of two cores: 2,000 files,
220 MB/s, half as fast; with --seek 8.3e-3 each file waits for a disk, and it is 12 times slower.
Needs root.

    python -m benchmarks.bench_peer_fill [--rounds 3] [--seek 8.3e-3] [--quick]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import report, run_rounds, spread
from tests.peers.task_nodes import TASK, PeerDataset, TaskNodes, make_dataset, read_together
from tests.services.network_nodes import Network, Node, network_nodes

NODES = 3
SIZE_BYTES = 110 << 10
CHUNK_BYTES = 4 << 20
BYTES_PER_S = 500e6
FILL_S = 120.0
BAR_RATE, BAR_READ = 0.85, 1.02


def cached_bytes(nodes: Sequence[Node], task: str = TASK) -> int:
    """In the chunk files of their memories."""
    total = 0
    for node in nodes:
        chunks = node.folder / f"memory/dieselfs-{os.geteuid()}" / task / "chunks"
        try:
            with os.scandir(chunks) as entries:
                total += sum(_size(entry) for entry in entries if entry.name[0] != ".")
        except FileNotFoundError:
            continue
    return total


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # renamed meanwhile
        return 0


def fill(
    network: Network, dataset: PeerDataset, task_name: str, seek_s: float
) -> tuple[float, float]:
    """Seconds of filling; bytes read of the store for each of the dataset, the reading of all files
    afterwards included."""
    dataset.set_speed(seek_s=seek_s, bytes_per_s=BYTES_PER_S)
    with network.redis() as server:
        task = TaskNodes(
            network,
            dataset,
            server.url,
            task=task_name,
            options={"DIESELFS_CACHE_POLICY": "oneshot"},
        )
        with task.clients(dataset.bytes) as readers:
            began = time.monotonic()
            deadline = began + FILL_S
            while (cached := cached_bytes(network.nodes, task_name)) < dataset.bytes:
                if not cached:  # the nodes are still looking for each other
                    began = time.monotonic()
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"after {FILL_S} s {cached} of {dataset.bytes} bytes are held"
                    )
                time.sleep(0.005)
            filled = time.monotonic()
            read_together(readers, FILL_S, read="batches", seed=1)
            return filled - began, dataset.from_store_bytes() / dataset.bytes


def fill_memcached(network: Network, dataset: PeerDataset, seek_s: float) -> float:
    """Seconds in which the nodes read all files between them, from an empty memcached."""
    dataset.set_speed(seek_s=seek_s, bytes_per_s=BYTES_PER_S)
    memory_mib = 2 * dataset.bytes // len(network.nodes) // (1 << 20) + 256
    with TaskNodes(network, dataset, index="").memcached_clients(memory_mib) as readers:
        return read_together(readers, 10 * FILL_S, seed=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=2_000_000_000)
    parser.add_argument("--seek", type=float, default=0.0, help="seconds of each request")
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.bytes = 1, 150_000_000
    reads: list[float] = []
    with network_nodes(NODES) as network:
        dataset = make_dataset(
            Path(network.folder), options.bytes // SIZE_BYTES, SIZE_BYTES, CHUNK_BYTES
        )

        def fill_peers() -> float:
            seconds, read = fill(network, dataset, f"fill{len(reads)}", options.seek)
            reads.append(read)
            for node in network.nodes:  # their helpers linger, and hold what the next round needs
                node.end_processes()
            return seconds

        taken = run_rounds(
            {
                "peers": fill_peers,
                "memcached": lambda: fill_memcached(network, dataset, options.seek),
            },
            options.rounds,
            warm_up=0,
        )
    chunk_s = options.seek + CHUNK_BYTES / BYTES_PER_S
    store_s = dataset.bytes / CHUNK_BYTES * chunk_s
    rates = [store_s / seconds for seconds in taken.seconds["peers"]]
    report(
        f"{NODES} empty nodes filled with {dataset.bytes / 1e9:.2g} GB from a store of {BYTES_PER_S / 1e6:.0f} MB/s",
        ratio=spread(rates),
        bar=BAR_RATE,
        met=spread(rates)["median"] >= BAR_RATE,
        over_memcached=spread(taken.ratios("peers", "memcached")),
        seconds={name: taken.median(name) for name in taken.seconds},
        seek_s=options.seek,
        read_of_dataset=max(reads),
        read_bar=BAR_READ,
        read_met=max(reads) <= BAR_READ,
    )


if __name__ == "__main__":
    main()
