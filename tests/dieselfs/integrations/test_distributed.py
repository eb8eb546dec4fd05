"""Ranks of a real process group, with no word of ranks from the caller."""

import multiprocessing
from pathlib import Path
from typing import Any

import torch.distributed

from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from tests.dieselfs.integrations.conftest import MadeDataset


def train(
    made: MadeDataset, place: Path, rank: int, world_size: int, state: Any, batches: int, told: Any
) -> None:
    """One rank: the samples that it got, and its state. The sum over ranks would hang if one had
    fewer batches."""
    torch.distributed.init_process_group(
        "gloo", f"file://{place}", rank=rank, world_size=world_size
    )
    sampler = ChunkShuffleSampler(made.paths, snapshot=made.snapshot_file, seed=1, group_size=3)
    samples: Any = range(len(made.paths))
    loader = ChunkShuffleLoader(samples, 16, sampler=sampler, num_workers=1)
    if state is not None:
        loader.load_state_dict(state)
    found: list[int] = []
    for number, batch in enumerate(loader, 1):
        found += batch.tolist()
        torch.distributed.all_reduce(torch.ones(1))
        if number == batches:
            break
    told.put((rank, found, loader.state_dict()))
    torch.distributed.destroy_process_group()


def run(made: MadeDataset, folder: Path, world_size: int, state: Any, batches: int) -> Any:
    """What the ranks got together, and the last one's state."""
    fork = multiprocessing.get_context("fork")
    told = fork.Queue()
    place = folder / f"world{world_size}"
    ranks = [
        fork.Process(target=train, args=(made, place, rank, world_size, state, batches, told))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    answers = sorted(told.get(timeout=60) for _ in ranks)
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    return [index for _, found, _ in answers for index in found], answers[-1][2]


def test_another_world_goes_on(pets: MadeDataset, tmp_path: Path) -> None:
    first, state = run(pets, tmp_path, 2, None, 5)
    assert len(first) == 2 * 5 * 16
    second, _ = run(pets, tmp_path, 3, state, 1000)
    assert len(second) == 390
    assert sorted(first + second) == list(range(550))
