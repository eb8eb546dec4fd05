"""The sampler alone: which samples, in which order, for whom, and from where after a state was
loaded."""

import json
import pickle
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, Subset

from dieselfs.errors import Conflict, UsageError
from dieselfs.integrations.class_folders import class_folders
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler, distributed_rank
from dieselfs.shuffle.order import shuffle_order
from tests.dieselfs.integrations.conftest import MadeDataset, make


def sampler_of(made: MadeDataset, paths: Any = None, **options: Any) -> ChunkShuffleSampler:
    return ChunkShuffleSampler(
        made.paths if paths is None else paths,
        snapshot=made.snapshot_file,
        **{"group_size": 3, **options},
    )


def ranks_of(made: MadeDataset, world_size: int, **options: Any) -> list[ChunkShuffleSampler]:
    return [
        sampler_of(made, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]


def most_chunks_at_hand(made: MadeDataset, order: list[str]) -> int:
    """How many chunks must be in memory at a time, if each is there from its first file to its
    last."""
    with made.snapshot as snapshot:
        chunks = [snapshot.chunk_number(inode) for inode in snapshot.resolve_many(order).tolist()]
    last = {chunk: position for position, chunk in enumerate(chunks)}
    first = {chunk: chunks.index(chunk) for chunk in last}
    return max(
        sum(first[chunk] <= position <= last[chunk] for chunk in last)
        for position in range(len(chunks))
    )


def test_whole_dataset_in_the_order_that_everybody_else_gives_it(pets: MadeDataset) -> None:
    sampler = sampler_of(pets, seed=4)
    sampler.set_epoch(2)
    with pets.snapshot as snapshot:
        order = shuffle_order(snapshot.chunk_first_inode, 4, 2, 3)
        text = snapshot.paths_text(order.inodes).decode().splitlines()
    assert [pets.paths[index] for index in sampler] == text
    assert len(sampler) == len(text)


def test_any_files_in_any_order_of_samples(pets: MadeDataset) -> None:
    """Chunk-wise over exactly these files, and the same files whatever their indices are."""
    chosen = random.Random(1).sample(pets.paths, 321)
    sampler = sampler_of(pets, chosen)
    order = [chosen[index] for index in sampler]
    assert sorted(order) == sorted(chosen)
    assert order == [sorted(chosen)[index] for index in sampler_of(pets, sorted(chosen))]
    assert most_chunks_at_hand(pets, order) == 3


def test_a_link_is_no_sample(tmp_path: Path) -> None:
    made = make(tmp_path, ["train/cat/1", "train/cat/2"])
    with made.client() as client:
        client.put_link("cat/1", "train/link")
        client.put_link("1", "train/cat/3")
        client.flush()
        client.load_meta(client.save_meta())
        snapshot = client.snapshot
        assert snapshot is not None
        assert sorted(client.shuffle(task="links")) == made.paths
        with pytest.raises(UsageError, match="train/cat/3 is a symbolic link"):
            ChunkShuffleSampler(["train/cat/1", "train/cat/3"], snapshot=snapshot)
        assert len(ChunkShuffleSampler(made.paths, snapshot=snapshot)) == 2
        found = class_folders(snapshot, "train")
        assert sorted(map(snapshot.path_of, found.inodes.tolist())) == [
            b"train/cat/1",
            b"train/cat/2",
        ]


def test_a_subset_of_a_dataset(pets: MadeDataset) -> None:
    class Samples:
        samples = [(path, 0) for path in pets.paths]  # noqa: RUF012

    indices = random.Random(2).sample(range(len(pets.paths)), 77)
    subset: Any = Subset(Subset(Samples(), range(len(pets.paths))), indices)  # type: ignore[arg-type]
    sampler = sampler_of(pets, subset)
    found = [pets.paths[indices[index]] for index in sampler]
    chosen = [pets.paths[index] for index in indices]
    assert found == [chosen[index] for index in sampler_of(pets, chosen)]


def test_epochs(pets: MadeDataset) -> None:
    sampler = sampler_of(pets)
    first, again = list(sampler), list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert first == again  # as DistributedSampler without set_epoch
    assert first != second
    assert sorted(first) == sorted(second) == list(range(len(pets.paths)))


@pytest.mark.parametrize(("world_size", "drop_last"), [(3, False), (7, True), (7, False)])
def test_ranks_get_equally_many(pets: MadeDataset, world_size: int, drop_last: bool) -> None:
    paths = pets.paths[:500]
    ranks = [
        sampler_of(pets, paths, rank=rank, world_size=world_size, drop_last=drop_last)
        for rank in range(world_size)
    ]
    shares = [list(sampler) for sampler in ranks]
    count = 500 // world_size if drop_last else -(-500 // world_size)
    assert {len(share) for share in shares} == {len(sampler) for sampler in ranks} == {count}
    seen = Counter(index for share in shares for index in share)
    assert len(seen) == (count * world_size if drop_last else 500)
    assert seen.total() == count * world_size


def test_numbers_of_numpy_make_a_plain_state(pets: MadeDataset) -> None:
    one, two = np.int64(1), np.int64(2)
    sampler = sampler_of(
        pets, seed=one, rank=one, world_size=two, group_size=two, drop_last=np.bool_(True)
    )
    sampler.set_epoch(two)
    state = json.loads(json.dumps(sampler.state_dict(samples_done=np.int64(7))))
    resumed = sampler_of(pets, rank=1, world_size=2, group_size=2, drop_last=True)
    resumed.load_state_dict(state)
    assert list(resumed) == list(sampler)[7:]
    with pytest.raises(TypeError, match="'float' object"):
        sampler.set_epoch(1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("world_size", "expected"), [("", 1), ("2", 2)])
def test_world_size_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, world_size: str, expected: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world_size)
    assert distributed_rank() == (0, expected)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(UsageError, match="RANK=first in the environment is not a number"):
        distributed_rank()


