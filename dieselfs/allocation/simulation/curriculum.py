"""Curriculum learning: draws from a part of the dataset that grows (SiloD §7.4, Figure 16).

Items are sorted by difficulty. Iteration i draws its batch uniformly, with replacement, from the
first g(i) = min(starting_percent * alpha^floor(i / Step), 1) * N of them. (Equation 10 as printed
has no 1 in its minimum, which would then do nothing.) A cached item may be drawn at once, so LRU
and uniform caching hit equally often: c/g once the part is larger than the cache. If the seed of
the draws is told, what is drawn farthest in the future can be evicted, and more are hits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from dieselfs.allocation.simulation.known_orders import OrderedItems, Rule

_WINDOWS = 200
"""Parts of a job within which fetching ahead evens out its misses."""


@dataclass(frozen=True, slots=True)
class Curriculum:
    """A job that draws by a pacing function. Defaults that the paper does not give are choices."""

    step_iterations: int
    dataset_bytes: int = 1360 * 1000**3
    speed_bytes_per_s: float = 114e6
    iterations: int = 400_000
    batch_bytes: float = 64 * 96_000.0
    """64 images of ImageNet-22k."""
    starting_share: float = 0.04
    alpha: float = 2.0

    def share(self, iteration: int) -> float:
        """Return g(i)/N, equation 10."""
        grown = self.starting_share * self.alpha ** (iteration // self.step_iterations)
        return min(grown, 1.0)


def curriculum_s(
    job: Curriculum,
    cache_bytes: float,
    io_bytes_per_s: float,
    *,
    rule: Rule,
    items: int = 10_000,
    seed: int = 1,
) -> float:
    """Return how long the job takes with a cache of single items; `items` make up the dataset."""
    item_bytes = job.dataset_bytes / items
    draws = round(job.iterations * job.batch_bytes / item_bytes)
    chance = random.Random(seed)
    drawn = [
        str(chance.randrange(max(1, int(items * job.share(draw * job.iterations // draws)))))
        for draw in range(draws)
    ]
    memory = OrderedItems(drawn, rule, int(cache_bytes / item_bytes))
    misses = [0] * _WINDOWS
    for draw in range(draws):
        misses[draw * _WINDOWS // draws] += not memory.read_next()
    computing_s = draws * item_bytes / job.speed_bytes_per_s / _WINDOWS
    return sum(max(computing_s, missed * item_bytes / io_bytes_per_s) for missed in misses)
