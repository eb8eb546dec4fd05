"""How soon is another allocation obeyed?

1. A job's rate is changed by hand, and a fourth job comes and goes under an allocator. Expectation:
   readers beat once a second, obey less at once and more a beat later, so 1 s and 2 s. The
   allocator looks once a second as well, and needs two leases to know a speed: 3 to 4 s.
2. A mount's quota on its SSD is halved. Expectation: a beat and the tier's tick, 2 s.
"""

from __future__ import annotations

import json
import time

from benchmarks.allocated_reader import CHUNK_BYTES, ReaderKind, reader_processes
from benchmarks.allocation_figures import near_after_s, obeyed_after_s
from benchmarks.allocator_process import JOBS, scratch_redis, seconds_until, start_allocator
from benchmarks.harness import dlcmd, make_tree, report_with_bars, scratch
from dieselfs.allocation.directory.redis_directory import RedisDirectory
from tests.own_node_memory import own_node_memory

RATE = 100e6
WARM_UP_S = 20.0
BARS = {
    "less_obeyed_after_s": "<= 2",
    "more_obeyed_after_s": "<= 2",
    "come_after_s": "<= 5",
    "gone_after_s": "<= 5",
    "quota_kept_after_s": "<= 10",
}
_FILES, _FILE_BYTES = 600, 110 << 10


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
    report_with_bars(
        BARS,
        "how soon is another rate obeyed",
        less_obeyed_after_s=obeyed_after_s(readers, times[1], RATE / 10),
        more_obeyed_after_s=obeyed_after_s(readers, times[2], RATE / 2),
    )


def obey_jobs(seconds: float) -> None:
    """Let a fourth job come and go under an allocator."""
    late = ReaderKind("late", speed_bytes_per_s=20e6, chunk_bytes=CHUNK_BYTES // 4)
    with scratch_redis() as server:
        allocator = start_allocator(server.url)
        with reader_processes(server.url, JOBS) as readers:
            time.sleep(min(WARM_UP_S, 2 * seconds))
            with reader_processes(server.url, [late]) as others:
                came = time.monotonic()
                time.sleep(seconds / 2)
                went = time.monotonic()
            time.sleep(seconds / 2)
            ended = time.monotonic()
        allocator.kill()
        allocator.wait()
    report_with_bars(
        BARS,
        "how soon do all jobs have what an allocator gives them",
        come_after_s=near_after_s([*readers, *others], came, went),
        gone_after_s=near_after_s(readers, went, ended),
        rates={each.kind.job: each.noted.allowed[-1][1] for each in [*readers, *others]},
    )


def obey_quota() -> None:
    """Halve the quota of a dataset on the SSD of a real mount, by `dlcmd alloc set-cache`."""
    with (
        scratch("obey") as folder,
        own_node_memory(),
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
            report_with_bars(
                BARS,
                "how soon is less quota kept on an SSD",
                held_before_bytes=before,
                quota_bytes=quota,
                held_bytes=held(),
                quota_kept_after_s=took_s,
            )
        finally:
            dlcmd("umount", "-q", root, folder=folder)
