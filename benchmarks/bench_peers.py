"""How fast are files from another node's memory, beside memcached?

Two nodes on loopback: one holds the whole dataset in its memory, the other gives none and has room
for next to nothing, so that each byte comes from its peer (that none comes from the store is
checked). Beside it memcached with pylibmc, the paper's reference, which holds the same files.
Contenders take turns.

    get                Client.get, file by file, in random order, against `get`
    get_many of 128    mini-batches, in random order, against `get_multi`
    chunk-wise         Client.get in the order of Client.shuffle, with memory for two groups, which
                       are fetched whole and ahead, against `get`

Expectation for 4 KiB: a `get` of memcached takes 22 us, most of it system calls and a change of
threads, ours as many and some Python on both sides: 0.8. A batch of 128 pays for them once,
memcached's for each key in C: 0.7 or better. Chunk-wise a file costs 1.3 us and its share of a
transfer at GB/s: 5 and more.

    python -m benchmarks.bench_peers [--rounds 7] [--only-size 4096] [--quick]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.contender_process import ContenderProcess, contender
from benchmarks.harness import report, run_rounds, scratch, spread
from benchmarks.memcached_server import memcached_client, memcached_servers
from benchmarks.peer_nodes import NO_MEMORY_BYTES, OnLoopback, contents, on_loopback
from tests.peers.reader_node import FromClient
from tests.peers.task_nodes import make_dataset

SMALL_BYTES, LARGE_BYTES = 4 << 10, 110 << 10
CHUNK_BYTES = 4 << 20
BATCH = 128
GROUP = 32
GROUP_MEMORY_BYTES = (2 * GROUP + 16) * CHUNK_BYTES
"""For two groups, and what is under way: half of the dataset."""
BARS = {
    SMALL_BYTES: {"get": 0.8, f"get_many of {BATCH}": 0.7, "chunk-wise": 5.0},
    LARGE_BYTES: {"get": 0.9, f"get_many of {BATCH}": 0.6, "chunk-wise": 1.5},
}


class PeerReader:
    """A client; its seconds for so many files."""

    def __init__(self, order: dict[str, Any], paths: list[str]) -> None:
        self._source = FromClient(order)
        self._paths = paths

    def run(self, how: str, seed: int, files: int) -> float:
        if how == "chunk-wise":
            begin = time.perf_counter()
            order = self._source.shuffled(seed, GROUP, 0, 1)
            _each(self._source.read, order)
            return (time.perf_counter() - begin) * files / len(order)
        paths = random.Random(seed).sample(self._paths, files)
        begin = time.perf_counter()
        if how == "get":
            _each(self._source.read, paths)
        else:
            for at in range(0, files, BATCH):
                assert len(self._source.read_many(paths[at : at + BATCH])) <= BATCH
        return time.perf_counter() - begin

    def close(self) -> None:
        self._source.close()


class MemcachedReader:
    def __init__(self, port: int, paths: list[str]) -> None:
        self._client = memcached_client([port])
        self._paths = paths

    def run(self, how: str, seed: int, files: int) -> float:
        paths = random.Random(seed).sample(self._paths, files)
        begin = time.perf_counter()
        if how == "get":
            _each(self._client.get, paths)
        else:
            for at in range(0, files, BATCH):
                wanted = paths[at : at + BATCH]
                assert len(self._client.get_multi(wanted)) == len(wanted)
        return time.perf_counter() - begin

    def close(self) -> None:
        self._client.disconnect_all()


def _each(get: Any, paths: Sequence[str]) -> None:
    for path in paths:
        if get(path) is None:
            raise RuntimeError(f"{path} is not there")


@contextmanager
def readers(
    task: OnLoopback, paths: list[str]
) -> Iterator[tuple[ContenderProcess, ContenderProcess]]:
    """Of single files and of whole chunks; a third node holds all of the dataset."""
    with ExitStack() as nodes:
        holder = nodes.enter_context(
            contender(
                PeerReader,
                task.order(4 * task.dataset.bytes),
                paths,
                environment=task.environment(0, gives_memory=True),
            )
        )
        holder.run("get", 0, len(paths))
        ranges, whole = (
            nodes.enter_context(
                contender(
                    PeerReader,
                    task.order(memory_bytes),
                    paths,
                    environment=task.environment(number, gives_memory=False),
                )
            )
            for number, memory_bytes in ((1, NO_MEMORY_BYTES), (2, GROUP_MEMORY_BYTES))
        )
        deadline = time.monotonic() + 30
        while True:  # until the readers know of the holder
            before = task.dataset.from_store_bytes()
            ranges.run("get", 1, 20)
            whole.run("get", 1, 20)
            if task.dataset.from_store_bytes() == before:
                break
            if time.monotonic() > deadline:
                raise RuntimeError("the nodes do not find each other")
            time.sleep(0.1)
        yield ranges, whole


def measure(files: int, read_files: int, size_bytes: int, rounds: int) -> None:
    with scratch("peers") as folder:
        dataset = make_dataset(folder, files, size_bytes, CHUNK_BYTES)
        paths = [path for path, _, _ in json.loads(dataset.paths.read_bytes())]
        memory_mib = 2 * dataset.bytes // (1 << 20) + 256
        with (
            memcached_servers(1, memory_mib) as [server],
            on_loopback(dataset) as task,
            readers(task, paths) as (ranges, whole),
        ):
            client = memcached_client([server.port])
            for path, data in contents(dataset):
                client.set(path, bytes(data))
            with contender(MemcachedReader, server.port, paths) as memcached:
                seeds = iter(range(2, 1_000_000))
                before = dataset.from_store_bytes()
                batched = f"get_many of {BATCH}"
                taken = run_rounds(
                    {
                        "memcached get": lambda: memcached.run("get", next(seeds), read_files),
                        "get": lambda: ranges.run("get", next(seeds), read_files),
                        "chunk-wise": lambda: whole.run("chunk-wise", next(seeds), read_files),
                        "memcached get_multi": lambda: memcached.run(
                            "batches", next(seeds), read_files
                        ),
                        batched: lambda: ranges.run("batches", next(seeds), read_files),
                    },
                    rounds,
                )
                from_store = dataset.from_store_bytes() - before
        for how, bar in BARS.get(size_bytes, BARS[SMALL_BYTES]).items():
            baseline = "memcached get_multi" if how == batched else "memcached get"
            ratio = spread(taken.ratios(how, baseline))
            report(
                f"{how} from a peer's memory against {baseline}, files of {size_bytes >> 10} KiB",
                ratio=ratio,
                bar=bar,
                met=ratio["median"] >= bar,
                files_per_s={name: read_files / taken.median(name) for name in (how, baseline)},
                bytes_from_store=from_store,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only-size", type=int, help="files of this size alone, bytes")
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    sizes = [(SMALL_BYTES, 163_840, 20_000), (LARGE_BYTES, 6_000, 4_000)]
    if options.quick:
        options.rounds = 1
        sizes = [(SMALL_BYTES, 20_480, 2_000), (LARGE_BYTES, 600, 300)]
    for size_bytes, files, read_files in sizes:
        if options.only_size in (None, size_bytes):
            measure(files, read_files, size_bytes, options.rounds)


if __name__ == "__main__":
    main()
