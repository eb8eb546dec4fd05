"""The job of a mount: it publishes and watches if and when a cache policy needs that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from chunkstore.ssd.policy_choice import PolicyChoice
from chunkstore.ssd.policy_events import Observed
from chunkstore.ssd.reader_tags import dataset_tags
from chunkstore.ssd.tier import SsdTier
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.cache.advice.recording_store import RecordingStore
from dieselfs.cache.jobs import job_beats, reader_jobs
from dieselfs.cache.jobs.job_beats import watch_jobs
from dieselfs.cache.jobs.reader_jobs import ReaderJobs
from tests.dieselfs.cache.jobs.made_jobs import ORDER, READER, MemoryJobs, made_record
from tests.dieselfs.prefetch.made_snapshot import MadeSnapshot, chunk_id
from tests.eventually import PATIENCE_S, eventually

MADE = MadeSnapshot.even(3, 1, 10)
SNAPSHOT = MADE.as_snapshot()
FUTURE = PolicyChoice("future")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> MemoryJobs:
    eventually(lambda: not has_thread(), "the end of another test's thread")
    found = MemoryJobs()
    for module in (reader_jobs, job_beats):
        monkeypatch.setattr(module, "job_registry", lambda _: found)
    monkeypatch.setattr(job_beats, "BEAT_S", 0.001)
    return found


def made_tier(folder: Path, choice: PolicyChoice) -> SsdTier:
    def never_opens() -> None:
        raise OSError

    return SsdTier(never_opens, folder, choice=choice)  # type: ignore[arg-type]


def begun(job: str, tier: SsdTier | None = None, *, has_cluster: bool = False) -> ReaderJobs:
    buckets = "dataset" if tier is None else tier._choice.buckets
    jobs = ReaderJobs(
        *(job, SNAPSHOT, "memory://"),
        policies=None if tier is None else tier.policies,
        buckets=buckets,
        has_cluster=has_cluster,
        beat_s=0.001,
    )
    reads = iter(range(1, 1 << 60))
    jobs.begin(lambda: None, partial(next, reads))
    return jobs


def has_thread() -> bool:
    return any(thread.name == "jobs" for thread in threading.enumerate())


def test_whoever_sets_nothing_notices_nothing(registry: MemoryJobs, tmp_path: Path) -> None:
    plain = made_tier(tmp_path, PolicyChoice())
    for jobs in (begun("job"), begun("job", plain), begun("", has_cluster=True)):
        assert not has_thread()
        jobs.close(PATIENCE_S)
    assert begun("").tags == dataset_tags(MADE.dataset)
    assert not has_thread()


@pytest.mark.parametrize("job", ["resnet", ""])
def test_a_mount_with_a_policy_publishes_until_it_ends(
    job: str, registry: MemoryJobs, tmp_path: Path
) -> None:
    jobs = begun(job, made_tier(tmp_path, FUTURE))
    eventually(lambda: registry.held)
    [record] = registry.held.values()
    assert (record.job, record.dataset) == (job, "made")
    assert jobs.tags.job == record.name
    jobs.close(PATIENCE_S)
    assert registry.held == {}
    assert not has_thread()


def test_a_reader_of_what_no_cache_keeps_publishes_nothing(registry: MemoryJobs) -> None:
    jobs = begun("resnet", has_cluster=True)
    eventually(lambda: registry.held)
    jobs.tags.may_keep = False
    eventually(lambda: not registry.held)
    jobs.close(PATIENCE_S)


def test_a_job_that_reads_through_a_cluster_publishes(registry: MemoryJobs) -> None:
    jobs = begun("resnet", has_cluster=True)
    eventually(lambda: registry.held)
    jobs.close(PATIENCE_S)


def test_a_policy_that_is_chosen_later_is_told_what_others_read(
    registry: MemoryJobs, tmp_path: Path
) -> None:
    registry.publish(made_record(), ORDER)
    tier = made_tier(tmp_path, PolicyChoice())
    jobs = begun("mine", tier)
    assert not has_thread()
    seen: list[Observed] = []
    tier.policies.observe(seen.append)
    eventually(lambda: any(getattr(each, "reader", "") == READER for each in seen))
    eventually(lambda: len(registry.held) == 2, "it publishes too")
    tier.policies.observe(None)
    eventually(lambda: list(registry.held) == [READER], "without a policy the record goes")
    jobs.close(PATIENCE_S)


def test_a_store_that_records_is_told_what_others_read(registry: MemoryJobs) -> None:
    registry.publish(made_record(), ORDER)
    seen: list[Observed] = []
    store = RecordingStore(MemoryObjectStore(), MADE.dataset, seen.append, lambda chunk: None)
    jobs = ReaderJobs("mine", SNAPSHOT, "memory://", policies=None, beat_s=0.001)
    jobs.tell(store)
    reads = iter(range(1, 1 << 60))
    jobs.begin(lambda: None, partial(next, reads))
    eventually(lambda: any(getattr(each, "reader", "") == READER for each in seen))
    eventually(lambda: len(registry.held) == 2, "it publishes too")
    jobs.close(PATIENCE_S)


def test_the_bucket_map_follows_the_choice(registry: MemoryJobs, tmp_path: Path) -> None:
    tier = made_tier(tmp_path, PolicyChoice("future", buckets="directory"))
    jobs = begun("mine", tier)
    assert jobs.tags.bucket_of(chunk_id(0).value) == "made:d0"
    tier.policies.choose(FUTURE)
    eventually(lambda: jobs.tags.bucket_of(chunk_id(0).value) == "made")
    jobs.close(PATIENCE_S)


def test_a_cache_node_watches(registry: MemoryJobs, tmp_path: Path) -> None:
    registry.publish(made_record(), ORDER)
    tier = made_tier(tmp_path, PolicyChoice())
    watched = watch_jobs("memory://", tier.policies)
    assert not has_thread()
    seen: list[Observed] = []
    watching: Callable[[Observed], None] = seen.append
    tier.policies.observe(watching)
    eventually(lambda: seen)
    watched.close(PATIENCE_S)
    assert not has_thread()
    assert list(registry.held) == [READER]
