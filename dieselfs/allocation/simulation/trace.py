"""The synthetic trace of SiloD §7.1.2: durations as Microsoft reports them, eleven kinds of jobs.

A job runs 10^x minutes without waiting, with x uniform in [1.5, 3] for 80 % of the jobs and in
[3, 4] for the others, on 1, 2, 4 or 8 GPUs. Its model and dataset are one of the pairs of Figure 6,
equally often. 400 busy GPUs then read 25 GB/s without waiting, the 200 Gbit/s of Figure 2.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Final

from dieselfs.allocation.jobs import Job

GB: Final = 1000**3
_IMAGES: Final = {"imagenet-22k": 1360 * GB, "open-images": 660 * GB, "imagenet-1k": 143 * GB}
_IMAGE_MODELS: Final = {"resnet50": 114e6, "resnet152": 43e6, "efficientnetb1": 69e6}
KINDS: Final = (
    *((m, speed, d, size) for m, speed in _IMAGE_MODELS.items() for d, size in _IMAGES.items()),
    ("vlad", 10e6, "youtube-8m", 1460 * GB),
    ("bert", 2e6, "web-search", 20971 * GB),
)
"""The jobs of Figure 6: model, bytes/s on one V100, dataset, bytes."""
GPUS: Final = (1, 2, 4, 8)
GPU_SHARES: Final = (0.70, 0.10, 0.15, 0.05)
MEAN_MINUTES: Final = 0.8 * (10**3 - 10**1.5) / (1.5 * math.log(10)) + 0.2 * (10**4 - 10**3) / (
    math.log(10)
)
"""1,006 minutes."""
MEAN_GPUS: Final = sum(gpus * share for gpus, share in zip(GPUS, GPU_SHARES, strict=True))


def synthetic_trace(
    count: int, cluster_gpus: int, load: float, *, seed: int = 1, speed_factor: float = 1.0
) -> list[Job]:
    """Return `count` jobs by submission, each with a dataset of its own.

    `load` is the GPU time that is submitted over the GPU time that the cluster has, so the queue
    grows with loads above 1. With a `speed_factor` GPUs are faster: jobs read faster, and end
    sooner.
    """
    chance = random.Random(seed)
    spacing_s = MEAN_MINUTES * 60 * MEAN_GPUS / (cluster_gpus * load)
    jobs, at_s = [], 0.0
    for number in range(count):
        model, speed, dataset, size = chance.choice(KINDS)
        gpus = chance.choices(GPUS, GPU_SHARES)[0]
        exponent = chance.uniform(1.5, 3) if chance.random() < 0.8 else chance.uniform(3, 4)
        total_bytes = speed * gpus * 60 * 10**exponent
        jobs.append(
            Job(
                f"{model}-{number}",
                f"{dataset}-{number}",
                size,
                speed * gpus * speed_factor,
                gpus,
                total_bytes / size,
                at_s,
            )
        )
        at_s += chance.expovariate(1 / spacing_s)
    return jobs


def with_shared_datasets(jobs: list[Job], share: float, *, seed: int = 1) -> list[Job]:
    """Let a share of the jobs read one copy of each of the five datasets (Figure 15)."""
    chance = random.Random(seed)
    return [
        replace(job, dataset=job.dataset.rpartition("-")[0]) if chance.random() < share else job
        for job in jobs
    ]
