"""Prefill without a known order: chunks of READs that miss, a budget, and what is learned from
fills that were wasted."""

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from dieselfs.fuse.pages.miss_prefill import MAX_FILL_EVERY, MissPrefill
from dieselfs.prefetch.close_events import CloseEvents
from dieselfs.shuffle.order import shuffle_order
from tests.dieselfs.fuse.simulated_mount import NamedSnapshot, SimulatedCache, SimulatedEvents
from tests.dieselfs.prefetch.made_snapshot import number_of
from tests.eventually import PATIENCE_S, eventually
from tests.open_descriptors import open_descriptors

FILES = 512
FILE_BYTES = 4096
CHUNKS = 40
CHUNK_BYTES = FILES * FILE_BYTES
SNAPSHOT = NamedSnapshot([[FILE_BYTES] * FILES] * CHUNKS)
OUR_PID = 77


class Mount:
    """Readers of a simulated page cache, whose misses are noted."""

    def __init__(
        self,
        kind: str = "ranges",
        budget_chunks: float = 1000,
        snapshot: NamedSnapshot = SNAPSHOT,
        limit_bytes: int | None = None,
        watches: int = 1 << 30,
    ) -> None:
        self.events = SimulatedEvents(watches)
        self.cache = SimulatedCache(snapshot, self.events, kind)
        self.snapshot = snapshot
        self.free_bytes = int(budget_chunks * CHUNK_BYTES * 4)
        self.now = 0.0
        self.is_paused = False
        self.discarded: list[int] = []
        self.most_bytes = 0
        self.misses = 0
        self.prefill = MissPrefill(
            self.cache,
            self.events,
            snapshot.as_snapshot(),
            limit_bytes,
            own_pids={OUR_PID},
            is_paused=lambda: self.is_paused,
            discard=self._discard,
            free_bytes=lambda: self.free_bytes,
            clock=lambda: self.now,
        )

    def _discard(self, chunk: ChunkId) -> None:
        self.discarded.append(number_of(chunk))

    def read(self, inodes: Sequence[int], s: float = 10e-6) -> int:
        """Read them; how many READs that caused."""
        before = len(self.cache.reads)
        for inode in inodes:
            reads = len(self.cache.reads)
            self.cache.read(inode)
            if len(self.cache.reads) > reads:
                self.prefill.note_miss(self.snapshot.chunk_number(inode))
                self.step()
            elif inode % 16 == 0:
                self.step()
            self.now += s
        return len(self.cache.reads) - before

    def step(self) -> None:
        self.prefill.step()
        self.prefill.step()  # what was filled
        outstanding = self.prefill.statistics().outstanding_bytes
        self.most_bytes = max(self.most_bytes, outstanding)

    def forget(self) -> None:
        """The kernel drops all pages."""
        self.cache.pages.clear()
        self.cache.staged.clear()

    def close(self) -> None:
        self.prefill.close()
        self.cache.release()


