"""Chunk-wise shuffle: what DIESEL §4.3 promises, what training needs of ranks, and an order that
never changes."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.shuffle.order import (
    Padding,
    ShuffleParameters,
    files_a_rank,
    parse_parameters,
    shuffle_order,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "shuffle.json"
Bounds = npt.NDArray[np.uint32]

chunk_sizes = st.lists(st.integers(0, 9), max_size=40)
seeds = st.integers(0, (1 << 64) - 1)
paddings = st.sampled_from(["pad", "drop"])


def bounds_of(sizes: list[int]) -> Bounds:
    return np.cumsum([0, *sizes]).astype(np.uint32)


@given(sizes=chunk_sizes, seed=seeds, epoch=seeds, group_size=st.integers(1, 50))
def test_every_file_exactly_once(sizes: list[int], seed: int, epoch: int, group_size: int) -> None:
    order = shuffle_order(bounds_of(sizes), seed, epoch, group_size)
    assert sorted(order.inodes.tolist()) == list(range(sum(sizes)))
    assert sorted(order.chunks.tolist()) == [at for at, size in enumerate(sizes) if size]


@given(
    sizes=chunk_sizes,
    seed=seeds,
    group_size=st.integers(1, 9),
    world_size=st.integers(1, 100),
    padding=paddings,
)
def test_ranks_share_the_files_equally(
    sizes: list[int], seed: int, group_size: int, world_size: int, padding: Padding
) -> None:
    """As torch's DistributedSampler: equal counts; "pad" leaves nothing out, "drop" takes nothing
    twice."""
    files = sum(sizes)
    orders = [
        shuffle_order(bounds_of(sizes), seed, 0, group_size, rank, world_size, padding)
        for rank in range(world_size)
    ]
    count = -(-files // world_size) if padding == "pad" else files // world_size
    assert {len(order) for order in orders} == {count}
    seen = Counter(inode for order in orders for inode in order.inodes.tolist())
    if padding == "pad":
        assert set(seen) == set(range(files))
        assert seen.total() - files < world_size
    else:
        assert set(seen.values()) <= {1}
        assert files - seen.total() < world_size


@given(
    sizes=chunk_sizes,
    seed=seeds,
    group_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    padding=paddings,
)
def test_a_group_needs_its_chunks_and_no_others(
    sizes: list[int], seed: int, group_size: int, world_size: int, padding: Padding
) -> None:
    bounds = bounds_of(sizes)
    for rank in range(world_size):
        order = shuffle_order(bounds, seed, 3, group_size, rank, world_size, padding)
        assert order.group_start[0] == 0
        assert order.group_start[-1] == len(order)
        assert len(set(order.chunks.tolist())) == len(order.chunks)
        for group in range(order.group_count):
            start, end = order.group_start[group], order.group_start[group + 1]
            assert start < end
            chunks = np.searchsorted(bounds, order.inodes[start:end], "right") - 1
            assert set(chunks.tolist()) == set(order.group_chunks(group).tolist())
            assert 1 <= len(order.group_chunks(group)) <= group_size
            for position in (start, end - 1):
                assert order.group_of(int(position)) == group


@given(sizes=chunk_sizes, seed=seeds, world_size=st.integers(1, 9))
def test_ranks_share_only_the_chunks_at_their_borders(
    sizes: list[int], seed: int, world_size: int
) -> None:
    """The ranks' sequences of chunks, one after the other, are the sequence of one rank alone."""
    bounds = bounds_of(sizes)
    alone = shuffle_order(bounds, seed, 1, 2).chunks.tolist()
    joined: list[int] = []
    if sum(sizes) >= world_size:
        for rank in range(world_size):
            chunks = shuffle_order(bounds, seed, 1, 2, rank, world_size).chunks.tolist()
            joined += chunks[1:] if joined and joined[-1] == chunks[0] else chunks
        assert joined == alone


def plainly(
    sizes: list[int], seed: int, epoch: int, group_size: int, part: set[int] | None = None
) -> list[int]:
    """The definition of docs/shuffled-order.md word for word, for one rank; of a part of the files,
    if one is given."""
    mask = (1 << 64) - 1

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15

    def hash_of(purpose: int, number: int) -> int:
        key = mix((mix((mix((seed + golden) & mask) + epoch) & mask) + purpose) & mask)
        return mix((key + (number + 1) * golden) & mask)

    files_of = {
        chunk: [
            inode
            for inode in range(sum(sizes[:chunk]), sum(sizes[: chunk + 1]))
            if part is None or inode in part
        ]
        for chunk in range(len(sizes))
    }
    chunks = [chunk for chunk, files in files_of.items() if files]
    chunks.sort(key=lambda chunk: hash_of(1, chunk))
    order: list[int] = []
    for at in range(0, len(chunks), group_size):
        group = [inode for chunk in chunks[at : at + group_size] for inode in files_of[chunk]]
        order += sorted(group, key=lambda inode: hash_of(2, inode))
    return order


