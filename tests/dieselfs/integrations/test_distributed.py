"""Ranks of a real process group, with no word of ranks from the caller."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from dieselfs.errors import UsageError
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from tests.dieselfs.integrations.conftest import MadeDataset


def train(
    made: MadeDataset, place: Path, rank: int, world_size: int, state: Any, batches: int, told: Any
) -> None:
    """One rank: the samples that it got, and its state. The sum over ranks would hang if one had
    fewer batches. Odd ranks make their loader before they join the others."""

    def make() -> ChunkShuffleLoader[Any]:
        sampler = ChunkShuffleSampler(made.paths, snapshot=made.snapshot_file, seed=1, group_size=3)
        samples: Any = range(len(made.paths))
        return ChunkShuffleLoader(samples, 16, sampler=sampler, num_workers=1)

    early = make() if rank % 2 else None
    torch.distributed.init_process_group(
        "gloo", f"file://{place}", rank=rank, world_size=world_size
    )
    loader = early or make()
    assert len(loader) == -(-len(made.paths) // world_size // 16)
    assert loader.sampler.num_replicas == torch.distributed.get_world_size()
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


def start_alone(made: MadeDataset, place: Path, told: Any) -> None:
    """A process that reads before it is a rank."""
    sampler = ChunkShuffleSampler(made.paths, snapshot=made.snapshot_file)
    next(iter(sampler))
    torch.distributed.init_process_group("gloo", f"file://{place}", rank=0, world_size=1)
    assert len(sampler) == 550
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "get_world_size", lambda: 2)
        with pytest.raises(UsageError, match=r"rank 0 of 1, .* rank 0 of 2 since then"):
            iter(sampler)
    torch.distributed.destroy_process_group()
    told.put("done")


def test_a_process_group_in_the_middle_of_an_epoch(pets: MadeDataset, tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    told = fork.Queue()
    process = fork.Process(target=start_alone, args=(pets, tmp_path / "world", told))
    process.start()
    assert told.get(timeout=60) == "done"
    process.join(60)