@pytest.fixture(params=["ranges", "files", "stores"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def made() -> Iterator[list[Mount]]:
    mounts: list[Mount] = []
    yield mounts
    for mount in mounts:
        mount.close()


def mount(made: list[Mount], *arguments: Any, **options: Any) -> Mount:
    made.append(Mount(*arguments, **options))
    return made[-1]


def chunkwise(seed: int, group: int = 4) -> list[int]:
    return [int(n) for n in shuffle_order(SNAPSHOT.chunk_first_inode, seed, 0, group).inodes]


def in_random_order(seed: int) -> list[int]:
    order = list(range(SNAPSHOT.file_count))
    random.Random(seed).shuffle(order)
    return order


def test_one_miss_fills_a_chunk(made: list[Mount], kind: str) -> None:
    mounted = mount(made, kind)
    assert mounted.read(range(FILES)) == 1
    assert mounted.cache.fills == [0]
    statistics = mounted.prefill.statistics()
    assert (statistics.misses, statistics.fills) == (1, 1)


def test_in_chunkwise_order_nearly_nothing_is_read(made: list[Mount], kind: str) -> None:
    mounted = mount(made, kind, 8)
    reads = mounted.read(chunkwise(1))
    assert reads <= CHUNKS * 12
    assert len(mounted.cache.fills) <= CHUNKS + 3
    assert mounted.prefill.statistics().wasted == 0
    assert mounted.prefill.statistics().fill_every == 1
    assert mounted.most_bytes <= 8 * CHUNK_BYTES


def test_chunks_that_were_read_are_dropped_and_leave_node_memory(
    made: list[Mount], kind: str
) -> None:
    mounted = mount(made, kind)
    mounted.read(range(FILES * 10))
    mounted.step()
    mounted.now += 60
    mounted.step()
    assert mounted.prefill.statistics().useful == 10
    assert mounted.prefill.statistics().outstanding_bytes == 0
    assert sorted(mounted.discarded) == list(range(10))
    assert mounted.cache.staged == set()
    assert len(mounted.cache.pages) == FILES * 10, "the files' own pages stay"
    assert mounted.read(range(FILES * 10)) == 0


def test_random_order_with_room_for_all_fills_each_chunk_once(made: list[Mount], kind: str) -> None:
    mounted = mount(made, kind)
    reads = mounted.read(in_random_order(0))
    assert len(mounted.cache.fills) == CHUNKS
    assert reads <= CHUNKS * 12


def test_random_order_without_room_does_not_thrash(made: list[Mount], kind: str) -> None:
    mounted = mount(made, kind, 8)
    for epoch in range(3):
        mounted.read(in_random_order(epoch))
        mounted.forget()
    statistics = mounted.prefill.statistics()
    assert statistics.fill_every >= 256
    assert len(mounted.cache.fills) <= 8 + 10 + 3 * SNAPSHOT.file_count // 256
    assert mounted.most_bytes <= 8 * CHUNK_BYTES
    reads = len(mounted.cache.reads)
    mounted.read(chunkwise(1) + chunkwise(2))
    assert mounted.prefill.statistics().fill_every < 256, "and comes back where it helps"
    assert len(mounted.cache.reads) - reads < SNAPSHOT.file_count


def test_useful_fills_bring_it_back_soon(made: list[Mount]) -> None:
    mounted = mount(made, "ranges", 8)
    mounted.prefill._every = MAX_FILL_EVERY
    mounted.read(chunkwise(1))
    mounted.forget()
    mounted.read(chunkwise(2))
    mounted.forget()
    assert mounted.prefill.statistics().fill_every <= 16
    mounted.read(chunkwise(3))
    mounted.forget()
    assert mounted.prefill.statistics().fill_every == 1


def test_stray_misses_of_a_chunk_that_was_read_do_not_fill_it_again(made: list[Mount]) -> None:
    mounted = mount(made)
    mounted.read(range(FILES))
    mounted.step()
    mounted.now += 60
    mounted.step()
    mounted.forget()
    assert mounted.read(range(0, FILES, FILES // 20)) == 21
    assert mounted.cache.fills == [0]
    mounted.forget()
    assert mounted.read(range(FILES)) < 60, "but when many miss, it is"
    assert mounted.cache.fills == [0, 0]


def test_a_chunk_whose_pages_the_kernel_has_lost_is_filled_again(made: list[Mount]) -> None:
    mounted = mount(made)
    mounted.read(range(0, FILES, 2))
    mounted.forget()
    assert mounted.read(range(1, FILES, 2)) < 60
    assert mounted.cache.fills == [0, 0]
    assert mounted.prefill.statistics().outstanding_bytes == CHUNK_BYTES


def test_what_has_no_room_at_all_is_not_filled(made: list[Mount], kind: str) -> None:
    mounted = mount(made, kind, 0.5)
    assert mounted.read(range(FILES)) == FILES
    assert mounted.cache.fills == []


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, []), (CHUNK_BYTES - 1, []), (CHUNK_BYTES, [0]), (None, [0])]
)
def test_a_limit_bounds_it_further(
    made: list[Mount], limit: int | None, expected: list[int]
) -> None:
    mounted = mount(made, limit_bytes=limit)
    mounted.read(range(10))
    assert mounted.cache.fills == expected


def test_the_budget_follows_the_free_memory(made: list[Mount]) -> None:
    mounted = mount(made, budget_chunks=10)
    mounted.read(range(0, 8 * FILES, FILES))
    assert mounted.prefill.statistics().outstanding_bytes == 8 * CHUNK_BYTES
    mounted.free_bytes = 3 * 4 * CHUNK_BYTES
    mounted.now += 1
    mounted.read([20 * FILES])
    assert mounted.prefill.statistics().outstanding_bytes <= 3 * CHUNK_BYTES
    assert mounted.prefill.statistics().budget_bytes == 3 * CHUNK_BYTES


def test_large_files_are_left_out(made: list[Mount]) -> None:
    snapshot = NamedSnapshot(
        [[600_000] * 4, [600_000, 1000, 0, 2000], [MAX_WHOLE_BYTES + 1], [0, 0], [1000] * 3]
    )
    mounted = mount(made, snapshot=snapshot)
    mounted.read(range(snapshot.file_count))
    assert mounted.cache.fills == [1, 4]


def test_our_own_reads_are_no_misses(made: list[Mount]) -> None:
    mounted = mount(made)
    mounted.prefill.note_miss(3, OUR_PID)
    mounted.step()
    assert mounted.cache.fills == []
    mounted.prefill.note_miss(3, OUR_PID + 1)
    mounted.prefill.note_miss(3, 0)
    mounted.step()
    assert mounted.cache.fills == [3]


def test_a_known_order_has_the_budget(made: list[Mount], kind: str) -> None:
    mounted = mount(made, kind)
    mounted.read(range(3 * FILES, 3 * FILES + 30))
    mounted.is_paused = True
    mounted.step()
    assert mounted.prefill.statistics().outstanding_bytes == 0
    assert mounted.cache.staged == set()
    assert len(mounted.events) == 0
    mounted.read(range(5 * FILES, 6 * FILES))
    assert mounted.cache.fills == [3]
    mounted.is_paused = False
    mounted.read(range(6 * FILES, 7 * FILES))
    assert mounted.cache.fills == [3, 6]
    assert mounted.prefill.statistics().wasted == 0


def test_without_watches_what_is_dropped_counts_as_wasted(made: list[Mount]) -> None:
    mounted = mount(made, "ranges", 4, watches=0)
    mounted.read(chunkwise(1))
    statistics = mounted.prefill.statistics()
    assert statistics.useful == 0
    assert statistics.fill_every > 1


def test_a_miss_is_noted_in_less_than_a_microsecond(made: list[Mount]) -> None:
    mounted = mount(made)
    mounted.prefill.note_miss(0)
    mounted.prefill._every = mounted.prefill._until_fill = MAX_FILL_EVERY * 1000
    best = 1.0
    for _ in range(100):  # few of them are interrupted by nobody on a busy machine
        began = time.perf_counter()
        for _ in range(1000):
            mounted.prefill.note_miss(0)
            mounted.prefill.note_miss(1)
        best = min(best, (time.perf_counter() - began) / 2000)
        if best < 5e-6:
            break
    assert best < 5e-6


def test_with_the_kernel(tmp_path: Path) -> None:
    """Its thread, real events, and a filler that fills at once."""
    snapshot = NamedSnapshot([[100] * 64] * 3)
    for inode in range(snapshot.file_count):
        (tmp_path / str(inode)).write_bytes(bytes(100))
    before = open_descriptors()
    events = CloseEvents(tmp_path)
    cache = SimulatedCache(snapshot, SimulatedEvents(), "ranges")
    discarded: list[ChunkId] = []
    prefill = MissPrefill(
        cast(Any, cache), events, snapshot.as_snapshot(), discard=discarded.append
    )
    prefill.start()
    for chunk in (1, 2):
        prefill.note_miss(chunk)
    eventually(lambda: len(cache.fills) == 2, "both chunks are filled")
    for inode in snapshot.files_in_chunk(1):
        (tmp_path / str(inode)).read_bytes()
    eventually(lambda: discarded, "a chunk that was read is discarded")
    assert discarded == [snapshot.chunk(1).id]
    assert prefill.statistics().outstanding_bytes == 6400
    prefill.close(PATIENCE_S)
    prefill.close()
    prefill.note_miss(0)
    cache.release()
    assert open_descriptors() <= before