@given(sizes=chunk_sizes, seed=seeds, epoch=seeds, group_size=st.integers(1, 50))
def test_equals_its_definition(sizes: list[int], seed: int, epoch: int, group_size: int) -> None:
    order = shuffle_order(bounds_of(sizes), seed, epoch, group_size)
    assert order.inodes.tolist() == plainly(sizes, seed, epoch, group_size)


@st.composite
def parts(draw: st.DrawFn) -> tuple[list[int], npt.NDArray[np.uint32]]:
    """Sizes of chunks, and some of their files."""
    sizes = draw(chunk_sizes)
    chosen = draw(st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes)))
    return sizes, np.flatnonzero(chosen).astype(np.uint32)


@given(part=parts(), seed=seeds, epoch=seeds, group_size=st.integers(1, 50))
def test_a_part_equals_its_definition(
    part: tuple[list[int], npt.NDArray[np.uint32]], seed: int, epoch: int, group_size: int
) -> None:
    sizes, files = part
    order = shuffle_order(bounds_of(sizes), seed, epoch, group_size, files=files)
    assert order.inodes.tolist() == plainly(sizes, seed, epoch, group_size, set(files.tolist()))
    chunks = np.searchsorted(bounds_of(sizes), order.inodes, "right") - 1
    assert set(order.chunks.tolist()) == set(chunks.tolist())


@given(
    sizes=chunk_sizes, seed=seeds, group_size=st.integers(1, 9), world_size=st.integers(1, 9),
    padding=paddings,
)  # fmt: skip
def test_the_part_that_is_everything(
    sizes: list[int], seed: int, group_size: int, world_size: int, padding: Padding
) -> None:
    bounds = bounds_of(sizes)
    files = np.arange(sum(sizes), dtype=np.uint32)
    for rank in range(world_size):
        arguments = (bounds, seed, 1, group_size, rank, world_size, padding)
        whole, part = shuffle_order(*arguments), shuffle_order(*arguments, files=files)
        assert np.array_equal(whole.inodes, part.inodes)
        assert np.array_equal(whole.group_start, part.group_start)
        assert np.array_equal(whole.chunks, part.chunks)


@given(part=parts(), seed=seeds, world_size=st.integers(1, 20), padding=paddings)
def test_ranks_share_a_part_equally(
    part: tuple[list[int], npt.NDArray[np.uint32]], seed: int, world_size: int, padding: Padding
) -> None:
    sizes, files = part
    orders = [
        shuffle_order(bounds_of(sizes), seed, 0, 3, rank, world_size, padding, files=files)
        for rank in range(world_size)
    ]
    count = files_a_rank(len(files), world_size, padding)
    assert {len(order) for order in orders} == {count}
    seen = Counter(inode for order in orders for inode in order.inodes.tolist())
    assert set(seen) <= set(files.tolist())
    if padding == "pad":
        assert len(seen) == len(files)
    else:
        assert set(seen.values()) <= {1}


def test_files_that_are_no_part() -> None:
    for files, reason in (
        ([0, 7], "none of the chunks"),
        ([1, 1], "ascending"),
        ([2, 1], "ascending"),
    ):
        with pytest.raises(ValueError, match=reason):
            shuffle_order(bounds_of([3, 4]), 1, 0, files=np.array(files, np.uint32))


def test_the_same_every_time_and_on_every_type_of_bounds() -> None:
    bounds = bounds_of([3, 4, 5] * 10)
    first = shuffle_order(bounds, 1, 2, 3).inodes
    for same in (bounds, bounds.astype(np.uint64), bounds.astype(">u4"), bounds.copy()[::1]):
        assert np.array_equal(shuffle_order(same, 1, 2, 3).inodes, first)
    assert first.dtype == np.uint32


def test_sorting_many_groups_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = bounds_of([5] * 3000)
    together = shuffle_order(bounds, 1, 2, 3).inodes
    monkeypatch.setattr("dieselfs.shuffle.order._SORTED_AT_ONCE", 1)
    assert np.array_equal(shuffle_order(bounds, 1, 2, 3).inodes, together)


def test_seeds_and_epochs_have_nothing_in_common() -> None:
    """Of 1,000 files about one stays at its place by chance."""
    bounds = bounds_of([10] * 100)
    orders = [
        shuffle_order(bounds, seed, epoch, 10).inodes for seed in range(5) for epoch in range(5)
    ]
    for at, one in enumerate(orders):
        for other in orders[:at]:
            assert np.count_nonzero(one == other) < 15