def test_rank_from_the_environment(pets: MadeDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert distributed_rank() == (0, 1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(sampler_of(pets)) == list(sampler_of(pets, rank=1, world_size=2))


@pytest.mark.parametrize("done", [0, 1, 100, 549, 550])
def test_resume(pets: MadeDataset, done: int) -> None:
    """From a state that went through JSON, into a sampler that was made anew."""
    whole = list(sampler_of(pets, seed=5))
    before = sampler_of(pets, seed=5)
    drawn = iter(before)
    assert [next(drawn) for _ in range(min(550, done + 50))][:done] == whole[:done]
    state = json.loads(json.dumps(before.state_dict(samples_done=done)))
    after = sampler_of(pets)  # its seed is the state's
    after.load_state_dict(state)
    assert (after.samples_left, len(after)) == (550 - done, 550)
    after.set_epoch(0)  # the epoch that it is in anyhow
    assert list(after) == whole[done:]
    assert list(after) == whole  # that epoch is over: a whole one


def test_resume_of_a_resumed_epoch_by_batches(pets: MadeDataset) -> None:
    whole = list(sampler_of(pets, seed=5))
    state = sampler_of(pets, seed=5, batch_size=32).state_dict(batches_done=3)
    for batch_size in (10, 64, 1):
        sampler = sampler_of(pets, seed=5, batch_size=batch_size)
        sampler.load_state_dict(state)
        state = sampler.state_dict(batches_done=2)
    sampler.load_state_dict(state)
    assert list(sampler) == whole[3 * 32 + 2 * 10 + 2 * 64 + 2 * 1 :]
    last = sampler.state_dict(batches_done=10**6)
    sampler.load_state_dict(last)
    assert (sampler.samples_left, list(sampler)) == (0, [])


def test_the_state_of_another_epoch_is_left_by_set_epoch(pets: MadeDataset) -> None:
    sampler = sampler_of(pets)
    sampler.set_epoch(3)
    state = sampler.state_dict(samples_done=10)
    other = sampler_of(pets)
    other.load_state_dict(state)
    assert (other.epoch, other.samples_left) == (3, 540)
    other.set_epoch(4)
    assert len(list(other)) == 550


worlds = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 60)), min_size=1, max_size=5
)


@settings(max_examples=40)
@given(worlds=worlds, drop_last=st.booleans(), seed=st.integers(0, 100))
def test_any_number_of_worlds_in_an_epoch(
    pets: MadeDataset, worlds: list[tuple[int, int, int]], drop_last: bool, seed: int
) -> None:
    """World sizes and group sizes change again and again: no file is read twice but for padding,
    and none is left out."""
    state: dict[str, Any] | None = None
    seen: Counter[int] = Counter()
    for at, (world_size, group_size, done) in enumerate(worlds):
        ranks = ranks_of(
            pets, world_size, seed=seed, drop_last=drop_last, group_size=group_size, publish=False
        )
        states = []
        for sampler in ranks:
            if state is not None:
                sampler.load_state_dict(state)
            assert sampler.samples_left == ranks[0].samples_left
            share = list(sampler)
            if at < len(worlds) - 1:
                share = share[:done]
            seen.update(share)
            states.append(sampler.state_dict(samples_done=len(share)))
        assert all(other == states[0] for other in states)
        state = states[0]
    greatest = max(world_size for world_size, _, _ in worlds)
    if drop_last:
        assert set(seen.values()) <= {1}
        assert len(seen) > 550 - greatest
    else:
        assert len(seen) == 550
        assert seen.total() < 550 + greatest


