"""Random histories with purges in between: nothing is lost, and the index stays what the store
alone would make."""

from __future__ import annotations

import random

import pytest

from dieselfs.dataset.dataset import open_dataset
from dieselfs.housekeeping.purge.purge import purge
from dieselfs.housekeeping.purge.purge_request import PurgeRequest
from tests.dieselfs.housekeeping.purge.interrupted_calls import Interference, stepped
from tests.dieselfs.housekeeping.purge.purged_dataset import (
    NAME,
    TARGET,
    PurgedDataset,
    random_change,
)


def random_request(draw: random.Random) -> PurgeRequest:
    return PurgeRequest(
        leave=draw.choice([0, 0.01, 0.5]),
        grace_s=draw.choice([0, 0, 3600]),
        small_bytes=draw.choice([0, 1 << 10]),
        round_bytes=draw.choice([1, 6000, 1 << 30]),
        target_bytes=TARGET,
    )


@pytest.mark.parametrize("seed", range(8))
def test_purges_at_random_points(seed: int) -> None:
    draw = random.Random(seed)
    world = PurgedDataset()
    for _ in range(draw.randint(2, 8)):
        for _ in range(draw.randint(1, 4)):
            random_change(world, draw)
        world.purge(random_request(draw))
        world.check()
    clear(world)


@pytest.mark.parametrize("seed", range(8))
def test_writers_go_on_while_a_purge_runs(seed: int) -> None:
    """Puts, overwrites and deletions, of whole directories too, between any two calls that the
    purge makes."""
    draw = random.Random(seed)
    world = PurgedDataset()
    for _ in range(8):
        random_change(world, draw)
    changes = 0
    for _ in range(4):
        interference = Interference(
            draw, draw.choice([20, 100]), 6, lambda: random_change(world, draw)
        )
        store, index = stepped(world.store, world.index, interference)
        purge(open_dataset(store, index, NAME), random_request(draw))
        changes += interference.changes
        world.check()
    assert changes
    clear(world)


def clear(world: PurgedDataset) -> None:
    """Delete everything; then nothing of it is left after a purge, no deletion either."""
    if world.files:
        world.delete(*world.files)
    for directory in sorted(world.directories):
        if directory in world.directories:
            world.delete_tree(directory)
    world.purge()
    world.check()
    assert not any(entry for entry in world.entries() if entry != b"")
