"""The parts that questions of `bench_silod` share: changed set-ups, the figures of an outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dieselfs.allocation.jobs import Resources
from dieselfs.allocation.simulation.metrics import Outcome
from dieselfs.allocation.simulation.trace import GB
from dieselfs.cli.values.sizes import parse_rate, parse_size

SYSTEMS: Final = ("silod", "quiver", "coordl", "alluxio")
ORDERS: Final = ("fifo", "sjf", "max-min")
CACHES_A_GPU_GB: Final = (125, 250, 368)
CLUSTER: Final = Resources(400, 400 * CACHES_A_GPU_GB[0] * GB, 4e9)
"""400 V100s and 32 Gbit/s; the cache is the least of the sweep."""
CLUSTER_BEAT_S: Final = {"fifo": 300.0, "sjf": 300.0, "max-min": 900.0}
"""Under max-min thousands of jobs run by turns, and 900 s give what 300 s do within 1 %."""
_FIGURE_POINTS: Final = 200


class Change:
    """Remote IO and cache in the place of the paper's."""

    def __init__(self, remote_io: str | None, cache: str | None) -> None:
        self._io = None if remote_io is None else parse_rate(remote_io)
        self._cache = None if cache is None else parse_size(cache)

    def __bool__(self) -> bool:
        return self._io is not None or self._cache is not None

    def of(self, total: Resources) -> Resources:
        io = total.io_bytes_per_s if self._io is None else float(self._io)
        cache = total.cache_bytes if self._cache is None else self._cache
        return replace(total, io_bytes_per_s=io, cache_bytes=cache)


def throughput(found: Outcome) -> dict[str, list[int]]:
    """Return rates over time, with few enough points for a plot."""
    at_s, rates = found.course("rate", _FIGURE_POINTS)
    of = {
        "mb_per_s": rates,
        "ideal_mb_per_s": found.course("ideal_rate", _FIGURE_POINTS)[1],
        "io_mb_per_s": found.course("io_rate", _FIGURE_POINTS)[1],
    }
    minutes = {"minutes": [round(seconds / 60) for seconds in at_s]}
    return minutes | {name: [round(value / 1e6) for value in of[name]] for name in of}


def figures(found: Outcome) -> dict[str, object]:
    """Return what is reported of a cluster."""
    median, ninth, last = found.jct_percentiles_s()
    least, tenth, middle = found.fairness()
    return {
        "jct_min": found.mean_jct_s() / 60,
        "makespan_min": found.makespan_s() / 60,
        "jct_percentiles_min": {"50": median / 60, "90": ninth / 60, "99": last / 60},
        "rate_over_ideal": found.rate_over_ideal(),
        "effective_over_held": found.effective_over_held(),
        "io_bytes_per_s": found.mean_io_rate(),
        "fairness": {"min": least, "10": tenth, "50": middle},
    }


def over(found: Outcome, silod: Outcome) -> dict[str, float]:
    """Return how many times as long as with SiloD it takes."""
    return {
        "jct_over_silod": found.mean_jct_s() / silod.mean_jct_s(),
        "makespan_over_silod": found.makespan_s() / silod.makespan_s(),
    }
