"""The reading program of one node: `python reader_node.py ORDER`, where ORDER is a JSON object; it
reads a dataset and checks each byte.

    kind        "client": through a `Client`; "mount": below `mountpoint`; "memcached": from
                `servers`, and from the store what they lack (for benchmarks)
    paths       a file with a JSON list of [path, size, xxh3_64 in hex], in the dataset's order
    client:     disk, dataset, snapshot, memory_bytes, task; how its node takes part in the task's
                peer cache is in the environment, as a user would say it
    mount:      mountpoint
    memcached:  servers ("HOST:PORT"), disk, snapshot

Then it obeys one JSON object a line on stdin: {"read": "files" | "batches", "seed": n, "rank": n,
"world": n, "epochs": n, "batch": n, "verify": bool, "step_s": n}: this rank's files, shuffled by
the seed, and `step_s` seconds between batches, as training takes;
{"read": "shuffle", "group": n, …}: in the client's chunk-wise order; {"statistics": true};
{"cancel": true} ends what is read after the file at hand. It ends with the end of stdin, and says
one JSON object a line on stdout: what it has read since the line before, every 50 ms, with the
longest single read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import xxhash

_REPORT_S: Final = 0.05


class Source(Protocol):
    def read(self, path: str) -> bytes: ...

    def read_many(self, paths: Sequence[str]) -> list[bytes]: ...

    def shuffled(self, seed: int, group: int, rank: int, world: int) -> Sequence[str]: ...

    def statistics(self) -> dict[str, Any]: ...


class Mounted:
    """Files are read anew each time: what the page cache has makes no request."""

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = os.fspath(mountpoint)

    def read(self, path: str) -> bytes:
        with open(f"{self._mountpoint}/{path}", "rb", buffering=0) as file:
            data = file.readall()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return data

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return [self.read(path) for path in paths]

    def shuffled(self, seed: int, group: int, rank: int, world: int) -> Sequence[str]:
        name = f"seed={seed},epoch=0,group={group},rank={rank},world={world}"
        return Path(self._mountpoint, ".dieselfs/shuffle", name).read_text().split("\n")[:-1]

    def statistics(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            Path(self._mountpoint, ".dieselfs/stats.json").read_bytes()
        )
        return document


class FromClient:
    def __init__(self, order: dict[str, Any]) -> None:
        from benchmarks.shared_slow_store import SharedSlowStore
        from dieselfs.assembly import open_index
        from dieselfs.client import Client

        self._memory_bytes, self._task = order["memory_bytes"], order["task"]
        self._client = Client.connect(
            order["dataset"],
            store=SharedSlowStore(Path(order["disk"])),
            index=open_index(os.environ["DIESELFS_INDEX"]),
            snapshot_folder=Path(order["snapshot"]).parent,
        )
        self._client.load_meta(Path(order["snapshot"]), check_fresh=False)
        self._client.open_memory(self._memory_bytes, self._task)
        self.read: Callable[[str], bytes] = self._client.get
        self.read_many: Callable[[Sequence[str]], list[bytes]] = self._client.get_many

    def shuffled(self, seed: int, group: int, rank: int, world: int) -> Sequence[str]:
        return self._client.shuffle(seed=seed, group_size=group, rank=rank, world_size=world)

    def statistics(self) -> dict[str, Any]:
        return dataclasses.asdict(self._client.statistics())

    def close(self) -> None:
        self._client.close()


class FromMemcached:
    """It waits until all servers answer."""

    def __init__(self, order: dict[str, Any]) -> None:
        from benchmarks.memcached_server import CacheAside
        from tests.eventually import eventually

        servers = order["servers"]
        self._source = CacheAside(servers, Path(order["disk"]), Path(order["snapshot"]))
        eventually(lambda: self._source.answering() == len(servers), "all of memcached answers")
        self.read: Callable[[str], bytes] = self._source.read

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return [self.read(path) for path in paths]

    def shuffled(self, seed: int, group: int, rank: int, world: int) -> Sequence[str]:
        raise NotImplementedError("memcached knows no chunks")

    def statistics(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._source.close()


class Reports:
    """What was read, a line for each 50 ms in which there was something, or in which it took
    longer."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._files = self._bytes = 0
        self._longest_s = 0.0
        self.files = self.bytes = 0
        self.longest_s = 0.0

    def add(self, files: int, size: int, began: float) -> None:
        now = time.monotonic()
        self._files += files
        self._bytes += size
        self._longest_s = max(self._longest_s, now - began)
        if now - self._since >= _REPORT_S:
            self.flush(now)

    def flush(self, now: float) -> None:
        self.files += self._files
        self.bytes += self._bytes
        self.longest_s = max(self.longest_s, self._longest_s)
        say(at=now, files=self._files, bytes=self._bytes, longest_s=self._longest_s)
        self._since, self._files, self._bytes, self._longest_s = now, 0, 0, 0.0


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def read(
    source: Source,
    order: dict[str, Any],
    expected: dict[str, tuple[int, str]],
    cancelled: Callable[[], bool],
) -> None:
    reports, began = Reports(), time.monotonic()
    verify, step_s = order.get("verify", True), order.get("step_s", 0.0)
    batch = order.get("batch", 128) if order["read"] == "batches" else 1
    failure = ""
    say(began=began)
    for wanted in _batches(source, order, list(expected), batch):
        if failure or cancelled():
            break
        started = time.monotonic()
        try:
            data = [source.read(wanted[0])] if batch == 1 else source.read_many(wanted)
        except Exception as error:
            failure = f"{wanted[0]}: {error!r}"
            break
        reports.add(len(wanted), sum(map(len, data)), started)
        for path, each in zip(wanted, data, strict=True):
            if verify and (len(each), xxhash.xxh3_64_hexdigest(each)) != expected[path]:
                failure = f"{path}: wrong bytes"
        time.sleep(step_s)
    ended = time.monotonic()
    reports.flush(ended)
    say(
        ended=ended,
        seconds=ended - began,
        files=reports.files,
        bytes=reports.bytes,
        longest_s=reports.longest_s,
        failure=failure,
    )


