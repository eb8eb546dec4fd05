"""Shuffled lists: built once for all who ask, kept within bounds, the same when built again."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from dieselfs.shuffle.order import ShuffleParameters
from dieselfs.shuffle.shuffle_lists import ListedOrder, ShuffleLists
from metadata.snapshot import Snapshot
from tests.metadata.snapshot_trees import File, Tree, build

FILES = 1000


def test_links_are_not_listed(tmp_path: Path) -> None:
    """One chunk holds nothing else."""
    files = {b"%d" % n: File(n % 3, n, length=1) for n in range(9)}
    links = {b"l%d" % n: File(n, 20, length=1, mode=0o120777) for n in range(4)}
    with Snapshot.open(build(Tree({**files, **links}), tmp_path)) as snapshot:
        text = lists(1 << 20).text(ListedOrder(snapshot, ShuffleParameters(seed=3)))
    assert sorted(text.splitlines()) == sorted(files)


class Counting:
    """As much of a snapshot as a list needs."""

    def __init__(self) -> None:
        self.built = 0
        self.chunk_first_inode = np.arange(0, FILES + 1, 10)

    def regular_files(self) -> None:
        return None

    def paths_text(self, inodes: Any) -> bytes:
        self.built += 1
        return b"".join(b"%04d\n" % inode for inode in inodes)


def lists(cache_bytes: int) -> ShuffleLists:
    return ShuffleLists(cache_bytes)


def order(snapshot: Any, **parameters: int) -> ListedOrder:
    return ListedOrder(snapshot, ShuffleParameters(**parameters))


def test_many_who_ask_at_once_cause_one_build() -> None:
    snapshot = Counting()
    wanted = lists(1 << 20)
    with ThreadPoolExecutor(10) as threads:
        texts = list(threads.map(wanted.text, [order(snapshot, seed=1)] * 10))
    assert snapshot.built == 1
    assert len(set(texts)) == 1
    assert sorted(texts[0].split()) == [b"%04d" % n for n in range(FILES)]


def test_the_least_recently_used_list_is_dropped_and_built_again_the_same() -> None:
    snapshot = Counting()
    wanted = lists(cache_bytes=2 * 5 * FILES)
    first = wanted.text(order(snapshot, seed=1))
    wanted.text(order(snapshot, seed=2))
    wanted.text(order(snapshot, seed=1))
    wanted.text(order(snapshot, seed=3))  # drops seed=2
    assert snapshot.built == 3
    assert wanted.text(order(snapshot, seed=1)) == first
    assert snapshot.built == 3
    wanted.text(order(snapshot, seed=2))
    assert snapshot.built == 4


def test_one_list_is_kept_however_large_it_is() -> None:
    snapshot = Counting()
    wanted = lists(cache_bytes=1)
    for _ in range(3):
        wanted.text(order(snapshot, seed=1))
    assert snapshot.built == 1


def test_ranks_have_lists_of_their_own() -> None:
    snapshot, wanted = Counting(), lists(1 << 20)
    texts = [wanted.text(order(snapshot, rank=rank, world_size=2)) for rank in (0, 1)]
    assert sorted(b"".join(texts).split()) == [b"%04d" % n for n in range(FILES)]


def test_snapshots_have_lists_of_their_own() -> None:
    old, new, wanted = Counting(), Counting(), lists(1 << 20)
    for snapshot in (old, new, old, new):
        wanted.text(order(snapshot, seed=1))
    assert (old.built, new.built) == (1, 1)
