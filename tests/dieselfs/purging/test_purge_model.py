"""Random histories with purges in between: nothing is lost, and the index stays what the store alone would make."""

from __future__ import annotations

import random

import pytest

from dieselfs.purging.request import PurgeRequest
from tests.dieselfs.purging.purged_dataset import TARGET, PurgedDataset, random_change

HISTORIES = 60


def random_request(draw: random.Random) -> PurgeRequest:
    return PurgeRequest(
        leave=draw.choice([0, 0.01, 0.5]),
        grace_s=draw.choice([0, 0, 3600]),
        small_bytes=draw.choice([0, 1 << 10]),
        round_bytes=draw.choice([1, 6000, 1 << 30]),
        target_bytes=TARGET,
    )


@pytest.mark.parametrize("part", range(4))
def test_purges_at_random_points(part: int) -> None:
    for seed in range(part, HISTORIES, 4):
        draw = random.Random(seed)
        world = PurgedDataset()
        for _ in range(draw.randint(2, 8)):
            for _ in range(draw.randint(1, 4)):
                random_change(world, draw)
            world.purge(random_request(draw))
            world.check()
        if world.files:
            world.delete(*world.files)
        for directory in sorted(world.directories - {b""}):
            if directory in world.directories:
                world.delete_tree(directory)
        world.purge()
        world.check()