def _batches(
    source: Source, order: dict[str, Any], paths: list[str], batch: int
) -> Iterator[Sequence[str]]:
    """Of one epoch after the other."""
    for epoch in range(order.get("epochs", 1)):
        of_epoch = _paths(source, order, epoch, paths)
        for at in range(0, len(of_epoch), batch):
            yield of_epoch[at : at + batch]


def _paths(source: Source, order: dict[str, Any], epoch: int, paths: list[str]) -> Sequence[str]:
    seed, rank, world = order.get("seed", 0) + epoch, order.get("rank", 0), order.get("world", 1)
    if order["read"] == "shuffle":
        return source.shuffled(seed, order["group"], rank, world)
    return random.Random(seed).sample(paths, len(paths))[rank::world]


@contextmanager
def _source(order: dict[str, Any]) -> Iterator[Source]:
    if order["kind"] == "mount":
        yield Mounted(Path(order["mountpoint"]))
        return
    source = FromMemcached(order) if order["kind"] == "memcached" else FromClient(order)
    try:
        yield source
    finally:
        source.close()


def main() -> None:
    order = json.loads(sys.argv[1])
    expected = {
        path: (size, digest) for path, size, digest in json.loads(Path(order["paths"]).read_bytes())
    }
    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    cancelled = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            said = json.loads(line)
            if "cancel" in said:
                cancelled.set()
            else:
                orders.put(said)
        cancelled.set()
        orders.put(None)

    with _source(order) as source:
        say(ready=os.getpid())
        threading.Thread(target=listen, daemon=True).start()
        while (wanted := orders.get()) is not None:
            if "statistics" in wanted:
                say(statistics=source.statistics())
            else:
                cancelled.clear()
                read(source, wanted, expected, cancelled.is_set)


if __name__ == "__main__":
    main()
