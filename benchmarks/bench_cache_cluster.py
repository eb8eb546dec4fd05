"""How much faster do clients read through a cache cluster than from the store alone, and what do
they lose when one of its nodes is killed?

Three cache nodes (`dlcmd serve`) on loopback over a store of 150 MB/s and 8.3 ms a request, one
queue for all. They are filled by a warm-up, then read by 1 and by 8 clients, each a process with an
empty node memory of its own, and every file is compared. Beside it, in the same rounds, the same
clients on the store alone.

    fill          the store's busy time over the time of the warm-up; bytes read of the dataset
    files         110 KiB files one by one in random order; node memory has no room for a chunk
    chunk-wise    the same files in the order of Client.shuffle, whole chunks fetched ahead
    killed        8 clients read files, and one node is killed with SIGKILL

Expectation: the store gives a file in 8.3 + 0.75 ms, 110 a second in all. A file from a warm node
takes 0.8 ms of processor time, of clients, nodes and masters: 2,500 a second on two cores, 20 times
as many. A chunk costs the store 36 ms, 115 MB/s; 11 ms of processor time through the cluster, half
of it the clients' masters: 700 MB/s on two cores that do nothing else, 6 times.
The next owners fetch a dead node's third within 55 x 36 ms = 2 s, then all is as before.

    python -m benchmarks.bench_cache_cluster [--rounds 5] [--clients 8] [--quick]
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import xxhash

from benchmarks.contender_process import (
    ContenderPlan,
    ContenderProcess,
    contenders,
    run_together,
)
from benchmarks.harness import Rounds, report, run_rounds, scratch, spread
from benchmarks.peer_nodes import NO_MEMORY_BYTES
from benchmarks.shared_slow_store import SharedSlowStore, state_of
from dieselfs.cache.warmup.cluster_warmup import ClusterTarget, warm_cluster
from dieselfs.cache.warmup.warm_up import WarmUp
from tests.dieselfs.cache.cluster.cluster_of_nodes import SECRET, NodeProcess, RingClient, ring_of
from tests.peers.reader_node import FromClient
from tests.peers.task_nodes import NAME, PeerDataset, make_dataset

NODES = 3
SIZE_BYTES, CHUNK_BYTES = 110 << 10, 4 << 20
SEEK_S, BYTES_PER_S = 8.3e-3, 150e6
GROUP = 4
GROUP_MEMORY_BYTES = (2 * GROUP + 4) * CHUNK_BYTES
BAR_WARM, BAR_KILLED = 5.0, 0.6
STEADY_S, SETTLED_S, BIN_S = 3.0, 2.0, 0.1
"""Seconds before the kill, and after it until the rate counts again."""
STORE_SHARE = {"files": 8, "chunk-wise": 1}
"""A round on the store alone reads so many times fewer files."""


class ClusterReader:
    """A client: its seconds for a part of the files, or what it read in each tenth of a second."""

    def __init__(self, order: dict[str, Any], paths: Path) -> None:
        self._source = FromClient(order)
        self._digests = {path: digest for path, _, digest in json.loads(paths.read_bytes())}

    def run(self, how: str, seed: int, rank: int, world: int, files: int) -> Any:
        order = self._order(how, seed, rank, world)
        if how == "killed":
            return self._until(time.monotonic() + files, order)
        began = time.perf_counter()
        for path in order[:files]:
            self._read(path)
        return (time.perf_counter() - began) * files / len(order[:files])

    def close(self) -> None:
        self._source.close()

    def _order(self, how: str, seed: int, rank: int, world: int) -> Sequence[str]:
        if how == "chunk-wise":
            return self._source.shuffled(seed, GROUP, rank, world)
        return random.Random(seed + rank).sample(list(self._digests), len(self._digests))

    def _until(self, end: float, order: Sequence[str]) -> dict[str, Any]:
        bins: dict[int, int] = {}
        longest_s, now = 0.0, time.monotonic()
        while now < end:
            for path in order:
                self._read(path)
                began, now = now, time.monotonic()
                longest_s = max(longest_s, now - began)
                bins[int(now / BIN_S)] = bins.get(int(now / BIN_S), 0) + 1
                if now >= end:
                    break
        return {"bins": bins, "longest_s": longest_s}

    def _read(self, path: str) -> None:
        if xxhash.xxh3_64_hexdigest(self._source.read(path)) != self._digests[path]:
            raise RuntimeError(f"{path}: wrong bytes")


@contextmanager
def readers(
    folder: Path, dataset: PeerDataset, count: int, memory_bytes: int, nodes: Sequence[NodeProcess]
) -> Iterator[list[ContenderProcess]]:
    """`count` clients, each with memory of its own; without nodes they read the store alone."""
    cluster = "r@" + ",".join(str(node.address) for node in nodes) if nodes else "none"
    plans = []
    for number in range(count):
        memory = folder / f"memory-{len(nodes)}-{memory_bytes}-{number}"
        memory.mkdir()
        order = {
            "disk": str(dataset.disk),
            "dataset": NAME,
            "snapshot": str(dataset.snapshot),
            "memory_bytes": memory_bytes,
            "task": "bench",
        }
        environment = {
            "DIESELFS_MEMORY_FOLDER": str(memory),
            "DIESELFS_INDEX": f"lmdb://{folder}/index",
            "DIESELFS_CACHE_CLUSTER": cluster,
            "DIESELFS_CACHE_CLUSTER_SECRET": SECRET,
        }
        plans.append(ContenderPlan(ClusterReader, (order, dataset.paths), environment))
    with contenders(plans) as made:
        yield made


def side_by_side(clients: Sequence[ContenderProcess], how: str, seed: int, files: int) -> float:
    """Seconds in which the clients read `files` between them."""
    world = len(clients)
    orders = [(how, seed, rank, world, files // world) for rank in range(world)]
    return float(max(run_together(clients, orders)))


def fill(dataset: PeerDataset, nodes: Sequence[NodeProcess]) -> None:
    client = RingClient(dataset, [node.address for node in nodes])
    before = state_of(dataset.disk)
    chunks = client.chunks
    target = ClusterTarget(SharedSlowStore(dataset.disk), client.snapshot, chunks, client.settings)
    found, _ = warm_cluster(target, WarmUp(target, chunks), lambda *_: None)
    after = state_of(dataset.disk)
    client.close()
    if not found.is_all:
        raise RuntimeError(f"the nodes do not have all chunks: {found}")
    reads, size = after.reads - before.reads, after.bytes - before.bytes
    report(
        f"{NODES} empty cache nodes filled with {dataset.bytes / 1e9:.2g} GB",
        ratio=(reads * SEEK_S + size / BYTES_PER_S) / found.seconds,
        seconds=found.seconds,
        read_of_dataset=size / client.object_bytes,
    )


def compare(
    how: str,
    of_cluster: Sequence[ContenderProcess],
    alone: Sequence[ContenderProcess],
    files: int,
    rounds: int,
) -> None:
    seeds = iter(range(1, 1_000_000_000, 1_000))
    shares = {"cluster": (of_cluster, 1), "store": (alone, STORE_SHARE[how])}

    def timed(name: str, count: int) -> Callable[[], float]:
        clients, share = shares[name]
        some = clients[:count]
        return lambda: side_by_side(some, how, next(seeds), files // share) * share

    counts = sorted({1, len(of_cluster)})
    taken = run_rounds(
        {f"{name}, {count}": timed(name, count) for count in counts for name in shares}, rounds
    )
    for count in counts:
        _tell(how, count, taken, files)


def _tell(how: str, count: int, taken: Rounds, files: int) -> None:
    ratio = spread(taken.ratios(f"cluster, {count}", f"store, {count}"))
    bar = {"bar": BAR_WARM, "met": ratio["median"] >= BAR_WARM} if count > 1 else {}
    mb = files * SIZE_BYTES / 1e6
    report(
        f"{how}, {count} clients of a warm cache cluster of {NODES} nodes, over the store alone",
        ratio=ratio,
        **bar,
        files_per_s={
            name: files / taken.median(f"{name}, {count}") for name in ("cluster", "store")
        },
        mb_per_s={name: mb / taken.median(f"{name}, {count}") for name in ("cluster", "store")},
    )


def kill_a_node(
    nodes: Sequence[NodeProcess], clients: Sequence[ContenderProcess], after_s: float
) -> None:
    seconds = int(STEADY_S + SETTLED_S + after_s)
    begin = time.monotonic()
    for rank, client in enumerate(clients):
        client.begin("killed", 7, rank, len(clients), seconds)
    time.sleep(STEADY_S)
    killed = time.monotonic()
    nodes[0].end(signal.SIGKILL)
    answers = [client.answer() for client in clients]
    bins: dict[int, int] = {}
    for answer in answers:
        for at, count in answer["bins"].items():
            bins[at] = bins.get(at, 0) + count
    before = _rate(bins, begin + 1, killed)
    after = _rate(bins, killed + SETTLED_S, begin + seconds)
    lowest = min(
        bins.get(at, 0) for at in range(int(killed / BIN_S), int((begin + seconds) / BIN_S))
    )
    report(
        f"one of {NODES} cache nodes killed under {len(clients)} clients: rate after "
        f"{SETTLED_S:g} s over the rate before",
        ratio=after / before,
        bar=BAR_KILLED,
        met=after / before >= BAR_KILLED,
        files_per_s={"before": before, "after": after, "lowest of 0.1 s": lowest / BIN_S},
        longest_read_s=max(answer["longest_s"] for answer in answers),
        errors=0,
    )


def _rate(bins: dict[int, int], begin: float, end: float) -> float:
    found = [bins.get(at, 0) for at in range(int(begin / BIN_S) + 1, int(end / BIN_S))]
    return statistics.mean(found) / BIN_S


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=6_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--after", type=float, default=6.0, help="seconds measured after a kill")
    parser.add_argument("--only", default="files,chunk-wise,killed")
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.files, options.clients, options.rounds, options.after = 320, 2, 1, 1.0
    wanted = options.only.split(",")
    with scratch("cache-cluster") as folder, ExitStack() as stack:
        dataset = make_dataset(folder, options.files, SIZE_BYTES, CHUNK_BYTES)
        dataset.set_speed(seek_s=SEEK_S, bytes_per_s=BYTES_PER_S)
        size = f"{dataset.bytes + (128 << 20)}B"
        nodes = stack.enter_context(ring_of(folder / "nodes", dataset, NODES, ssd_size=size))
        fill(dataset, nodes)
        for how, memory_bytes in (("files", NO_MEMORY_BYTES), ("chunk-wise", GROUP_MEMORY_BYTES)):
            if how in wanted:
                count = options.clients
                with (
                    readers(folder, dataset, count, memory_bytes, nodes) as of_cluster,
                    readers(folder, dataset, count, memory_bytes, ()) as alone,
                ):
                    compare(how, of_cluster, alone, options.files, options.rounds)
        if "killed" in wanted:
            with readers(
                folder / "nodes", dataset, options.clients, NO_MEMORY_BYTES, nodes
            ) as some:
                kill_a_node(nodes, some, options.after)


if __name__ == "__main__":
    main()