def test_what_remains_is_read_chunk_wise(pets: MadeDataset) -> None:
    """After a change of the world, a group still needs at most its number of chunks."""
    before = sampler_of(pets, rank=0, world_size=3, seed=1)
    state = before.state_dict(samples_done=70)
    for rank in range(2):
        sampler = sampler_of(pets, rank=rank, world_size=2, seed=1)
        sampler.load_state_dict(state)
        assert most_chunks_at_hand(pets, [pets.paths[index] for index in sampler]) == 3


def test_a_state_of_something_else_is_refused(pets: MadeDataset, tmp_path: Any) -> None:
    state = sampler_of(pets, seed=1).state_dict(samples_done=100)
    other = make(tmp_path, pets.paths[:300])
    for sampler, reason in [
        (sampler_of(other), "snapshot"),
        (sampler_of(pets, pets.paths[:300]), "550 files of the snapshot, and these are 300"),
        (sampler_of(pets, seed=2), "seed 1, and this is seed 2"),
    ]:
        whole = list(sampler)
        with pytest.raises(Conflict, match=reason) as refused:
            sampler.load_state_dict(state)
        assert "override=True" in (refused.value.hint or "")
        with pytest.warns(RuntimeWarning, match="ignored: .*" + reason):
            sampler.load_state_dict(state, override=True)
        assert list(sampler) == whole


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"stages": [{}]},
        {"stages": 5},
        {"seed": "x"},
        {"epoch": -1},
        {"stages": [{"world_size": 1, "group_size": 3, "drop_last": False, "samples_done": 551}]},
    ],
)
def test_a_damaged_state(pets: MadeDataset, change: dict[str, Any]) -> None:
    sampler = sampler_of(pets)
    state = sampler.state_dict(samples_done=0)
    with pytest.raises(UsageError):
        sampler.load_state_dict({**state, **change})
    assert len(list(sampler)) == 550


def test_a_state_needs_to_be_told_how_far_training_is(pets: MadeDataset) -> None:
    sampler = sampler_of(pets)
    assert sampler.state_dict()["stages"][0]["samples_done"] == 0  # nothing was drawn yet
    next(iter(sampler))
    with pytest.raises(UsageError, match="ahead"):
        sampler.state_dict()
    with pytest.raises(UsageError, match="size"):
        sampler.state_dict(batches_done=1)
    with pytest.raises(UsageError, match="551"):
        sampler.state_dict(samples_done=551)


def test_samples_that_make_no_order(pets: MadeDataset) -> None:
    paths = pets.paths
    for samples, reason in [
        ([*paths, paths[3]], r"samples 3 and 550 are the same file, train/ant/003\.bin"),
        ([*paths, "train/ant/none"], "train/ant/none is not a file"),
        ([*paths, "train/ant"], "train/ant is not a file"),
        ([], "no samples"),
        (5, "of a int"),
        ("train", "of a str"),
    ]:
        with pytest.raises(UsageError, match=reason):
            sampler_of(pets, samples)
    with pytest.raises(UsageError, match="mounted"):
        ChunkShuffleSampler(["/etc/hosts"])


def test_a_sampler_is_pickled(pets: MadeDataset) -> None:
    sampler = sampler_of(pets, seed=3)
    sampler.load_state_dict(sampler.state_dict(samples_done=7))
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


def test_parameters(pets: MadeDataset) -> None:
    for wrong in ({"group_size": 0}, {"rank": 2, "world_size": 2}, {"seed": -1}):
        with pytest.raises(ValueError):
            sampler_of(pets, **wrong)
    with pytest.raises(ValueError):
        sampler_of(pets).set_epoch(-1)
    assert replace(sampler_of(pets).division, world_size=2).files_a_rank(3) == 2
    assert (
        np.int64(3)
        == sampler_of(pets).state_dict(samples_done=np.int64(3))["stages"][0]["samples_done"]
    )


@pytest.mark.parametrize(("world_size", "drop_last"), [(1, False), (3, True), (4, False)])
def test_it_is_a_distributed_sampler(pets: MadeDataset, world_size: int, drop_last: bool) -> None:
    ours = sampler_of(pets, rank=0, world_size=world_size, drop_last=drop_last, seed=7)
    samples: Any = range(550)
    theirs = DistributedSampler(samples, world_size, 0, seed=7, drop_last=drop_last)
    names = [name for name in vars(theirs) if name != "dataset"]
    assert isinstance(ours, DistributedSampler)
    assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    assert len(ours) == len(theirs)
    assert len(ours.dataset) == 550
