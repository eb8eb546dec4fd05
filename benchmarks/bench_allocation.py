"""Do the readers of a job on several nodes keep to its share, whatever happens to the allocator
and the Redis, and what does it cost the Redis?

1. Three processes read the chunks of one job in step, as nodes of a training do: 8, 1 and 1 chunks
   a step. Their job has b bytes a second. Expectation: divided equally, the first one holds up the
   others, and 0.333 b / 0.8 = 0.42 b are used. Divided by need, at least 0.95 b, and in no 10 s
   more than 1.05 b: the buckets' bursts are 0.25 b and a chunk a reader. Readers on their own, that
   want 0.8 b, 0.1 b and 0.1 b, use 0.53 b with equal shares, and all of it by need.
2. Three jobs read under an allocator while that is killed, while the Redis is killed and restarted
   with its data, and while both are killed and the Redis has lost all. Expectation: nobody depends
   on either, so no read fails and no job's rate changes. With its data the Redis gives the same
   allocation at once. Without it, readers renew their leases within 4 s, and the allocator needs 2
   more.
3. A job's rate is changed by hand, and a fourth job comes and goes under an allocator. Expectation:
   readers beat once a second, obey less at once and more a beat later, so 1 s and 2 s. The
   allocator looks once a second as well, and needs two leases to know a speed: 3 to 4 s.
4. A mount's quota on its SSD is halved. Expectation: a beat and the tier's tick, 2 s.
5. A beat is one script: it writes a lease and reads those of the job, so it grows by a lease of 0.4
   KiB for each reader. Expectation: 50 us and 1 KiB alone, 1 ms and 100 KiB with 256 readers.

    python -m benchmarks.bench_allocation [--only share|faults|obey|beat] [--seconds 60]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec

from benchmarks.allocated_reader import (
    CHUNK_BYTES,
    ReaderKind,
    ReaderProcess,
    reader_processes,
)
from benchmarks.harness import REPOSITORY, dlcmd, make_tree, report, scratch
from dieselfs.allocation.directory.reader_lease import LEASE_S, ReaderLease
from dieselfs.allocation.directory.redis_directory import RedisDirectory
from dieselfs.cache.node.task_folder import VARIABLE
from dieselfs.errors import RegistryUnavailable
from metadata.keys import ALLOCATION_LEADER
from tests.services.redis_processes import RedisProcess

RATE = 100e6
WEIGHTS = (8, 1, 1)
WARM_UP_S = 20.0
WINDOW_S = 10.0
TOTAL = 40e6
SPEEDS = {"fast": 60e6, "middle": 30e6, "slow": 6e6}
READERS = (1, 16, 256)
_FILES, _FILE_BYTES = 600, 110 << 10
BARS = {
    "used_share": ">= 0.95 (equal division: 0.42 in step, else 0.53)",
    "most_of_10_s": "<= 1.05",
    "worst_rate_error": "<= 0.05",
    "read_errors": "0",
    "most_allowed": "<= 1",
    "taken_over_after_s": "<= 5",
    "same_allocation_after_s": "<= 5; from leases alone <= 10",
    "less_obeyed_after_s": "<= 2",
    "more_obeyed_after_s": "<= 2",
    "come_after_s": "<= 5",
    "gone_after_s": "<= 5",
    "quota_kept_after_s": "<= 10",
}


def most_in(left: Sequence[tuple[float, int]], window_s: float) -> float:
    """The most bytes that left within any time of this length."""
    most = total = 0
    first = 0
    for at, size in left:
        total += size
        while left[first][0] < at - window_s:
            total -= left[first][1]
            first += 1
        most = max(most, total)
    return most


def left_of(
    readers: Sequence[ReaderProcess], since: float, until: float
) -> list[tuple[float, int]]:
    """What left the store for all of them between two times, in order."""
    events = itertools.chain.from_iterable(each.noted.left for each in readers)
    return sorted(event for event in events if since <= event[0] < until)


def share(seconds: float, *, equally: bool, in_step: bool, threads: int = 1) -> None:
    fixed = RATE / len(WEIGHTS) if equally else None
    kinds = [
        ReaderKind(
            "training",
            weight * threads,
            in_step=True,
            fixed_bytes_per_s=fixed,
            chunk_bytes=CHUNK_BYTES // threads,
            threads=threads,
        )
        if in_step
        else ReaderKind(
            "training",
            speed_bytes_per_s=RATE * weight / sum(WEIGHTS),
            fixed_bytes_per_s=fixed,
        )
        for weight in WEIGHTS
    ]
    warm_up_s = min(WARM_UP_S, 2 * seconds)
    with scratch_redis() as server:
        directory = RedisDirectory(server.url)
        directory.allocate_remote_io("training", RATE, origin="hand")
        with reader_processes(server.url, kinds) as readers:
            began = time.monotonic()
            time.sleep(warm_up_s + seconds)
            ended = time.monotonic()
        directory.close()
    left = left_of(readers, began + warm_up_s, ended)
    say(
        "how much of its remote IO does a job of three nodes use",
        division="equal" if equally else "by need",
        readers="in step" if in_step else "each on its own",
        threads=threads,
        seconds=seconds,
        used_share=sum(size for _, size in left) / (ended - began - warm_up_s) / RATE,
        most_of_10_s=most_in(left_of(readers, began + 5, ended), WINDOW_S) / WINDOW_S / RATE,
        read_errors=sum(each.noted.errors for each in readers),
    )


@contextmanager
def scratch_redis() -> Iterator[RedisProcess]:
    with tempfile.TemporaryDirectory(prefix="dieselfs-allocation-") as folder:
        with RedisProcess(Path(folder)) as server:
            yield server


def start_allocator(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dieselfs.cli", "alloc", "run"]
    return subprocess.Popen(
        [*command, "--remote-io", str(int(TOTAL)), "--cache", "0"],
        env={**os.environ, "DIESELFS_INDEX": url, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def leader_of(server: RedisProcess) -> str:
    """The id of the allocator that leads; it has its process id."""
    with server.client() as client:
        return (client.hget(ALLOCATION_LEADER, "id") or b"").decode()


def rates_of(directory: RedisDirectory) -> dict[str, float]:
    """The rates that are published; none while the Redis is away."""
    try:
        return {each.job: each.bytes_per_s for each in directory.decisions().ios}
    except RegistryUnavailable:
        return {}


def are_near(rates: dict[str, float], before: dict[str, float]) -> bool:
    return rates.keys() == before.keys() and all(
        abs(rates[job] / before[job] - 1) <= 0.05 for job in before
    )


def seconds_until(condition: Callable[[], bool], longest_s: float = 60.0) -> float:
    began = time.monotonic()
    while not condition() and time.monotonic() - began < longest_s:
        time.sleep(0.05)
    return time.monotonic() - began


def faults(case: str, seconds: float) -> None:
    """Kill the allocator, the Redis or both at a quarter of the time, under load."""
    kinds = [
        ReaderKind(job, speed_bytes_per_s=speed, chunk_bytes=CHUNK_BYTES // 4)
        for job, speed in SPEEDS.items()
    ]
    with scratch_redis() as server, reader_processes(server.url, kinds) as readers:
        directory = RedisDirectory(server.url)
        allocators = [start_allocator(server.url)]
        if case == "allocator":
            allocators.append(start_allocator(server.url))
        seconds_until(lambda: len(rates_of(directory)) == len(kinds))
        time.sleep(min(WARM_UP_S, 2 * seconds))
        before, began = rates_of(directory), time.monotonic()
        time.sleep(seconds / 4)
        taken_over_s = None
        if case != "Redis":
            leader = leader_of(server)
            for each in allocators:
                if f":{each.pid}:" in leader:
                    each.kill()
            if case == "allocator":
                taken_over_s = seconds_until(lambda: leader_of(server) not in ("", leader))
        if case != "allocator":
            server.stop()
            time.sleep(seconds / 4)
            if case == "both":
                server.forget()
            server.start()
        if case == "both":
            allocators.append(start_allocator(server.url))
        took_s = seconds_until(lambda: are_near(rates_of(directory), before))
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        ended, after = time.monotonic(), rates_of(directory)
        for each in allocators:
            each.kill()
            each.wait()
        directory.close()
    used = {
        each.kind.job: sum(size for _, size in left_of([each], began, ended)) / (ended - began)
        for each in readers
    }
    window_s = min(WINDOW_S, seconds)
    former = {
        each.kind.job: sum(size for _, size in left_of([each], began - window_s, began)) / window_s
        for each in readers
    }
    say(
        "who depends on the allocator and the Redis",
        killed=case,
        seconds=seconds,
        read_errors=sum(each.noted.errors for each in readers),
        worst_rate_error=max(abs(used[job] / former[job] - 1) for job in used),
        most_allowed=most_allowed(readers, began, ended) / TOTAL,
        most_of_10_s=most_in(left_of(readers, began, ended), WINDOW_S) / WINDOW_S / TOTAL,
        taken_over_after_s=taken_over_s,
        same_allocation_after_s=took_s,
        rates_before=before,
        rates_after=after,
        used_bytes_per_s=used,
    )


def near_after_s(readers: Sequence[ReaderProcess], since: float, until: float) -> float:
    """The seconds from `since` until each job's rate stays within 5 % of what it is at the end."""
    series = {
        each: [(at, rate or 0.0) for at, rate in each.noted.allowed if since <= at < until]
        for each in readers
    }
    jobs = {each.kind.job for each in readers if series[each]}
    latest = since
    for job in jobs:
        of_job = [found for each, found in series.items() if each.kind.job == job and found]
        for samples in zip(*of_job, strict=False):
            total = sum(rate for _, rate in samples)
            last = sum(found[-1][1] for found in of_job)
            if abs(total - last) > 0.05 * last:
                latest = max(latest, *(at for at, _ in samples))
    return latest - since


