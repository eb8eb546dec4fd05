"""Random operations of two stores on one folder against a dictionary: whatever is appended, read,
let go, damaged, shrunk, killed and opened again, what comes is right, what had room and no reason
to leave is there, what is pinned stays, and the budget is kept.

Regions are of eight segments of 32 KiB, so that they are used again all the time.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from chunkstore.ssd import index_environment
from chunkstore.ssd.eviction import DatasetLimits
from chunkstore.ssd.segment_index import FREE
from chunkstore.ssd.segment_store import SegmentStore

SEGMENT = 32 << 10
REGION_BYTES = 8192 + 8 * SEGMENT
SIZES = [1, SEGMENT - 1, SEGMENT, 100_001, 4 * SEGMENT, 200_000, 11 * SEGMENT + 5]
ROOM = 3
"""Free regions that are enough for any of these, however full the one is that is being filled."""
TTL_S = 50.0
DATASETS = st.sampled_from([b"a" * 16, b"b" * 16, b"c" * 16])
NUMBERS = st.integers(0, 13)
MANY = st.lists(NUMBERS, min_size=4, max_size=12)
WHICH = st.integers(0, 1)


def budget_of(regions: int) -> int:
    return (1 << 20) + regions * (REGION_BYTES + 4096)


@dataclass(frozen=True, slots=True)
class Kept:
    """What an append has said that it kept."""

    chunk: bytes
    first: int
    length: int
    is_end: bool


class SegmentsMachine(RuleBasedStateMachine):
    @initialize(order=st.sampled_from(["lru", "fifo"]), regions=st.sampled_from([4, 7, 12]))
    def begin(self, order: str, regions: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dieselfs-model-", dir="/dev/shm"))
        self.folder, self.index = self.root / "ssd", self.root / "index/of"
        self.order, self.regions, self.now = order, regions, 1000.0
        self.limits: dict[bytes, DatasetLimits] = {}
        self.known: dict[bytes, bytes] = {}
        self.sure: dict[bytes, set[Kept]] = {}
        """By dataset: what must be there."""
        self.has_damage = False
        """Regions may describe what is not there."""
        self.made = 0
        self.make_folder()
        self.stores = [self.opened(), self.opened()]
        self.observer = self.opened()
        """Looks, and tells nobody what it has read."""

    def make_folder(self) -> None:
        """With regions smaller than a tier would make them."""
        self.folder.mkdir(mode=0o700)
        self.made += 1
        sizes = {"id": str(self.made), "segment_bytes": SEGMENT, "region_bytes": REGION_BYTES}
        (self.folder / "geometry.json").write_text(json.dumps(sizes))

    def opened(self) -> SegmentStore:
        return SegmentStore(
            self.folder,
            self.index,
            budget_of(self.regions),
            order=self.order,  # type: ignore[arg-type]
            limits_of=self.limits_of,
            now=lambda: self.now,
        )

    def limits_of(self, dataset: bytes) -> DatasetLimits:
        return self.limits.get(dataset, DatasetLimits())

    def tend_all(self) -> None:
        for store in [*self.stores, self.stores[0]]:  # what one lets go of another may be filling
            store.tend()
        for dataset in self.sure:
            limits = self.limits_of(dataset)
            if limits.ttl_s is not None and not limits.pinned:
                self.sure[dataset] = set()

    def chunk(self, dataset: bytes, number: int) -> bytes:
        chunk = dataset[:8] + number.to_bytes(8, "big")
        size = SIZES[number % len(SIZES)]
        self.known.setdefault(chunk, random.Random(chunk).randbytes(size))
        return chunk

    def free_regions(self) -> int:
        return sum(region.state == FREE for region in self.observer._index.regions())

    def forget_what_may_leave(self) -> None:
        for dataset in list(self.sure):
            limits = self.limits_of(dataset)
            if not limits.pinned or limits.quota_bytes is not None:
                del self.sure[dataset]

    # What is done.

    @rule(which=WHICH, dataset=DATASETS, numbers=MANY)
    def append_more(self, which: int, dataset: bytes, numbers: list[int]) -> None:
        """Twice as often as all else, so that the tier is mostly full."""
        self.append_whole(which, dataset, numbers)

    @rule(which=WHICH, dataset=DATASETS, numbers=MANY)
    def append_whole(self, which: int, dataset: bytes, numbers: list[int]) -> None:
        for number in numbers:
            chunk = self.chunk(dataset, number)
            self.append(which, dataset, Kept(chunk, 0, len(self.known[chunk]), True))

    @rule(
        which=WHICH,
        dataset=DATASETS,
        number=NUMBERS,
        first=st.integers(0, 9),
        count=st.integers(1, 4),
    )
    def append_a_part(
        self, which: int, dataset: bytes, number: int, first: int, count: int
    ) -> None:
        chunk = self.chunk(dataset, number)
        size = len(self.known[chunk])
        length = min(count * SEGMENT, size - first * SEGMENT)
        if length > 0:
            is_end = first * SEGMENT + length == size
            self.append(which, dataset, Kept(chunk, first, length, is_end))

    def append(self, which: int, dataset: bytes, kept: Kept) -> None:
        self.now += 1
        start = kept.first * SEGMENT
        data = memoryview(self.known[kept.chunk])[start : start + kept.length]
        has_room, limits = self.free_regions() >= ROOM, self.limits_of(dataset)
        arguments = dataset, kept.chunk, kept.first, data, kept.is_end
        if self.has_damage:  # an index made anew names damaged segments again, until they are read
            self.read_segments(self.stores[which], kept.chunk)
        try:
            done = self.stores[which].append(*arguments)
        except FileNotFoundError:  # the region that was being filled: the next write tries another
            assert self.has_damage
            done = self.stores[which].append(*arguments)
        if not has_room:
            self.forget_what_may_leave()
        if limits.quota_bytes is not None:
            self.sure.pop(dataset, None)
        if has_room and limits.quota_bytes is None:
            assert done
            self.sure.setdefault(dataset, set()).add(kept)

    @rule(
        which=WHICH,
        dataset=DATASETS,
        number=NUMBERS,
        at=st.sampled_from(["data", "table", "index"]),
    )
    def a_write_fails(self, which: int, dataset: bytes, number: int, at: str) -> None:
        """In the middle."""
        store, chunk = self.stores[which], self.chunk(dataset, number)
        files, index = store._files, store._index
        write, add = files.write, index.add

        def failing(region: int, offset: int, parts: list[memoryview]) -> None:
            if (offset >= files.geometry.data_offset) == (at == "data"):
                whole = b"".join(bytes(part) for part in parts)
                write(region, offset, [whole[: len(whole) // 2]])
                raise OSError(5, "Input/output error")
            write(region, offset, parts)

        def failing_add(*_: object) -> None:
            raise lmdb.DiskError("no room")

        if at == "index":
            index.add = failing_add  # type: ignore[method-assign]
        else:
            files.write = failing  # type: ignore[method-assign, assignment]
        room = self.free_regions()
        try:
            store.append(dataset, chunk, 0, memoryview(self.known[chunk]), True)
        except (OSError, lmdb.Error):
            pass
        finally:
            index.add = add  # type: ignore[method-assign]
            files.write = write  # type: ignore[method-assign]
        if room < ROOM:
            self.forget_what_may_leave()
        if self.limits_of(dataset).quota_bytes is not None:
            self.sure.pop(dataset, None)

    @rule(
        which=WHICH,
        dataset=DATASETS,
        number=NUMBERS,
        start=st.integers(0, 400_000),
        length=st.integers(0, 200_000),
        verified=st.booleans(),
        waits=st.booleans(),
    )
    def read(
        self,
        which: int,
        dataset: bytes,
        number: int,
        start: int,
        length: int,
        verified: bool,
        waits: bool,
    ) -> None:
        self.now += 1
        store = self.stores[which]
        for chunk in [known for known in self.known if known[0] == dataset[0]][number % 3 :: 2]:
            data = self.known[chunk]
            begin = start % (len(data) + 10)
            try:
                part = store.read(chunk, begin, length, verified=verified, waits=waits)
                whole = store.read_whole(chunk, verified=verified, waits=waits)
            except BlockingIOError:
                continue
            assert part is None or part == data[begin : begin + length]
            assert whole is None or whole == data

    @rule(which=WHICH, dataset=DATASETS, number=NUMBERS)
    def forget(self, which: int, dataset: bytes, number: int) -> None:
        chunk = self.chunk(dataset, number)
        self.stores[which].forget(chunk)
        assert self.stores[1 - which].read(chunk, 0, 1) is None
        kept = self.sure.get(dataset, set())
        self.sure[dataset] = {one for one in kept if one.chunk != chunk}

    @rule(which=WHICH, dataset=DATASETS)
    def evict(self, which: int, dataset: bytes) -> None:
        regions = self.folder / "regions"
        before = len(list(regions.iterdir()))
        freed = self.stores[which].evict(dataset)
        left = len(list(regions.iterdir()))
        assert self.has_damage or freed == (before - left) * REGION_BYTES
        self.sure.pop(dataset, None)

    @rule(dataset=DATASETS)
    def pin(self, dataset: bytes) -> None:
        self.limits[dataset] = DatasetLimits(pinned=True)

    @rule(
        dataset=DATASETS,
        quota=st.sampled_from([None, None, 1, 2, 4]),
        ttl_s=st.sampled_from([None, TTL_S]),
        pinned=st.booleans(),
    )
    def limit(self, dataset: bytes, quota: int | None, ttl_s: float | None, pinned: bool) -> None:
        quota_bytes = None if quota is None else quota * REGION_BYTES + 1
        self.limits[dataset] = DatasetLimits(quota_bytes, ttl_s, pinned)
        if quota is not None:
            self.sure.pop(dataset, None)
        self.tend_all()

    @rule(seconds=st.sampled_from([1, 40, 100, -5000]))
    def time_passes(self, seconds: int) -> None:
        self.now = max(1.0, self.now + seconds)
        self.tend_all()

    @rule(which=WHICH, regions=st.sampled_from([2, 4, 7, 12]))
    def resize(self, which: int, regions: int) -> None:
        """By one store, opened anew; the other one obeys."""
        if regions < self.regions:
            self.sure.clear()
        self.regions = regions
        self.stores[which].close()
        self.stores[which] = self.opened()
        self.tend_all()

    @rule(which=WHICH, how=st.sampled_from(["close", "kill", "index anew"]))
    def restart(self, which: int, how: str) -> None:
        if how == "close":
            self.close(which)
        elif how == "kill":
            self.kill(which)
        else:
            self.make_the_index_again(which)

    def close(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = self.opened()

    def kill(self, which: int) -> None:
        """The kernel frees the locks of who dies, and closes what he had open."""
        self.abandon(self.stores[which])
        self.stores[which] = self.opened()

    def abandon(self, store: SegmentStore) -> None:
        store._filling.give_up()
        store._index.close()

    @rule()
    def lose_the_index(self) -> None:
        index_environment.discard(self.index)
        self.open_again()
        if self.has_damage:
            self.sure.clear()

    def make_the_index_again(self, which: int) -> None:
        self.stores[which].reopen(rebuild=True)
        self.open_again()
        if self.has_damage:
            self.sure.clear()

    def open_again(self) -> None:
        for store in [*self.stores, self.observer]:
            if not store.is_there:
                store.reopen()
            assert store.is_there

    @rule(
        which=WHICH,
        seed=st.integers(0, 10_000),
        what=st.sampled_from(["table", "region", "all"]),
    )
    def disaster(self, which: int, seed: int, what: str) -> None:
        if what == "all":
            self.delete_the_folder()
        elif what == "region":
            self.remove_a_region(which, seed)
        else:
            self.damage(which, seed, in_table=True)

    @rule(which=WHICH, seed=st.integers(0, 10_000))
    def damage_data(self, which: int, seed: int) -> None:
        self.damage(which, seed, in_table=False)

    def delete_the_folder(self) -> None:
        shutil.rmtree(self.folder)
        assert not any(store.is_there for store in self.stores)
        self.make_folder()
        self.sure.clear()
        self.has_damage = False
        self.open_again()

    def remove_a_region(self, which: int, seed: int) -> None:
        """As who needs room for something else does."""
        present = sorted((self.folder / "regions").iterdir())
        if present:
            random.Random(seed).choice(present).unlink()
            self.sure.clear()
            self.has_damage = True
            self.read_all(self.stores[which])

    def damage(self, which: int, seed: int, *, in_table: bool) -> None:
        """Anywhere; what is damaged is noticed by who reads it first."""
        chosen, present = random.Random(seed), sorted((self.folder / "regions").iterdir())
        if not present:
            return
        path = chosen.choice(present)
        with path.open("r+b") as file:
            file.seek(chosen.randrange(8192) if in_table else chosen.randrange(8192, REGION_BYTES))
            file.write(chosen.randbytes(chosen.choice([1, 100, 40_000])))
        self.sure.clear()
        self.has_damage = True
        self.read_all(self.stores[which])

    def read_all(self, store: SegmentStore) -> None:
        """So that what is not there any more is forgotten."""
        for chunk in self.known:
            self.read_segments(store, chunk)

    def read_segments(self, store: SegmentStore, chunk: bytes) -> None:
        data = self.known[chunk]
        for start in range(0, len(data), SEGMENT):
            found = store.read(chunk, start, SEGMENT)
            assert found is None or found == data[start : start + SEGMENT]

    # What must be so at any time.

    @invariant()
    def what_comes_is_right(self) -> None:
        if not hasattr(self, "observer"):
            return
        for chunk, data in self.known.items():
            found = self.observer.read_whole(chunk)
            assert found is None or found == data
            start, length = len(data) // 3, len(data) // 2
            part = self.observer.read(chunk, start, length)
            assert part is None or part == data[start : start + length]

    @invariant()
    def what_has_no_reason_to_leave_is_there(self) -> None:
        if not hasattr(self, "observer"):
            return
        for dataset, kept in self.sure.items():
            cached = self.observer.cached(dataset)
            for one in kept:
                start = one.first * SEGMENT
                wanted = self.known[one.chunk][start : start + one.length]
                assert self.observer.read(one.chunk, start, one.length) == wanted
                assert self.observer.holds(one.chunk, one.first, one.length, one.is_end)
                assert cached[one.chunk].bytes >= one.length
                if one.length == len(self.known[one.chunk]):
                    assert cached[one.chunk].is_whole

    @invariant()
    def the_budget_is_kept(self) -> None:
        if not hasattr(self, "observer"):
            return
        files = [path.stat() for path in [self.folder, *self.folder.rglob("*")]]
        assert sum(file.st_blocks * 512 for file in files) <= budget_of(self.regions)
        assert sum(file.st_size for file in files) <= budget_of(self.regions)
        assert len(list((self.folder / "regions").iterdir())) <= self.regions

    @invariant()
    def limits_are_kept(self) -> None:
        if not hasattr(self, "observer"):
            return
        cached = {of.dataset: of.bytes for of in self.observer.occupancy()}
        for dataset, limits in self.limits.items():
            if limits.quota_bytes is not None:
                assert cached.get(dataset, 0) <= limits.quota_bytes

    @rule()
    def what_its_time_is_over_has_gone(self) -> None:
        self.tend_all()
        for region in self.observer._index.regions():
            limits = self.limits_of(region.dataset)
            if region.state != FREE and limits.ttl_s is not None and not limits.pinned:
                assert self.now - region.last_used <= limits.ttl_s

    def teardown(self) -> None:
        if hasattr(self, "observer"):
            for store in self.stores:
                store.close()
            self.abandon(self.observer)
            shutil.rmtree(self.root)


TestSegments = pytest.mark.long(SegmentsMachine.TestCase)
TestSegments.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
