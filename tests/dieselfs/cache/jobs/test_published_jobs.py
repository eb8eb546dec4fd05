"""From a reader to the policies of another process: publisher, registry, watcher, beats."""

from __future__ import annotations

import os
import signal

import pytest

from chunkstore.ssd.policies.job_specifications import JobSpecification
from dieselfs.cache.jobs import job_watcher
from dieselfs.cache.jobs.job_beats import JobBeats
from dieselfs.cache.jobs.job_name import job_name
from dieselfs.cache.jobs.job_publisher import JobPublisher, ReaderIdentity
from dieselfs.cache.jobs.job_record import encoded
from dieselfs.cache.jobs.job_watcher import JobWatcher
from dieselfs.cache.jobs.reading import Reading
from dieselfs.config import Setting
from dieselfs.errors import UsageError
from tests.dieselfs.cache.jobs.made_jobs import ORDER, READER, MemoryJobs, made_record
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot
from tests.eventually import eventually

SNAPSHOT = MadeSnapshot.even(3, 1, 10).as_snapshot()


class Reads:
    """What a reader reads, and the clock; a test changes both."""

    def __init__(self) -> None:
        self.now: Reading | None = None
        self.seconds = 0.0
        self.publisher = JobPublisher(
            ReaderIdentity("resnet", READER), lambda: self.now, lambda: self.seconds
        )


class Policies:
    """The specifications that a policy would know now."""

    def __init__(self) -> None:
        self.told: list[JobSpecification] = []
        self.watcher = JobWatcher(self.told.append)

    def beat(self, registry: MemoryJobs) -> list[JobSpecification]:
        self.told.clear()
        self.watcher.beat(registry)
        return list(self.told)


def test_what_a_reader_reads_reaches_the_policies() -> None:
    reads, policies, registry = Reads(), Policies(), MemoryJobs()
    reads.publisher.beat(registry)
    assert registry.held == {}  # nothing is read yet
    reads.now, reads.seconds = Reading(SNAPSHOT, ORDER, 2, 1, 0.5), 100.0
    reads.publisher.beat(registry)
    reads.seconds = 104.0
    reads.publisher.beat(registry)
    record = registry.held[READER]
    encoded(record)
    assert (record.job, record.dataset, record.epoch, record.age_s) == ("resnet", "made", 2, 4.0)
    (found,) = policies.beat(registry)
    assert found.plan is not None
    assert (found.job, found.plan.position, found.plan.keys_per_s) == ("resnet", 1, 0.5)
    assert found.plan.keys.tolist() == ORDER.keys.tolist()
    reads.now = None
    reads.publisher.beat(registry)
    (gone,) = policies.beat(registry)
    assert (gone.job, gone.reader, gone.buckets) == ("resnet", READER, ())
    assert gone.lease_s < 1
    assert policies.beat(registry) == []


def test_the_publisher_withdraws_its_record_at_the_end() -> None:
    reads, registry = Reads(), MemoryJobs()
    reads.now = Reading(SNAPSHOT, ORDER)
    reads.publisher.beat(registry)
    reads.publisher.end(registry)
    assert registry.held == {}


def test_an_order_is_asked_for_once_and_again_if_it_is_not_there() -> None:
    policies, registry = Policies(), MemoryJobs()
    registry.held[READER] = made_record()
    assert policies.beat(registry) == []
    registry.orders[ORDER.id] = ORDER
    assert len(policies.beat(registry)) == 1
    registry.held["f" * 16] = made_record("f" * 16)
    assert len(policies.beat(registry)) == 2
    assert len(registry.asked) == 2


def test_orders_without_room_in_memory_count_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watcher, "MAX_ORDERS_BYTES", -1)
    policies, registry = Policies(), MemoryJobs()
    registry.publish(made_record(), ORDER)
    (found,) = policies.beat(registry)
    assert found.plan is None
    assert found.buckets == ORDER.buckets


def test_a_registry_that_is_away_is_logged_once_and_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reads, registry, policies = Reads(), MemoryJobs(), Policies()
    reads.now = Reading(SNAPSHOT, ORDER)
    registry.is_away = True
    beats = JobBeats(lambda: registry, [reads.publisher, policies.watcher], beat_s=0.001)
    beats.start()
    eventually(lambda: "neither published nor seen" in caplog.text)
    registry.is_away = False
    eventually(lambda: policies.told, "the record is seen")
    beats.close(60.0)
    assert registry.held == {}
    assert caplog.text.count("neither published nor seen") == 1
    assert caplog.text.count("seen again") == 1


def test_any_other_error_is_logged_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    looks = 0

    def look() -> Reading:
        nonlocal looks
        looks += 1
        raise ZeroDivisionError

    publisher = JobPublisher(ReaderIdentity(""), look)
    beats = JobBeats(MemoryJobs, [publisher], beat_s=0.001)
    beats.start()
    eventually(lambda: looks > 2, "it goes on")
    beats.close(60.0)
    assert caplog.text.count("cannot be published or seen") == 1


def test_a_child_that_was_forked_while_they_began_closes_them() -> None:
    beats = JobBeats(MemoryJobs, [], beat_s=0.001)
    with beats._lock:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends a child that waits for ever
            beats.close()
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_the_name_of_the_job() -> None:
    slurm = {"SLURM_JOB_ID": "42"}
    configured = Setting("resnet", "DIESELFS_JOB")
    assert job_name("vit", configured, "task", slurm) == "vit"
    assert job_name(None, configured, "task", slurm) == "resnet"
    assert job_name(None, None, "task", slurm) == "42"
    assert job_name(None, None, "task", {}) == "task"
    assert job_name(None, None, "task", {"SLURM_JOB_ID": "\n"}) == "task"
    assert job_name(None, None, None, {}) == ""
    for wrong in ("", " ", "a\nb", "a" * 129):
        with pytest.raises(UsageError, match="--job"):
            job_name(wrong, None, None, {})
        with pytest.raises(UsageError, match="DIESELFS_JOB"):
            job_name(None, Setting(wrong, "DIESELFS_JOB"), None, {})