def obeyed_after_s(readers: Sequence[ReaderProcess], since: float, rate: float) -> float:
    """The seconds from `since` until the readers of a job have `rate` together, within 5 %."""
    after = [[each for each in reader.noted.allowed if each[0] >= since] for reader in readers]
    return next(
        max(at for at, _ in samples) - since
        for samples in zip(*after, strict=False)
        if abs(sum(found or 0.0 for _, found in samples) / rate - 1) <= 0.05
    )


def obey_rates(seconds: float) -> None:
    """Lower and raise a job's rate by hand, as `dlcmd alloc set-io` does."""
    kinds = [ReaderKind("training", chunk_bytes=CHUNK_BYTES // 4)] * 2
    with scratch_redis() as server:
        directory = RedisDirectory(server.url)
        times = []
        with reader_processes(server.url, kinds) as readers:
            for rate in (RATE, RATE / 10, RATE / 2):
                directory.allocate_remote_io("training", rate, origin="hand")
                times.append(time.monotonic())
                time.sleep(seconds / 4)
        directory.close()
    say(
        "how soon is another rate obeyed",
        less_obeyed_after_s=obeyed_after_s(readers, times[1], RATE / 10),
        more_obeyed_after_s=obeyed_after_s(readers, times[2], RATE / 2),
    )


def obey_jobs(seconds: float) -> None:
    """Let a fourth job come and go under an allocator."""
    kinds = [
        ReaderKind(job, speed_bytes_per_s=speed, chunk_bytes=CHUNK_BYTES // 4)
        for job, speed in SPEEDS.items()
    ]
    late = ReaderKind("late", speed_bytes_per_s=20e6, chunk_bytes=CHUNK_BYTES // 4)
    with scratch_redis() as server:
        allocator = start_allocator(server.url)
        with reader_processes(server.url, kinds) as readers:
            time.sleep(min(WARM_UP_S, 2 * seconds))
            with reader_processes(server.url, [late]) as others:
                came = time.monotonic()
                time.sleep(seconds / 2)
                went = time.monotonic()
            time.sleep(seconds / 2)
            ended = time.monotonic()
        allocator.kill()
        allocator.wait()
    say(
        "how soon do all jobs have what an allocator gives them",
        come_after_s=near_after_s([*readers, *others], came, went),
        gone_after_s=near_after_s(readers, went, ended),
        rates={each.kind.job: each.noted.allowed[-1][1] for each in [*readers, *others]},
    )


def obey_quota() -> None:
    """Halve the quota of a dataset on the SSD of a real mount, by `dlcmd alloc set-cache`."""
    with (
        scratch("obey") as folder,
        tempfile.TemporaryDirectory(prefix="dieselfs-bench-", dir="/dev/shm") as memory,
        patch.dict(os.environ, {VARIABLE: memory}),
    ):
        make_tree(folder / "files", _FILES, 10, _FILE_BYTES)
        dlcmd("put", "-q", "--chunk-size", "1MiB", f"{folder / 'files'}/", "pets", folder=folder)
        root = folder / "mnt"
        root.mkdir()
        options = ["--ssd", str(folder / "ssd"), "--ssd-size", "128MiB", "--job", "resnet"]
        dlcmd("mount", "-q", "--front", "fuse", *options, "pets", root, folder=folder)
        try:

            def held() -> int:
                stats = json.loads((root / ".dieselfs/stats.json").read_text())
                return int(stats["allocation"]["held_bytes"])

            for path in sorted(root.glob("*/*")):
                path.read_bytes()
            seconds_until(lambda: held() > _FILES * _FILE_BYTES * 0.9)
            before = held()
            quota = before // 2
            dlcmd("alloc", "set-cache", "pets", str(quota), folder=folder)
            took_s = seconds_until(lambda: held() <= quota)
            say(
                "how soon is less quota kept on an SSD",
                held_before_bytes=before,
                quota_bytes=quota,
                held_bytes=held(),
                quota_kept_after_s=took_s,
            )
        finally:
            dlcmd("umount", "-q", root, folder=folder)


def most_allowed(readers: Sequence[ReaderProcess], since: float, until: float) -> float:
    """The most that all readers were allowed together at any time."""
    events = sorted(
        (at, number, float("inf") if rate is None else rate)
        for number, each in enumerate(readers)
        for at, rate in each.noted.allowed
    )
    now = [0.0] * len(readers)
    most = 0.0
    for at, number, rate in events:
        now[number] = rate
        if since <= at < until:
            most = max(most, sum(now))
    return most


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
    say(
        "what does a beat cost",
        readers=readers,
        beat_us=took_s / beats * 1e6,
        of_the_server_us=float(calls["usec_per_call"]),
        sent_bytes=traffic["total_net_input_bytes"] / beats,
        received_bytes=traffic["total_net_output_bytes"] / beats,
    )


def say(question: str, **figures: object) -> None:
    for name, value in figures.items():
        print(f"  {name:24} {value}  {BARS.get(name, '')}", file=sys.stderr)
    report(question, **figures)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("share", "faults", "obey", "beat"), help="one question")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    options = parser.parse_args()
    if options.only in (None, "share"):
        for in_step, equally in itertools.product((True, False), (True, False)):
            share(options.seconds, equally=equally, in_step=in_step)
        share(options.seconds, equally=False, in_step=True, threads=4)
    if options.only in (None, "faults"):
        for case in ("allocator", "Redis", "both"):
            faults(case, options.seconds)
    if options.only in (None, "obey"):
        obey_rates(options.seconds)
        obey_jobs(options.seconds)
        obey_quota()
    if options.only in (None, "beat"):
        for readers in READERS:
            beat(readers)


if __name__ == "__main__":
    main()
