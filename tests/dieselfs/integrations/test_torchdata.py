"""torchdata's StatefulDataLoader over a sampler whose state is what was drawn."""

import json
from collections import Counter
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from dieselfs.errors import UsageError
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from tests.dieselfs.integrations.conftest import MadeDataset

# torchdata 0.11 calls what torch has deprecated since.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
Loader = StatefulDataLoader[int]


def loader_of(
    made: MadeDataset, workers: int = 0, batch_size: int = 16, every: int = 1, **options: Any
) -> tuple[ChunkShuffleSampler, Loader]:
    sampler = ChunkShuffleSampler(
        made.paths,
        snapshot=made.snapshot_file,
        **{"group_size": 3, "seed": 1, "progress": "drawn", **options},
    )
    samples: Any = range(len(made.paths))
    return sampler, StatefulDataLoader(
        samples, batch_size, sampler=sampler, num_workers=workers, snapshot_every_n_steps=every
    )


def read(loader: Loader, batches: int | None = None) -> list[int]:
    found: list[int] = []
    for number, batch in enumerate(loader, 1):
        found += batch.tolist()
        if number == batches:
            break
    return found


def order_of(made: MadeDataset, epoch: int = 0, **options: Any) -> list[int]:
    sampler, _ = loader_of(made, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """The sampler's part of a state is for JSON; the loader's own has tensors of seeds."""
    assert json.dumps(state.get("_snapshot", state), default=str)
    return state


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("every", [1, 4])
def test_resume(pets: MadeDataset, workers: int, epoch: int, every: int) -> None:
    sampler, loader = loader_of(pets, workers, every=every)
    for earlier in range(epoch):
        sampler.set_epoch(earlier)
        assert len(read(loader)) == 550
    sampler.set_epoch(epoch)
    found = read(loader, 9)
    state = through_json(loader.state_dict())
    for _ in range(2):  # a resumed epoch is resumed again
        sampler, loader = loader_of(pets, workers, every=every)
        loader.load_state_dict(state)
        sampler.set_epoch(epoch)
        found += read(loader, 7)
        state = loader.state_dict()
    sampler, loader = loader_of(pets, workers, every=every)
    loader.load_state_dict(state)
    sampler.set_epoch(epoch)
    found += read(loader)
    assert found == order_of(pets, epoch)
    sampler.set_epoch(epoch + 1)
    assert read(loader) == order_of(pets, epoch + 1)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_resume_with_another_number_of_workers(pets: MadeDataset, before: int, after: int) -> None:
    """The loader refuses it; the sampler takes the loader's state."""
    sampler, loader = loader_of(pets, before)
    sampler.set_epoch(3)
    found = read(loader, 13)
    resumed, other = loader_of(pets, after, batch_size=20)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == 3
    resumed.set_epoch(3)
    assert found + read(other) == order_of(pets, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_states_at_the_end_of_an_epoch(pets: MadeDataset, workers: int) -> None:
    """In the loop at its last batch, and after the loop; with and without set_epoch."""
    sampler, loader = loader_of(pets, workers)
    sampler.set_epoch(1)
    states = []
    for _ in loader:
        last = loader.state_dict()
    states = [last, loader.state_dict()]
    for state in states:
        for asked, expected in [(1, []), (2, order_of(pets, 2))]:
            sampler, loader = loader_of(pets, workers)
            loader.load_state_dict(state)
            sampler.set_epoch(asked)
            assert read(loader) == expected
            sampler.set_epoch(2)
            assert read(loader) == order_of(pets, 2)
    sampler, loader = loader_of(pets, workers)
    loader.load_state_dict(states[1])
    assert read(loader) == order_of(pets, 1)  # as an uninterrupted loop without set_epoch
    resumed, loader = loader_of(pets, 1)
    resumed.load_state_dict(states[1])
    lengths = []
    for epoch in range(resumed.epoch, 3):
        resumed.set_epoch(epoch)
        lengths.append(len(read(loader)))
    assert lengths == [0, 550]


@pytest.mark.parametrize("workers", [0, 2])
def test_another_world_size(pets: MadeDataset, workers: int) -> None:
    state: dict[str, Any] | None = None
    seen: Counter[int] = Counter()
    for world_size, batches in [(2, 5), (3, 4), (1, None)]:
        states = []
        for rank in range(world_size):
            _, loader = loader_of(pets, workers, rank=rank, world_size=world_size)
            if state is not None:
                loader.load_state_dict(state)
            seen.update(read(loader, batches))
            states.append(loader.state_dict())
        state = states[-1]
    assert seen == Counter(range(550))


def test_an_epoch_that_is_not_the_state_s(pets: MadeDataset) -> None:
    sampler, loader = loader_of(pets)
    sampler.set_epoch(2)
    read(loader, 3)
    other, resumed = loader_of(pets)
    resumed.load_state_dict(loader.state_dict())
    other.set_epoch(0)
    with pytest.raises(UsageError, match=r"middle of epoch 2, and set_epoch\(0\)"):
        read(resumed)


def test_a_state_that_lacks_batches(pets: MadeDataset) -> None:
    _, loader = loader_of(pets, 2, every=4)
    read(loader, 9)
    sampler, _ = loader_of(pets)
    with pytest.raises(UsageError, match="1 batches past"):
        sampler.load_state_dict(loader.state_dict())


def test_other_loaders(pets: MadeDataset) -> None:
    """Without the caller's word the sampler does not count what is drawn, and with it a
    ChunkShuffleLoader does not take it."""
    _, loader = loader_of(pets, progress="delivered")
    with pytest.raises(UsageError, match="draws indices ahead") as refused:
        read(loader, 1), loader.state_dict()
    assert 'progress="drawn"' in (refused.value.hint or "")
    samples: Any = range(550)
    sampler, _ = loader_of(pets)
    with pytest.raises(UsageError, match="drawn"):
        next(iter(ChunkShuffleLoader(samples, sampler=sampler)))
    with pytest.raises(UsageError, match="progress is 'read'"):
        loader_of(pets, progress="read")


def test_two_loaders_over_one_sampler(pets: MadeDataset) -> None:
    for progress, kinds in [
        ("drawn", (StatefulDataLoader, DataLoader)),
        ("delivered", (ChunkShuffleLoader, DataLoader)),
    ]:
        for kind in kinds:
            sampler, _ = loader_of(pets, progress=progress)
            samples: Any = range(550)
            one, other = (kind(samples, 16, sampler=sampler) for _ in range(2))
            reading = iter(one)
            next(reading)
            assert len(list(other)) == 35
            with pytest.raises(UsageError, match="another loader"):
                next(reading)
