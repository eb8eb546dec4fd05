"""Question: what does an index entry cost to put, beside writing the same bytes with no conditions?

16,000 new entries of 80 bytes a put, 160 in each of 100 maps, on top of 500,000 present ones. LMDB:
beside one bare transaction of `putmulti` (both synced); expected 1-2 µs an entry, most of them
B-tree. Redis on loopback: beside pipelined HSETs; expected 2-4 µs, most of it the server's single
thread. `near`: a put's names are neighbours in their directories (packing in directory order);
`far`: anywhere in them, so that LMDB must write nearly every page.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import lmdb
import redis

from benchmarks.harness import report, run_rounds, scratch
from metadata.kv.key_value_store import KeyValueStore, MapUpdate
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.kv.redis_cluster import RedisClusterStore
from metadata.kv.redis_server import RedisServerStore
from tests.services.redis_processes import RedisCluster, RedisProcess

MAPS, EACH, PRESENT, ROUNDS = 100, 160, 500_000, 9
PUT = MAPS * EACH


def puts(order: str) -> Iterator[list[MapUpdate]]:
    """Without end, never a name twice."""
    chance = random.Random(1)
    keys = [b"{%022x}f" % chance.getrandbits(88) for _ in range(MAPS)]
    for turn in range(10**6):
        updates = []
        for number, key in enumerate(keys):
            files = range(turn * EACH, (turn + 1) * EACH)
            # A permutation of seven digits, for names that lie anywhere.
            places = [file if order == "near" else file * 7_654_321 % 9_999_991 for file in files]
            fields = [b"n%08d_%07d.JPEG" % (number, place) for place in places]
            values = [struct.pack(">QQ", turn + 1, 0) + chance.randbytes(64) for _ in fields]
            updates.append(MapUpdate(key, fields, values))
        yield updates


def bare_lmdb(folder: Path) -> Callable[[list[MapUpdate]], None]:
    env = lmdb.open(str(folder), map_size=1 << 34)

    def put(updates: list[MapUpdate]) -> None:
        pairs = [
            (key + f, v)
            for key, fields, values in updates
            for f, v in zip(fields, values, strict=True)
        ]
        with env.begin(write=True) as transaction:
            transaction.cursor().putmulti(sorted(pairs))

    return put


def bare_redis(url: str) -> Callable[[list[MapUpdate]], None]:
    client = redis.Redis.from_url(url)

    def put(updates: list[MapUpdate]) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for key, fields, values in updates:
                pipeline.hset(key, mapping=dict(zip(fields, values, strict=True)))
            pipeline.execute()

    return put


def ours(store: KeyValueStore) -> Callable[[list[MapUpdate]], None]:
    return lambda updates: store.put([updates])


def measure(
    order: str, baseline: str, contenders: dict[str, Callable[[list[MapUpdate]], None]]
) -> None:
    sources = {name: puts(order) for name in contenders}
    for name, put in contenders.items():
        for _ in range(PRESENT // PUT):
            put(next(sources[name]))

    def timed(name: str) -> float:
        updates = next(sources[name])
        begin = time.perf_counter()
        contenders[name](updates)
        return time.perf_counter() - begin

    rounds = run_rounds(
        {name: lambda name=name: timed(name) for name in contenders},  # type: ignore[misc]
        ROUNDS,
    )
    for name in contenders:
        if name != baseline:
            ratios = sorted(rounds.ratios(name, baseline))
            report(
                f"index entries put by {name}, {order} names, against {baseline}",
                ratio=ratios[len(ratios) // 2],
                us_per_entry=rounds.median(name) / PUT * 1e6,
                entries_per_s=PUT / rounds.median(name),
            )


def main() -> None:
    with scratch("kv") as folder, ExitStack() as stack:
        for order in ("near", "far"):
            measure(
                order,
                "bare LMDB",
                {
                    "LMDB": ours(LmdbFileStore(folder / f"ours-{order}")),
                    "bare LMDB": bare_lmdb(folder / f"bare-{order}"),
                },
            )
        server = stack.enter_context(RedisProcess(folder / "server"))
        plain = stack.enter_context(RedisProcess(folder / "plain"))
        cluster = stack.enter_context(RedisCluster(folder / "cluster"))
        measure(
            "far",
            "plain HSETs",
            {
                "Redis": ours(RedisServerStore(server.url)),
                "Redis Cluster": ours(RedisClusterStore(cluster.url)),
                "plain HSETs": bare_redis(plain.url),
            },
        )


if __name__ == "__main__":
    main()
