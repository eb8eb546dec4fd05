"""How does the rate of the peer cache grow with the nodes (DIESEL Fig. 11a)?

1, 2, 4 and 8 nodes (network namespaces) hold a dataset of 4 KiB files in their memories, each its
share and half as much again, and each reads its part of the files in random order, one by one:
through `Client.get` and through a mount. Beside it, in the same rounds, memcached on the same
nodes, whose clients ask all of its servers. Nothing comes from the store, and no page cache has a
file.

Expectation: a node alone reads its own memory, in 2 us through the client, many times memcached's
rate. Of n nodes, 1 - 1.5/n of the files are in another node's memory alone, and cost both sides
some 45 us of Python, and a question to the own master now and then; memcached 25 us. All of it is
on the same two cores, with the masters of two tasks, so no rate grows with the nodes as in the
paper, whose nodes have 32 each: half of memcached's with 2 and 4 nodes, less with 8. A mount
answers a READ a file, in 40 us more. Needs root.

    python -m benchmarks.bench_peer_nodes [--nodes 1,2,4,8] [--files 40000] [--rounds 3] [--quick]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.harness import report, run_rounds, spread
from tests.eventually import eventually
from tests.peers.task_nodes import PeerDataset, Reader, TaskNodes, make_dataset, read_together
from tests.services.network_nodes import Network, network_nodes

SIZE_BYTES, CHUNK_BYTES = 4 << 10, 256 << 10
MEMCACHED = "memcached"
PAPER_QPS = {"API": 1_200_000, "mount": 800_000, MEMCACHED: 560_000, "Lustre": 40_000}
"""The rates of ten nodes with 16 threads each."""
READ_S = 300.0


@contextmanager
def filled(network: Network, dataset: PeerDataset) -> Iterator[dict[str, list[Reader]]]:
    """Readers on all nodes, by contender; everything is in some node's memory."""
    memory_bytes = 3 * dataset.bytes // (2 * len(network.nodes))
    with ExitStack() as stack:
        server = stack.enter_context(network.redis())
        options = {"DIESELFS_CACHE_POLICY": "oneshot"}

        def task(name: str) -> TaskNodes:
            return TaskNodes(network, dataset, server.url, task=name, options=options)

        found = {
            "API": stack.enter_context(task("api").clients(memory_bytes)),
            "mount": stack.enter_context(task("mount").mounts(memory_bytes)),
            MEMCACHED: stack.enter_context(
                task("memcached").memcached_clients((memory_bytes >> 20) + 256)
            ),
        }
        for readers in found.values():
            eventually(lambda readers=readers: _reads_no_store(dataset, readers))  # type: ignore[misc]
        yield found


def _reads_no_store(dataset: PeerDataset, readers: Sequence[Reader]) -> bool:
    before = dataset.from_store_bytes()
    read_together(readers, READ_S, seed=1, verify=False)
    return dataset.from_store_bytes() == before


def measure(nodes: int, files: int, rounds: int) -> None:
    with network_nodes(nodes) as network:
        dataset = make_dataset(network.folder, files, SIZE_BYTES, CHUNK_BYTES)
        with filled(network, dataset) as found:
            seeds, before = iter(range(2, 1_000_000)), dataset.from_store_bytes()

            def read(readers: Sequence[Reader]) -> float:
                return read_together(readers, READ_S, seed=next(seeds), verify=False)

            turns: dict[str, Callable[[], float]] = {
                name: lambda readers=readers: read(readers)  # type: ignore[misc]
                for name, readers in found.items()
            }
            taken = run_rounds(turns, rounds)
            from_store = dataset.from_store_bytes() - before
    report(
        f"4 KiB files from the memories of {nodes} nodes, over memcached on the same (Fig. 11a)",
        ratio={name: spread(taken.ratios(name, MEMCACHED)) for name in ("API", "mount")},
        files_per_s={name: files / taken.median(name) for name in taken.seconds},
        bytes_from_store=from_store,
        paper_files_per_s=PAPER_QPS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="1,2,4,8")
    parser.add_argument("--files", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.files, options.rounds = "1,2", 2_000, 1
    for nodes in options.nodes.split(","):
        measure(int(nodes), options.files, options.rounds)


if __name__ == "__main__":
    main()
