"""Segments against a dictionary: whatever is appended, read, evicted, damaged, shrunk and restarted, never a wrong byte, never above the budget."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from chunkstore.ssd.eviction import DatasetLimits
from chunkstore.ssd.segment_store import SegmentStore

MIB = 1 << 20
DATASETS = [b"a" * 16, b"b" * 16]
SIZES = st.sampled_from([1, 262_144, 700_001, MIB, 3 * MIB - 1])
NUMBERS = st.lists(st.integers(0, 15), min_size=4, max_size=10)


class SegmentsMachine(RuleBasedStateMachine):
    @initialize(order=st.sampled_from(["lru", "fifo"]))
    def begin(self, order: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dieselfs-model-", dir="/dev/shm"))
        self.order, self.budget, self.now = order, 26 * MIB, 0.0
        self.limits: dict[bytes, DatasetLimits] = {}
        self.known: dict[bytes, bytes] = {}
        self.stores = [self.opened(), self.opened()]

    def opened(self) -> SegmentStore:
        return SegmentStore(
            self.root / "ssd",
            self.root / "index/of",
            self.budget,
            order=self.order,  # type: ignore[arg-type]
            limits_of=lambda dataset: self.limits.get(dataset, DatasetLimits()),
            now=lambda: self.now,
        )

    @rule(which=st.integers(0, 1), numbers=NUMBERS, size=SIZES, dataset=st.sampled_from(DATASETS))
    def append(self, which: int, numbers: list[int], size: int, dataset: bytes) -> None:
        for number in numbers:
            self.now += 1
            chunk = dataset[:1] * 8 + number.to_bytes(8, "big")
            data = self.known.setdefault(chunk, random.Random(chunk).randbytes(size))
            self.stores[which].append(dataset, chunk, 0, memoryview(data), is_end=True)

    @rule(which=st.integers(0, 1), dataset=st.sampled_from(DATASETS))
    def evict(self, which: int, dataset: bytes) -> None:
        self.stores[which].evict(dataset)

    @rule(dataset=st.sampled_from(DATASETS), regions=st.integers(1, 3))
    def quota(self, dataset: bytes, regions: int) -> None:
        self.limits[dataset] = DatasetLimits(quota_bytes=regions * self.stores[0].region_bytes)

    @rule(which=st.integers(0, 1), lost=st.booleans(), budget=st.sampled_from([9, 14, 26]))
    def restart(self, which: int, lost: bool, budget: int) -> None:
        self.budget = budget * MIB
        if lost:
            for store in self.stores:
                store.close()
            shutil.rmtree(self.root / "index")
            self.stores = [self.opened(), self.opened()]
        else:
            self.stores[which].close()
            self.stores[which] = self.opened()

    @rule(seed=st.integers(0, 1000))
    def damage(self, seed: int) -> None:
        chosen = random.Random(seed)
        regions = sorted((self.root / "ssd/regions").iterdir())
        if regions:
            with chosen.choice(regions).open("r+b") as file:
                file.seek(chosen.choice([0, chosen.randrange(4 * MIB - 65536)]))
                file.write(chosen.randbytes(chosen.choice([1, 65536])))

    @invariant()
    def never_a_wrong_byte(self) -> None:
        for chunk, data in getattr(self, "known", {}).items():
            for store in self.stores:
                found = store.read_whole(chunk)
                assert found is None or found == data
            start = len(data) // 3
            part = store.read(chunk, start, len(data) // 2)
            assert part is None or part == data[start : start + len(data) // 2]

    @invariant()
    def never_above_the_budget(self) -> None:
        if hasattr(self, "stores"):
            for store in self.stores:
                store.tend()
            folder = self.root / "ssd"
            taken = sum(path.stat().st_blocks * 512 for path in [folder, *folder.rglob("*")])
            assert taken <= self.budget
            held = {of.dataset: of.bytes for of in self.stores[0].occupancy()}
            for dataset, limits in self.limits.items():
                assert limits.quota_bytes is not None
                assert held.get(dataset, 0) <= limits.quota_bytes

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            for store in self.stores:
                store.close()
            shutil.rmtree(self.root)


TestSegments = SegmentsMachine.TestCase
TestSegments.settings = settings(
    max_examples=5,
    stateful_step_count=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
