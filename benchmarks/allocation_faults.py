"""Do readers depend on the allocator and the Redis?

Three jobs read under an allocator while that is killed, while the Redis is killed and restarted
with its data, and while both are killed and the Redis has lost all. Expectation: nobody depends on
either, so no read fails and no job's rate changes. With its data the Redis gives the same
allocation at once. Without it, readers renew their leases within 4 s, and the allocator needs 2
more.
"""

from __future__ import annotations

import time

from benchmarks.allocated_reader import reader_processes
from benchmarks.allocation_figures import are_near, left_of, most_allowed, most_in
from benchmarks.allocator_process import (
    JOBS,
    TOTAL,
    leader_of,
    rates_of,
    scratch_redis,
    seconds_until,
    start_allocator,
)
from benchmarks.harness import report_with_bars
from dieselfs.allocation.directory.redis_directory import RedisDirectory

WARM_UP_S = 20.0
WINDOW_S = 10.0
BARS = {
    "most_of_10_s": "<= 1.05",
    "worst_rate_error": "<= 0.05",
    "read_errors": "0",
    "most_allowed": "<= 1",
    "taken_over_after_s": "<= 5",
    "same_allocation_after_s": "<= 5; from leases alone <= 10",
}


def faults(case: str, seconds: float) -> None:
    """Kill the allocator, the Redis or both at a quarter of the time, under load."""
    with scratch_redis() as server, reader_processes(server.url, JOBS) as readers:
        directory = RedisDirectory(server.url)
        allocators = [start_allocator(server.url)]
        if case == "allocator":
            allocators.append(start_allocator(server.url))
        seconds_until(lambda: len(rates_of(directory)) == len(JOBS))
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
    report_with_bars(
        BARS,
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
