"""The loader: what was delivered before and after a state was saved is the epoch, however many
workers draw ahead."""

from collections import Counter
from typing import Any

import pytest
from torch.utils.data import DataLoader, SequentialSampler, Subset

from dieselfs.errors import UsageError
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from tests.dieselfs.integrations.conftest import MadeDataset

# Three workers are more than some machines have processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 3, "prefetch_factor": 4},
    {"num_workers": 2, "persistent_workers": True},
]


class Indices:
    """Samples that say which they are. What they are read from does not matter here."""

    def __init__(self, made: MadeDataset) -> None:
        self.samples = [(path, 0) for path in made.paths]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        return index


def loader_of(
    made: MadeDataset, batch_size: int = 16, workers: dict[str, Any] | None = None, **options: Any
) -> ChunkShuffleLoader[Any]:
    samples: Any = Indices(made)
    sampler = ChunkShuffleSampler(
        samples, snapshot=made.snapshot_file, **{"group_size": 3, "seed": 1, **options}
    )
    return ChunkShuffleLoader(samples, batch_size, sampler=sampler, **(workers or {}))


def read(loader: ChunkShuffleLoader[Any], batches: int | None = None) -> list[int]:
    """The samples of the next batches, or of all that are left."""
    found: list[int] = []
    for number, batch in enumerate(loader, 1):
        found += batch.tolist()
        if number == batches:
            break
    return found


@pytest.mark.parametrize("first", WORKERS)
@pytest.mark.parametrize("second", WORKERS[:3])
def test_resume_with_another_number_of_workers(
    pets: MadeDataset, first: dict[str, Any], second: dict[str, Any]
) -> None:
    before, after = loader_of(pets, 16, first), loader_of(pets, 20, second)
    trained = read(before, 13)
    after.load_state_dict(before.state_dict())
    assert len(trained) == 13 * 16
    trained += read(after)
    assert trained == list(loader_of(pets).sampler)


def test_a_batch_is_done_once_the_loop_has_it(pets: MadeDataset) -> None:
    loader = loader_of(pets, workers=WORKERS[1])
    done = [loader.state_dict()["stages"][0]["samples_done"]]
    for _ in loader:
        done.append(loader.state_dict()["stages"][0]["samples_done"])
    assert done == [*range(0, 550, 16), 550]
    loader.set_epoch(1)
    assert loader.state_dict()["stages"][0]["samples_done"] == 0
    assert loader.state_dict()["epoch"] == 1


def test_epochs_with_workers_that_stay(pets: MadeDataset) -> None:
    loader = loader_of(pets, workers=WORKERS[3])
    loader.sampler.load_state_dict(loader_of(pets).sampler.state_dict(samples_done=500))
    assert len(read(loader)) == 50
    epochs = []
    for epoch in (1, 2):
        loader.set_epoch(epoch)
        epochs.append(read(loader))
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(550))
    assert epochs[0] != epochs[1]


def test_a_state_at_the_end_of_an_epoch_leads_to_the_next(pets: MadeDataset) -> None:
    """The usual loop, written once for a fresh start and for a resumed one."""
    before = loader_of(pets)
    assert len(read(before)) == 550
    loader = loader_of(pets, workers=WORKERS[1])
    loader.load_state_dict(before.state_dict())
    lengths = []
    for epoch in range(loader.sampler.epoch, 3):
        loader.set_epoch(epoch)
        lengths.append(len(read(loader)))
    assert lengths == [0, 550, 550]


