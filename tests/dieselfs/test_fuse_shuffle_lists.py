"""Shuffled lists: built once for all who ask, kept within bounds, the same when built again."""

from typing import Any

import numpy as np
import trio

from dieselfs.fuse.shuffle_lists import ShuffledOrder, ShuffleLists
from dieselfs.shuffle import ShuffleParameters
from dieselfs.worker_threads import WorkerThreads

FILES = 1000


class Counting:
    """As much of a snapshot as a list needs."""

    def __init__(self) -> None:
        self.built = 0
        self.chunk_first_inode = np.arange(0, FILES + 1, 10)

    def paths_text(self, inodes: Any) -> bytes:
        self.built += 1
        return b"".join(b"%04d\n" % inode for inode in inodes)


def lists(kept_bytes: int) -> ShuffleLists:
    return ShuffleLists(WorkerThreads(2), kept_bytes)


def order(snapshot: Any, **parameters: int) -> ShuffledOrder:
    return ShuffledOrder(snapshot, ShuffleParameters(**parameters))


async def test_many_who_ask_at_once_cause_one_build() -> None:
    snapshot = Counting()
    wanted, texts = lists(1 << 20), []

    async def ask() -> None:
        texts.append(await wanted.text(order(snapshot, seed=1)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
    assert snapshot.built == 1
    assert len(set(texts)) == 1
    assert sorted(texts[0].split()) == [b"%04d" % n for n in range(FILES)]


async def test_the_least_recently_used_list_is_dropped_and_built_again_the_same() -> None:
    snapshot = Counting()
    wanted = lists(kept_bytes=2 * 5 * FILES)
    first = await wanted.text(order(snapshot, seed=1))
    await wanted.text(order(snapshot, seed=2))
    await wanted.text(order(snapshot, seed=1))
    await wanted.text(order(snapshot, seed=3))  # drops seed=2
    assert snapshot.built == 3
    assert await wanted.text(order(snapshot, seed=1)) == first
    assert snapshot.built == 3
    await wanted.text(order(snapshot, seed=2))
    assert snapshot.built == 4


async def test_one_list_is_kept_however_large_it_is() -> None:
    snapshot = Counting()
    wanted = lists(kept_bytes=1)
    for _ in range(3):
        await wanted.text(order(snapshot, seed=1))
    assert snapshot.built == 1


async def test_ranks_have_lists_of_their_own() -> None:
    snapshot, wanted = Counting(), lists(1 << 20)
    texts = [await wanted.text(order(snapshot, rank=rank, world_size=2)) for rank in (0, 1)]
    assert sorted(b"".join(texts).split()) == [b"%04d" % n for n in range(FILES)]


async def test_snapshots_have_lists_of_their_own() -> None:
    old, new, wanted = Counting(), Counting(), lists(1 << 20)
    for snapshot in (old, new, old, new):
        await wanted.text(order(snapshot, seed=1))
    assert (old.built, new.built) == (1, 1)