def test_an_order_is_well_mixed() -> None:
    """Mean position of each file over 400 epochs: that of a uniform draw, within five standard
    deviations."""
    bounds = bounds_of([4] * 50)
    positions = np.zeros(200)
    for epoch in range(400):
        positions[shuffle_order(bounds, 7, epoch, 5).inodes] += np.arange(200)
    deviation = (200 / 12**0.5) / 400**0.5
    assert np.abs(positions / 400 - 99.5).max() < 5 * deviation


def test_empty_dataset() -> None:
    for bounds in (np.zeros(1, np.uint32), np.zeros(0, np.uint32), np.zeros(4, np.uint32)):
        order = shuffle_order(bounds, 1, 0, 100, 1, 2)
        assert len(order) == len(order.chunks) == order.group_count == 0
        with pytest.raises(IndexError):
            order.group_of(0)
        with pytest.raises(IndexError):
            order.group_chunks(0)


def golden_cases() -> list[dict[str, object]]:
    """Bounds and parameters -> order, small ones in full and one of ImageNet's size by its hash."""
    cases: list[dict[str, object]] = []
    for sizes, text in [
        ([3, 1, 0, 4, 2], "seed=0,epoch=0,group=2,rank=0,world=1"),
        ([3, 1, 0, 4, 2], "seed=0,epoch=1,group=2,rank=0,world=1"),
        ([3, 1, 0, 4, 2], "seed=18446744073709551615,epoch=0,group=1,rank=1,world=3"),
        ([1], "seed=1,epoch=0,group=100,rank=4,world=5"),
        ([36] * 35_000, "seed=1,epoch=0,group=100,rank=0,world=1"),
        ([1024] * 1_250, "seed=1,epoch=89,group=500,rank=7,world=8"),
    ]:
        p = parse_parameters(text)
        order = shuffle_order(bounds_of(sizes), p.seed, p.epoch, p.group_size, p.rank, p.world_size)
        case: dict[str, object] = {"parameters": text}
        if len(sizes) < 10:
            case |= {"sizes": sizes, "inodes": order.inodes.tolist()}
        else:
            digest = xxhash.xxh3_64_hexdigest(order.inodes.astype("<u4").tobytes())
            case |= {"sizes": [len(sizes), sizes[0]], "xxh3_64": digest}
        cases.append(case)
    return cases


def test_golden_orders() -> None:
    """A training that is resumed with a later release goes on in the same order. These never
    change."""
    assert golden_cases() == json.loads(GOLDEN.read_text())


@given(
    st.builds(
        ShuffleParameters,
        seed=seeds,
        epoch=seeds,
        group_size=st.integers(1, (1 << 31) - 1),
        rank=st.integers(0, 99),
        world_size=st.integers(100, (1 << 31) - 1),
    )
)
def test_parameters_as_text(parameters: ShuffleParameters) -> None:
    assert parse_parameters(str(parameters)) == parameters


def test_parameters_left_out() -> None:
    assert str(parse_parameters("seed=5")) == "seed=5,epoch=0,group=100,rank=0,world=1"
    assert parse_parameters("world=4,rank=3,seed=007").rank == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "seed",
        "seed=",
        "seed=-1",
        "seed=+1",
        "seed=1_0",
        "seed= 1",
        "seed=1,",
        "seed=1,seed=1",
        "size=1",
        "seed=٣",
        "seed=18446744073709551616",
        "group=0",
        "world=0",
        "rank=1",
        "rank=2,world=2",
        "group=2147483648",
        "seed=1\n",
    ],
)
def test_parameters_that_say_nothing(text: str) -> None:
    with pytest.raises(ValueError, match=r"seed=1,epoch=0|a number from"):
        parse_parameters(text)


def test_numbers_of_numpy() -> None:
    plain = shuffle_order(bounds_of([3, 4, 5]), 1, 2, 2, 1, 2)
    given = (np.int64(1), np.uint64(2), np.int32(2), np.int8(1), np.uint8(2))
    assert shuffle_order(bounds_of([3, 4, 5]), *given).inodes.tolist() == plain.inodes.tolist()  # type: ignore[arg-type]
    assert str(ShuffleParameters(*given)) == "seed=1,epoch=2,group=2,rank=1,world=2"  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'float' object"):
        ShuffleParameters(seed=1.0)  # type: ignore[arg-type]


def test_parameters_out_of_bounds() -> None:
    for change in ({"rank": 2, "world_size": 2}, {"group_size": 0}, {"padding": "wrap"}):
        with pytest.raises(ValueError):
            shuffle_order(bounds_of([1]), 1, 0, **change)  # type: ignore[arg-type]