def test_worlds_of_1_2_3_and_1(pets: MadeDataset) -> None:
    """Every rank of a world saves the same state, and any one's is enough for all ranks of the
    next."""
    state: dict[str, Any] | None = None
    seen: Counter[int] = Counter()
    for world_size, workers, batches in [(1, 2, 5), (2, 0, 6), (3, 2, 4), (1, 3, None)]:
        states, lengths = [], set()
        for rank in range(world_size):
            loader = loader_of(pets, 8, {"num_workers": workers}, rank=rank, world_size=world_size)
            if state is not None:
                loader.load_state_dict(state)
            lengths.add(len(loader))
            seen.update(read(loader, batches))
            states.append(loader.state_dict())
        assert len(lengths) == 1
        assert all(other == states[0] for other in states)
        state = states[world_size // 2]
    assert seen == Counter(range(550))


def test_a_plain_loader_with_a_number_of_batches(pets: MadeDataset) -> None:
    samples: Any = Indices(pets)
    options: dict[str, Any] = {"snapshot": pets.snapshot_file, "seed": 7, "batch_size": 10}
    sampler = ChunkShuffleSampler(samples, **options)
    trained: list[int] = []
    for number, batch in enumerate(DataLoader(samples, 10, sampler=sampler, num_workers=2), 1):
        trained += batch.tolist()
        if number == 9:
            break
    state = sampler.state_dict(batches_done=9)
    resumed = ChunkShuffleSampler(samples, **options)
    resumed.load_state_dict(state)
    for batch in DataLoader(samples, 10, sampler=resumed):
        trained += batch.tolist()
    assert trained == list(ChunkShuffleSampler(samples, **options))


def test_samples_without_batches(pets: MadeDataset) -> None:
    before, after = loader_of(pets), loader_of(pets)
    samples: Any = before.dataset
    before = ChunkShuffleLoader(samples, None, sampler=before.sampler)
    reading = iter(before)
    trained = [next(reading) for _ in range(7)]
    after.load_state_dict(before.state_dict())
    assert trained + read(after) == list(loader_of(pets).sampler)


def test_a_rank_without_samples_keeps_its_sampler(pets: MadeDataset) -> None:
    few = Subset(Indices(pets), [1, 2])  # type: ignore[arg-type]
    sampler = ChunkShuffleSampler(
        few, snapshot=pets.snapshot_file, rank=1, world_size=3, drop_last=True
    )
    loader = ChunkShuffleLoader(few, 16, sampler=sampler)
    assert loader.sampler is sampler
    assert read(loader) == []


@pytest.mark.parametrize("workers", WORKERS[:2])
def test_the_rest_of_an_epoch_again_after_a_part_of_it(
    pets: MadeDataset, workers: dict[str, Any]
) -> None:
    """However many samples workers have drawn ahead; after all of it the whole epoch again."""
    loader = loader_of(pets, 16, {"drop_last": True, **workers})
    loader.sampler.load_state_dict(loader_of(pets).sampler.state_dict(samples_done=500))
    assert len(read(loader, 1)) == 16
    assert len(read(loader)) == 48
    assert len(read(loader)) == 544


def test_dropped_last_batches_are_not_counted_as_read(pets: MadeDataset) -> None:
    loader = loader_of(pets, 100, {"drop_last": True, "num_workers": 2})
    assert len(read(loader)) == 500
    assert loader.state_dict()["stages"][0]["samples_done"] == 500


def test_another_order_is_refused(pets: MadeDataset) -> None:
    samples: Any = Indices(pets)
    sampler = ChunkShuffleSampler(samples, snapshot=pets.snapshot_file)
    with pytest.raises(UsageError, match="shuffle"):
        ChunkShuffleLoader(samples, sampler=sampler, shuffle=True)
    with pytest.raises(UsageError, match="in_order=False"):
        ChunkShuffleLoader(samples, sampler=sampler, num_workers=2, in_order=False)
    with pytest.raises(UsageError, match="the sampler is a SequentialSampler"):
        ChunkShuffleLoader(samples, sampler=SequentialSampler(samples))  # type: ignore[arg-type]


def test_a_sampler_of_other_samples_is_refused(pets: MadeDataset) -> None:
    class Less(Indices):
        def __init__(self) -> None:
            self.samples = [(path, 0) for path in pets.paths[:500]]

    class Reversed(Indices):
        def __init__(self) -> None:
            self.samples = [(path, 0) for path in pets.paths[::-1]]

    sampler = loader_of(pets).sampler
    other: Any
    for other, reason in [
        (Less(), "it is of 550 samples, and the dataset has 500"),
        (Reversed(), r"sample 0 is val/dog/sub/009\.bin there, and train/ant/sub/000\.bin here"),
    ]:
        with pytest.raises(UsageError, match=reason):
            ChunkShuffleLoader(other, sampler=sampler)


def test_two_loaders_over_one_sampler(pets: MadeDataset) -> None:
    """Each alone is as before; at the same time their counts would be one another's."""
    one = loader_of(pets, workers=WORKERS[1])
    other = ChunkShuffleLoader(one.dataset, 16, sampler=one.sampler)
    assert read(one) == read(other)
    reading = iter(one)
    next(reading)
    assert len(read(other, 2)) == 32
    with pytest.raises(UsageError, match="another loader"):
        next(reading)
    assert other.state_dict()["stages"][0]["samples_done"] == 32


def test_an_iteration_that_has_ended_takes_no_batch_of_the_next(pets: MadeDataset) -> None:
    """Workers that stay give the batches of both iterations."""
    loader = loader_of(pets, workers=WORKERS[3])
    ended, present = iter(loader), iter(loader)
    next(ended)
    found = next(present).tolist()
    with pytest.raises(UsageError, match="another loader"):
        next(ended)
    found += [sample for batch in present for sample in batch.tolist()]
    assert found == list(loader_of(pets).sampler)


def test_the_epoch_is_set_within_an_epoch(pets: MadeDataset) -> None:
    loader = loader_of(pets)
    reading = iter(loader)
    loader.set_epoch(1)  # before the first batch it is that epoch
    first = next(reading).tolist()
    loader.set_epoch(2)
    with pytest.raises(UsageError, match="its epoch was set"):
        next(reading)
    loader.set_epoch(1)
    assert read(loader, 1) == first
