"""The contract of every `AllocationDirectory`. A subscriber says how one is opened and damaged."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from types import ModuleType

import msgspec
import pytest

from dieselfs.allocation.directory.decisions import (
    CacheDecision,
    IoDecision,
    JobEntry,
    encoded,
)
from dieselfs.allocation.directory.port import AllocationDirectory
from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.errors import RegistryUnavailable

ID, OTHER_ID = "a" * 32, "b" * 32
READER, OTHER, THIRD = "0" * 16, "1" * 16, "2" * 16
LEASE_S = 60.0
GIB = 1 << 30


class Place(ABC):
    """Where a directory lies."""

    module: ModuleType
    """The module of its kind, which has the bounds."""

    @abstractmethod
    def open(self) -> AllocationDirectory:
        """Open it as one process of several does."""

    @abstractmethod
    def put(self, kind: str, key: str, content: bytes) -> None:
        """Put a record of a kind, "caches", "ios" or "jobs", past the port."""

    @abstractmethod
    def lead_until_it_ends(self, directory: AllocationDirectory, id: str) -> None:
        """Lead, and return when that lease has ended."""


def made_lease(reader: str = READER, job: str = "resnet", **changed: object) -> ReaderLease:
    lease = ReaderLease(
        reader=reader,
        job=job,
        host="node-1",
        pid=7,
        dataset="imagenet",
        dataset_id=ID,
        dataset_bytes=GIB,
    )
    return msgspec.structs.replace(lease, **changed)


def made_job(name: str = "resnet", **changed: object) -> JobEntry:
    entry = JobEntry(
        job=name,
        dataset="imagenet",
        dataset_id=ID,
        dataset_bytes=GIB,
        speed_bytes_per_s=114e6,
        passes=90.0,
    )
    return msgspec.structs.replace(entry, **changed)


def readers_of(leases: list[ReaderLease]) -> list[str]:
    return sorted(lease.reader for lease in leases)


class AllocationDirectoryContract:
    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    @pytest.fixture
    def directory(self, place: Place) -> AllocationDirectory:
        return place.open()

    def test_nothing_is_there_at_first(self, directory: AllocationDirectory) -> None:
        found = directory.decisions()
        assert (found.caches, found.ios, found.version) == ([], [], 0)
        assert directory.jobs() == directory.leases() == []
        directory.allocate_remote_io("resnet", None, origin="hand")
        directory.remove_job("resnet")
        directory.withdraw(READER)
        beat = directory.beat(made_lease(), LEASE_S)
        assert (beat.io, beat.cache_version, beat.has_any) == (None, 0, False)

    def test_a_cache_by_hand_goes_before_the_allocators(
        self, place: Place, directory: AllocationDirectory
    ) -> None:
        versions = [0]

        def size(dataset_id: str = ID) -> int | None:
            found = place.open().decisions()
            versions.append(found.version)
            decision = found.cache_of(dataset_id)
            return None if decision is None else decision.size_bytes

        directory.allocate_cache_size("imagenet", ID, 0, origin="allocator")
        assert size() == 0
        directory.allocate_cache_size("imagenet", ID, 5 * GIB, origin="hand")
        assert size() == 5 * GIB
        directory.allocate_cache_size("imagenet", ID, 7 * GIB, origin="allocator")
        assert size() == 5 * GIB
        directory.allocate_cache_size("imagenet", ID, None, origin="hand")
        assert size() == 7 * GIB
        assert size(OTHER_ID) is None  # of a dataset that was made again under its name
        assert len(set(versions)) == 5
        directory.allocate_remote_io("resnet", 1.0, origin="hand")
        directory.allocate_cache_size("imagenet", ID, None, origin="hand")
        size()
        assert len(set(versions)) == 5
        directory.allocate_cache_size("imagenet", ID, None, origin="allocator")
        assert size() is None

    def test_a_beat_tells_the_remote_io_of_its_job(self, directory: AllocationDirectory) -> None:
        def rate(job: str = "resnet") -> float | None:
            decision = directory.beat(made_lease(job=job), LEASE_S).io
            return None if decision is None else decision.bytes_per_s

        directory.allocate_remote_io("resnet", 2e6, origin="allocator")
        assert directory.beat(made_lease(), LEASE_S).has_any
        assert rate() == 2e6
        directory.allocate_remote_io("resnet", 0, origin="hand")
        directory.allocate_remote_io("", 5e6, origin="allocator")
        assert (rate(), rate(""), rate("bert")) == (0.0, 5e6, None)
        assert {each.origin for each in directory.decisions().ios} == {"hand", "allocator"}
        found = directory.decisions().io_of("resnet")
        assert found is not None
        assert (found.origin, found.bytes_per_s) == ("hand", 0.0)
        directory.allocate_remote_io("resnet", None, origin="hand")
        assert rate() == 2e6

    def test_a_beat_tells_of_caches_by_their_version(self, directory: AllocationDirectory) -> None:
        directory.allocate_cache_size("imagenet", ID, GIB, origin="hand")
        beat = directory.beat(made_lease(), LEASE_S)
        assert beat.has_any
        assert beat.cache_version == directory.decisions().version > 0

    def test_stamps_grow(self, directory: AllocationDirectory) -> None:
        stamps = []
        for rate in (1.0, 2.0, 1.0):
            directory.allocate_remote_io("resnet", rate, origin="hand")
            stamps.append(directory.decisions().ios[0].stamp)
        assert stamps == sorted(set(stamps))
        assert abs(stamps[0] / 1e6 - time.time()) < 3600

    def test_a_later_decision_has_a_greater_stamp_than_one_of_a_faster_clock(
        self, place: Place, directory: AllocationDirectory
    ) -> None:
        stamp = int((time.time() + 300) * 1e6)
        ahead = IoDecision(job="resnet", bytes_per_s=1.0, origin="hand", stamp=stamp)
        place.put("ios", ahead.key, encoded(ahead))
        assert directory.decisions().ios == [ahead]
        directory.allocate_remote_io("resnet", 2.0, origin="hand")
        [found] = directory.decisions().ios
        assert (found.bytes_per_s, found.stamp) == (2.0, stamp + 1)

    def test_readers_of_a_job_see_each_other(self, place: Place) -> None:
        first, second = place.open(), place.open()
        lease = made_lease(used_bytes_per_s=3.5, bound=0.5, epoch=3, age_s=9.0)
        assert list(first.beat(lease, LEASE_S).peers) == [lease]
        second.beat(made_lease(OTHER, "bert"), LEASE_S)
        assert readers_of(list(second.beat(made_lease(THIRD), LEASE_S).peers)) == [READER, THIRD]
        later = made_lease(used_bytes_per_s=4.0)
        first.beat(later, LEASE_S)
        assert later in second.beat(made_lease(THIRD), LEASE_S).peers
        assert readers_of(second.leases()) == [READER, OTHER, THIRD]
        first.withdraw(READER)
        first.withdraw(READER)
        assert readers_of(list(second.beat(made_lease(THIRD), LEASE_S).peers)) == [THIRD]
        assert readers_of(first.leases()) == [OTHER, THIRD]
        for each in (first, second):
            each.close()

    def test_a_reader_that_changes_its_job_is_seen_once(
        self, directory: AllocationDirectory
    ) -> None:
        directory.beat(made_lease(), LEASE_S)
        directory.beat(made_lease(job="bert"), LEASE_S)
        assert directory.leases() == [made_lease(job="bert")]
        assert readers_of(list(directory.beat(made_lease(OTHER), LEASE_S).peers)) == [OTHER]

    def test_jobs_are_declared(self, place: Place, directory: AllocationDirectory) -> None:
        directory.put_job(made_job())
        directory.put_job(made_job("bert", gpus=4, regular=False))
        directory.put_job(made_job(passes=13.0))
        found = place.open().jobs()
        assert [(job.job, job.passes, job.gpus, job.regular) for job in found] == [
            ("bert", 90.0, 4, False),
            ("resnet", 13.0, 1, True),
        ]
        assert found[1].as_job().total_bytes == 13 * GIB
        directory.remove_job("bert")
        directory.remove_job("bert")
        assert [job.job for job in directory.jobs()] == ["resnet"]
        assert not directory.beat(made_lease(), LEASE_S).has_any  # no decision

    def test_one_leads(self, place: Place, directory: AllocationDirectory) -> None:
        other = place.open()
        assert directory.lead("a", LEASE_S) == "a"
        assert other.lead("b", LEASE_S) == "a"
        assert directory.lead("a", LEASE_S) == "a"
        other.resign("b")
        assert other.lead("b", LEASE_S) == "a"
        directory.resign("a")
        assert other.lead("b", LEASE_S) == "b"
        other.resign("b")
        place.lead_until_it_ends(directory, "a")
        assert other.lead("b", LEASE_S) == "b"

    def test_records_of_the_greatest_size(self, directory: AllocationDirectory) -> None:
        job, dataset = "ü" * 64, "d" * 255
        lease = made_lease(job=job, host="h" * 255, dataset=dataset, epoch=1 << 62)
        entry = made_job(job, dataset=dataset, dataset_bytes=1 << 60, speed_bytes_per_s=1e13 / 3)
        directory.put_job(entry)
        directory.allocate_cache_size(dataset, ID, 1 << 60, origin="allocator")
        directory.allocate_remote_io(job, 1e13 / 3, origin="allocator")
        beat = directory.beat(lease, LEASE_S)
        assert list(beat.peers) == directory.leases() == [lease]
        assert beat.io is not None
        assert beat.io.bytes_per_s == 1e13 / 3
        [found] = directory.jobs()
        assert msgspec.structs.replace(found, stamp=0) == entry

    def test_what_is_out_of_bounds_is_refused(self, directory: AllocationDirectory) -> None:
        for rate in (-1.0, float("nan"), float("inf"), 1e14):
            with pytest.raises(ValueError):
                directory.allocate_remote_io("resnet", rate, origin="hand")
        for size in (-1, 1 << 61):
            with pytest.raises(ValueError):
                directory.allocate_cache_size("imagenet", ID, size, origin="hand")
        with pytest.raises(ValueError):
            directory.allocate_cache_size("imagenet", "short", 1, origin="hand")
        with pytest.raises(ValueError):
            directory.put_job(made_job(dataset_bytes=0))
        with pytest.raises(ValueError):
            directory.allocate_remote_io("a\x1bb", 1.0, origin="hand")
        with pytest.raises(ValueError):
            directory.beat(made_lease(bound=2.0), LEASE_S)
        assert directory.decisions().ios == directory.leases() == directory.jobs() == []

    def test_what_is_strange_is_skipped_and_said_once(
        self, place: Place, directory: AllocationDirectory, caplog: pytest.LogCaptureFixture
    ) -> None:
        now_us = int(time.time() * 1e6)
        future = IoDecision(
            job="future", bytes_per_s=1.0, origin="hand", stamp=now_us + 660_000_000
        )
        later = CacheDecision(dataset="d", dataset_id=OTHER_ID, size_bytes=1, origin="hand")
        for kind, key, content in (
            ("ios", future.key, encoded(future)),
            ("ios", "hand:damaged", b'{"v":1}'),
            ("ios", "hand:other", b"[]"),
            ("caches", later.key, encoded(later).replace(b'"v":1', b'"v":2')),
            ("jobs", "damaged", b'{"v":1,"job":"damaged"}'),
        ):
            place.put(kind, key, content)
        directory.allocate_remote_io("resnet", 2.0, origin="hand")
        directory.put_job(made_job())
        for _ in range(2):
            found = directory.decisions()
            assert [each.job for each in found.ios] == ["resnet"]
            assert found.caches == []
            assert [each.job for each in directory.jobs()] == ["resnet"]
            for job in ("future", "damaged", "other"):
                assert directory.beat(made_lease(job=job), LEASE_S).io is None
        assert caplog.text.count("decisions on remote IO of this release") == 1
        assert caplog.text.count("decisions on caches of this release") == 1
        assert caplog.text.count("declared jobs of this release") == 1
        directory.allocate_remote_io("future", 3.0, origin="hand")
        found_io = directory.decisions().io_of("future")
        assert found_io is not None
        assert found_io.stamp < future.stamp

    def test_it_is_bounded(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(place.module, "MAX_JOB_READERS", 2)
        monkeypatch.setattr(place.module, "MAX_READERS", 3)
        directory = place.open()
        for reader, job in ((READER, "a"), (OTHER, "a"), (THIRD, "b")):
            directory.beat(made_lease(reader, job), LEASE_S)
        for job in ("a", "c"):
            with pytest.raises(RegistryUnavailable, match=r"room|full"):
                directory.beat(made_lease("3" * 16, job), LEASE_S)
        assert len(directory.beat(made_lease(READER, "a"), LEASE_S).peers) == 2
