"""How many look-ups a second do several clients make, in the index and in a snapshot (DIESEL Fig.
10a, 10b)?

Each client is a process that asks `Client.stat` for the size of files in random order: through
Redis and through Redis Cluster (Fig. 10a), beside as many processes that ask the same server for
the same field by a bare HGET, which is the most that it gives; and from a snapshot (Fig. 10b).

Expectation: an HGET takes 30 to 50 us on loopback, most of it redis-py. Ours asks for two fields, a
file's and a directory's of this name, and decodes a record: 0.3 to 0.5 of bare HGETs, and no more
from a third client on than two cores give. A snapshot answers in 5 us and asks nobody: as many
times that as there are cores.

    python -m benchmarks.bench_lookups [--files 100000] [--clients 1,2,4] [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis

from benchmarks.contender_process import ContenderPlan, ContenderProcess, contenders, run_together
from benchmarks.harness import report, run_rounds, scratch, spread
from chunkstore.paths import split
from dieselfs.assembly import open_index, open_store
from dieselfs.client import Client
from metadata import keys
from tests.services.redis_processes import RedisCluster, RedisProcess

NAME = "bench"
FOLDERS = 100
SNAPSHOT_SHARE = 10
"""A round of a snapshot has so many times more look-ups."""
PAPER_QPS = {
    "index": "970,000 at most, the key-value servers' own limit (16 Redis instances on 4 nodes)",
    "snapshot": "8.83 million on one node of 16 threads, 88.77 on ten",
}


def paths_of(files: int) -> list[str]:
    return [f"class{number % FOLDERS:04d}/image{number:07d}.jpg" for number in range(files)]


class Lookups:
    """A client of the dataset in `folder`; with a snapshot it asks that, else the index."""

    def __init__(self, folder: Path, index: str, files: int, snapshot: Path | None = None) -> None:
        self._client = connected(folder, index)
        if snapshot is not None:
            self._client.load_meta(snapshot, check_fresh=False)
        self._paths = paths_of(files)

    def run(self, seed: int, count: int) -> float:
        """Seconds of so many look-ups."""
        return _timed(self._client.stat, random.Random(seed).choices(self._paths, k=count))

    def close(self) -> None:
        self._client.close()


class BareLookups:
    """The fields that those look-ups read, without their meaning."""

    def __init__(self, folder: Path, index: str, files: int) -> None:
        with connected(folder, index) as client:
            dataset = client.dataset.ref.id
        url = index.replace("redis+cluster", "redis").partition(",")[0]
        is_cluster = index.startswith("redis+cluster")
        self._redis: Any = (redis.RedisCluster if is_cluster else redis.Redis).from_url(url)
        parts = (split(path.encode()) for path in paths_of(files))
        self._fields = [(keys.files_of(dataset, directory), name) for directory, name in parts]

    def run(self, seed: int, count: int) -> float:
        get = self._redis.hget
        return _timed(lambda field: get(*field), random.Random(seed).choices(self._fields, k=count))

    def close(self) -> None:
        self._redis.close()


def _timed(look_up: Callable[[Any], Any], asked: Sequence[Any]) -> float:
    begin = time.perf_counter()
    for each in asked:
        if look_up(each) is None:
            raise RuntimeError(f"{each} is not there")
    return time.perf_counter() - begin


def connected(folder: Path, index: str, *, create: bool = False) -> Client:
    return Client.connect(
        NAME,
        store=open_store(f"file://{folder}/store"),
        index=open_index(index),
        snapshot_folder=folder / "snapshots",
        create=create,
    )


def make(folder: Path, index: str, files: int) -> Path:
    """A dataset of files of 8 bytes; its snapshot."""
    (folder / "store").mkdir(parents=True)
    with connected(folder, index, create=True) as client:
        for path in paths_of(files):
            client.put(b"contents", path)
        client.flush()
        return client.save_meta()


def look_up_together(clients: Sequence[ContenderProcess], seed: int, count: int) -> float:
    """Seconds in which the clients make `count` look-ups between them: those of the slowest."""
    each = count // len(clients)
    return float(max(run_together(clients, [(seed + at, each) for at in range(len(clients))])))


def compare(folder: Path, indexes: dict[str, str], options: argparse.Namespace) -> None:
    counts = [int(count) for count in options.clients.split(",")]
    files, lookups = options.files, options.lookups
    plans = {}
    for name, index in indexes.items():
        own = folder / name.replace(" ", "-")
        snapshot = make(own, index, files)
        plans[name] = ContenderPlan(Lookups, (own, index, files))
        plans[f"{name}, HGET"] = ContenderPlan(BareLookups, (own, index, files))
    plans["snapshot"] = ContenderPlan(Lookups, (own, index, files, snapshot))
    seeds = iter(range(1, 1_000_000_000, 1_000))
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(contenders([plan] * max(counts)))
            for name, plan in plans.items()
        }

        def look_up(name: str, count: int) -> float:
            share = SNAPSHOT_SHARE if name == "snapshot" else 1
            some = clients[name][:count]
            return look_up_together(some, next(seeds), lookups * share) / share

        turns: dict[str, Callable[[], float]] = {
            f"{name}, {count}": lambda name=name, count=count: look_up(name, count)  # type: ignore[misc]
            for count in counts
            for name in plans
        }
        taken = run_rounds(turns, options.rounds)
    for count in counts:
        for name in indexes:
            report(
                f"look-ups by {count} clients through {name}, over bare HGETs (Fig. 10a)",
                ratio=spread(taken.ratios(f"{name}, {count}", f"{name}, HGET, {count}")),
                lookups_per_s={
                    "ours": lookups / taken.median(f"{name}, {count}"),
                    "HGET": lookups / taken.median(f"{name}, HGET, {count}"),
                },
                paper=PAPER_QPS["index"],
            )
        report(
            f"look-ups by {count} clients in a snapshot, over one client (Fig. 10b)",
            ratio=spread(taken.ratios(f"snapshot, {count}", f"snapshot, {counts[0]}")),
            over_redis=spread(taken.ratios(f"snapshot, {count}", f"Redis, {count}")),
            lookups_per_s=lookups / taken.median(f"snapshot, {count}"),
            paper=PAPER_QPS["snapshot"],
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--lookups", type=int, default=20_000, help="of all clients, in the index")
    parser.add_argument("--clients", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.files, options.lookups, options.clients, options.rounds = 2_000, 1_000, "1,2", 1
    with scratch("lookups") as folder, ExitStack() as stack:
        server = stack.enter_context(RedisProcess(folder / "server"))
        cluster = stack.enter_context(RedisCluster(folder / "cluster"))
        compare(folder, {"Redis": server.url, "Redis Cluster": cluster.url}, options)


if __name__ == "__main__":
    main()
