"""How much does a reader's beat cost the Redis?

A beat is one script: it writes a lease and reads those of the job, so it grows by a lease of 0.4
KiB for each reader. Expectation: 50 us and 1 KiB alone, 1 ms and 100 KiB with 256 readers.
"""

from __future__ import annotations

import time

import msgspec

from benchmarks.allocator_process import scratch_redis
from benchmarks.harness import report
from dieselfs.allocation.directory.reader_lease import LEASE_S, ReaderLease
from dieselfs.allocation.directory.redis_directory import RedisDirectory

READERS = (1, 16, 256)


def made_lease(number: int) -> ReaderLease:
    return ReaderLease(
        reader=f"{number:016x}",
        job="resnet-50",
        host=f"node-{number:03d}.cluster",
        pid=12345,
        dataset="imagenet-22k",
        dataset_id="1" * 32,
        dataset_bytes=1_300_000_000_000,
        epoch=3,
        allowed_bytes_per_s=12.3456789e6,
        used_bytes_per_s=11.3456789e6,
        bound=0.123456789,
        held_bytes=500_000_000_000,
        effective_bytes=400_000_000_000,
        speed_bytes_per_s=114.123456e6,
        age_s=1234.56789,
    )


def beat(readers: int, beats: int = 300) -> None:
    with scratch_redis() as server, server.client() as client:
        others = RedisDirectory(server.url)
        for number in range(1, readers):
            others.beat(made_lease(number), 600.0)
        directory = RedisDirectory(server.url)
        lease = made_lease(0)
        directory.allocate_remote_io("resnet-50", 100e6, origin="hand")
        directory.beat(lease, LEASE_S)
        client.config_resetstat()
        began = time.perf_counter()
        for number in range(beats):
            directory.beat(msgspec.structs.replace(lease, age_s=float(number)), LEASE_S)
        took_s = time.perf_counter() - began
        calls = client.info("commandstats")["cmdstat_evalsha"]
        traffic = client.info("stats")
        for each in (others, directory):
            each.close()
    report(
        "what does a beat cost",
        readers=readers,
        beat_us=took_s / beats * 1e6,
        of_the_server_us=float(calls["usec_per_call"]),
        sent_bytes=traffic["total_net_input_bytes"] / beats,
        received_bytes=traffic["total_net_output_bytes"] / beats,
    )
