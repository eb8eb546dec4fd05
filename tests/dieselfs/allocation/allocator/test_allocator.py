from pathlib import Path

import msgspec
import pytest

from dieselfs.allocation.allocator.allocator import Allocated, Allocator
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.allocation.policies.naming import named_policy
from tests.dieselfs.allocation.made_leases import DATASET_BYTES, lease

IO = 100e6


class Cluster:
    """An allocator over a directory in a folder, with a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.directory, self.folder, self.now = FolderDirectory(folder), folder, 0.0
        self.cache_bytes = DATASET_BYTES
        self.allocator = self.another()

    def another(self) -> Allocator:
        policy = named_policy("fifo")
        return Allocator(policy, lambda: (self.cache_bytes, IO), lambda: self.now)

    def reads(self, *leases: ReaderLease) -> None:
        for each in leases:
            self.directory.beat(each, 60.0)

    def beat(self) -> Allocated | str | None:
        self.now += 1
        return self.allocator.beat(self.directory)

    def rates(self) -> dict[str, float]:
        return {each.job: each.bytes_per_s for each in self.directory.decisions().ios}

    def quotas(self) -> dict[str, int]:
        return {each.dataset: each.size_bytes for each in self.directory.decisions().caches}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "directory")


def of(dataset: str, speed: float = 90e6, job: str = "") -> ReaderLease:
    return lease(
        job or dataset, dataset=dataset, dataset_id=dataset[0] * 32, speed_bytes_per_s=speed
    )


def test_jobs_get_their_shares_once_what_is_lowered_was_seen(cluster: Cluster) -> None:
    fast, slow = of("a"), of("b", 9e6)
    cluster.reads(fast, slow)
    assert isinstance(cluster.beat(), Allocated)
    cluster.beat()
    assert cluster.quotas()["a"] == DATASET_BYTES
    rates = cluster.rates()
    assert rates["b"] >= 9e6
    assert sum(rates.values()) <= IO * 1.000001
    cluster.directory.withdraw(slow.reader)
    cluster.beat()
    assert set(cluster.rates()) == {"a"}


def test_the_sum_is_never_above_the_total_while_it_changes(cluster: Cluster) -> None:
    cluster.reads(of("a"), of("b"))
    for _ in range(3):
        cluster.beat()
    assert cluster.rates() == {"a": IO / 2, "b": IO / 2}
    cluster.reads(of("c"))
    cluster.beat()
    assert "c" not in cluster.rates()
    assert sum(cluster.rates().values()) == pytest.approx(2 * IO / 3)
    cluster.beat()
    assert sum(cluster.rates().values()) == pytest.approx(IO)


def test_nothing_is_published_while_little_changes(cluster: Cluster) -> None:
    cluster.reads(of("a"))
    for _ in range(2):
        cluster.beat()
    before = cluster.directory.decisions()
    for _ in range(15):
        cluster.beat()
    assert cluster.directory.decisions() == before


def test_what_was_set_by_hand_stays_and_is_taken_from_the_total(cluster: Cluster) -> None:
    cluster.directory.allocate_remote_io("a", 70e6, origin="hand")
    cluster.directory.allocate_cache_size("b", "b" * 32, 1000, origin="hand")
    cluster.reads(of("a"), of("b"))
    for _ in range(2):
        cluster.beat()
    decisions = cluster.directory.decisions()
    rates = {job: each.bytes_per_s for job, each in decisions.ios_in_force.items()}
    assert rates == {"a": 70e6, "b": 30e6}
    quota = decisions.cache_of("b" * 32)
    assert quota is not None
    assert (quota.size_bytes, quota.origin) == (1000, "hand")


def test_cache_that_is_set_by_hand_is_not_divided_a_second_time(cluster: Cluster) -> None:
    cluster.directory.allocate_cache_size("a", "a" * 32, DATASET_BYTES // 4, origin="hand")
    cluster.reads(of("a"), of("b", 9e6))
    for _ in range(2):
        cluster.beat()
    by_allocator = {
        each.dataset: each.size_bytes
        for each in cluster.directory.decisions().caches
        if each.origin == "allocator"
    }
    assert by_allocator == {"b": DATASET_BYTES * 3 // 4}


def test_less_cache_is_allocated_at_once(cluster: Cluster) -> None:
    cluster.reads(of("a"))
    for _ in range(2):
        cluster.beat()
    cluster.cache_bytes //= 2
    for _ in range(2):
        cluster.beat()
    assert cluster.quotas() == {"a": DATASET_BYTES // 2}


def test_one_allocator_leads_and_another_takes_over(cluster: Cluster) -> None:
    cluster.reads(of("a"))
    cluster.beat()
    second, own = cluster.another(), FolderDirectory(cluster.folder)
    assert second.beat(own) == cluster.allocator.id
    cluster.allocator.end(cluster.directory)
    assert isinstance(second.beat(own), Allocated)


def test_a_new_allocator_finds_what_was_allocated(cluster: Cluster) -> None:
    cluster.reads(of("a"))
    for _ in range(2):
        cluster.beat()
    before = cluster.directory.decisions()
    cluster.allocator.end(cluster.directory)
    second = cluster.another()
    for _ in range(2):
        second.beat(cluster.directory)
    assert cluster.directory.decisions() == before


def test_the_sum_is_not_above_the_total_when_small_changes_are_left_out(cluster: Cluster) -> None:
    fast, slow = of("a"), of("b", 9e6)
    cluster.reads(fast, slow)
    for _ in range(3):
        cluster.beat()
    before = cluster.rates()
    cluster.reads(msgspec.structs.replace(slow, speed_bytes_per_s=10.5e6))
    for _ in range(3):
        cluster.beat()
    after = cluster.rates()
    assert after["b"] > before["b"] * 1.1
    assert 0.98 < after["a"] / before["a"] < 1
    assert sum(after.values()) <= IO * (1 + 1e-9)


def test_a_store_slower_than_promised_lowers_the_total_and_is_said(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [of("a", 200e6), of("b", 200e6)]

    def read_at(share: float) -> None:
        """Each job uses this share of the total, or what it may if that is less."""
        rates = cluster.rates()
        for each in jobs:
            allowed = rates.get(each.job, IO)
            used = min(allowed, share * IO)
            starved = 0.9 if used < allowed else 0.0
            cluster.reads(
                msgspec.structs.replace(
                    each,
                    allowed_bytes_per_s=allowed,
                    used_bytes_per_s=used,
                    starved=starved,
                    bound=0.9 - starved,
                )
            )
        cluster.beat()

    for _ in range(10):
        read_at(0.5)
    assert sum(cluster.rates().values()) == pytest.approx(IO)
    for _ in range(30):
        read_at(0.25)
    assert sum(cluster.rates().values()) == pytest.approx(IO / 2, rel=0.2)
    for _ in range(90):
        read_at(0.5)
    assert sum(cluster.rates().values()) == pytest.approx(IO)
    assert [record.message[:30] for record in caplog.records] == [
        "the store gives about 47.7 MiB",
        "the store gives again what --r",
    ]
