"""The policy runner with policies that note their questions, fail or hang, under a given clock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.admission import AdmitAll
from chunkstore.ssd.policies.baselines import AdmitEverything
from chunkstore.ssd.policies.job_specifications import JobSpecification, PlannedReads
from chunkstore.ssd.policies.naming import PolicySettings, policy_of
from chunkstore.ssd.policies.policy import CachePolicy
from chunkstore.ssd.policies.request_history import RequestHistory
from chunkstore.ssd.policies.segment_buckets import Bucket, key_of
from chunkstore.ssd.policy_choice import POLICIES, PolicyChoice
from chunkstore.ssd.policy_counts import CountedRow, PolicyCounts
from chunkstore.ssd.policy_events import Observed, PolicyDecision, PolicyRequest
from chunkstore.ssd.policy_runner import PolicyRunner
from chunkstore.ssd.reader_tags import (
    ChunkRead,
    ReaderTags,
    dataset_tags,
    decided_segment,
    decided_segments,
)
from chunkstore.ssd.region_ranking import RegionRanks
from chunkstore.ssd.segments import Segment

MIB = 1 << 20
DATASET = DatasetRef("pictures", b"i" * 16)
TAGS = dataset_tags(DATASET, "train")
PICTURES = Bucket("pictures")


def chunk(number: int) -> bytes:
    return number.to_bytes(16, "big")


def key(number: int) -> int:
    return key_of(Segment(chunk(number), 0))


def read(number: int, length: int = 4 * MIB, tags: ReaderTags = TAGS, start: int = 0) -> ChunkRead:
    return ChunkRead(tags, DATASET.id, chunk(number), start, length, 4 * MIB)


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


class Noting(AdmitEverything):
    """A policy that notes what it is told, and admits what it is set to."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.answer = True

    def requested(self, job: str, bucket: Bucket, key: int, length: int) -> None:
        self.told.append((job, bucket, key, length))

    def admits(self, bucket: Bucket, key: int, length: int) -> bool:
        self.told.append(("admits", key))
        return self.answer

    def reinserts(self, bucket: Bucket, key: int, length: int) -> bool:
        return key == KEPT

    def written(self, length: int) -> None:
        self.told.append(("written", length))

    def publish(self, specification: JobSpecification, now: float) -> None:
        self.told.append((specification.job, now))

    def refresh(self, now: float) -> None:
        self.told.append(("refresh", now))


KEPT = key(2)


class Runner:
    """A runner whose policies are noting ones."""

    def __init__(self, name: str = "future", observed: list[Observed] | None = None) -> None:
        self.clock = Clock()
        self.policies: dict[str, Noting] = {}
        self.runner = PolicyRunner(
            PolicyChoice(name),
            AdmitAll(),
            names={DATASET.id: DATASET.name},
            observe=None if observed is None else observed.append,
            now=self.clock,
            policies=self._made,
        )

    def _made(self, settings: PolicySettings, history: RequestHistory | None = None) -> CachePolicy:
        return self.policies.setdefault(settings.name, Noting())


def test_a_request_and_its_decision_are_told_and_counted() -> None:
    made = Runner()
    runner, policy = made.runner, made.policies["future"]
    runner.requested(read(1), hit=False)
    assert runner.admits(read(1))
    policy.answer = False
    assert not runner.admits(read(2))
    runner.requested(read(1), hit=True)
    runner.written(DATASET.id, chunk(1), 0, 4 * MIB)
    assert policy.told == [
        ("train", "pictures", key(1), 4 * MIB),
        ("admits", key(1)),
        ("admits", key(2)),
        ("train", "pictures", key(1), 4 * MIB),
        ("written", 4 * MIB),
    ]
    size = 4 * MIB
    assert runner.counts.all() == {
        CountedRow("pictures", "pictures", "train"): PolicyCounts(
            hit_bytes=size, miss_bytes=size, admitted_bytes=size, refused_bytes=size
        ),
        CountedRow("pictures", "pictures", ""): PolicyCounts(written_bytes=size),
    }


def test_parts_of_a_chunk_are_one_request_with_one_decision() -> None:
    made = Runner()
    runner, policy = made.runner, made.policies["future"]
    policy.answer = False
    for turn in (1, 2):
        for part in range(4):
            runner.requested(read(1, MIB, start=part * MIB), hit=False)
            assert not runner.admits(read(1, MIB, start=part * MIB))
        asked = [told for told in policy.told if told == ("admits", key(1))]
        requests = [told for told in policy.told if len(told) == 4]  # type: ignore[arg-type]
        # the last part ends the request, so its question is asked again
        assert (len(requests), len(asked)) == (turn, 2 * turn)
    other = ReaderTags(TAGS.bucket_of, "another job")
    runner.requested(read(1, MIB, other), hit=True)
    assert policy.told[-1] == ("another job", "pictures", key(1), 4 * MIB)


def test_a_chunk_that_is_read_by_parts_is_cached_while_uses_are_predicted() -> None:
    made = Runner()
    runner, policy = made.runner, made.policies["future"]
    policy.answer = False
    runner._ranks = RegionRanks([], np.zeros(0), set())
    runner.requested(read(1, MIB), hit=False)
    assert runner.admits(read(1, MIB)), "its other parts are read next"
    runner.requested(read(2), hit=False)
    assert not runner.admits(read(2)), "it was read whole"


def test_policies_are_refreshed_every_10_s_after_what_was_published() -> None:
    made = Runner()
    runner, policy, clock = made.runner, made.policies["future"], made.clock
    runner.publish(JobSpecification("train", "pictures", (PICTURES,)))
    assert runner.tend()
    for clock.s in (101.0, 105.0, 109.9):
        runner.publish(JobSpecification("train", "pictures", (PICTURES,)))
        runner.publish(JobSpecification("train", "pictures", (PICTURES,)))
        assert not runner.tend()
    clock.s = 110.0
    assert runner.tend()
    assert policy.told == [
        ("train", 100.0),
        ("refresh", 100.0),
        ("train", 101.0),
        ("train", 105.0),
        ("train", 109.9),
        ("refresh", 110.0),
    ]
    clock.s = 50.0  # a clock that is set back
    assert runner.tend()


def test_policies_are_refreshed_at_once_for_readers_that_begin_end_or_tell_another_order() -> None:
    made = Runner()
    runner, clock = made.runner, made.clock
    assert runner.tend()

    def tend_after(id: str, buckets: tuple[Bucket, ...] = (PICTURES,)) -> bool:
        clock.s += 1
        plan = PlannedReads(id, np.zeros(1, np.uint32), 0, 1.0)
        runner.publish(JobSpecification("train", "pictures", buckets, plan=plan))
        return runner.tend()

    assert tend_after("first order")
    assert not tend_after("first order")
    assert tend_after("second order")
    assert tend_after("second order", ())
    assert not tend_after("second order", ())


def test_another_policy_learns_of_the_jobs_whose_leases_run() -> None:
    made = Runner()
    runner, clock = made.runner, made.clock
    runner.publish(JobSpecification("short", "pictures", (PICTURES,), lease_s=5))
    runner.publish(JobSpecification("long", "pictures", (PICTURES,), lease_s=500))
    runner.tend()
    clock.s += 10
    runner.tend()
    runner.change(PolicyChoice("historic"))
    runner.tend()
    assert runner.policy == "historic"
    assert made.policies["historic"].told == [("long", clock.s), ("refresh", clock.s)]


def test_the_request_history_goes_on_under_another_policy() -> None:
    """A job that was active before counts at once, and what expires does so at its time."""
    clock = Clock()
    runner = PolicyRunner(PolicyChoice("historic"), AdmitAll(), now=clock)
    for _ in range(2):
        clock.s += 3600
        runner.tend()
        runner.requested(read(1), hit=False)
    specification = JobSpecification("train", "pictures", (PICTURES,))
    runner.publish(specification)
    runner.publish(JobSpecification("train", "pictures", (PICTURES,), reader="2"))
    runner.change(PolicyChoice("hybrid"))
    runner.tend()
    assert runner.admits(read(2))
    clock.s += 6 * 3600 + 1000
    runner.tend()
    assert not runner.admits(read(2))


@pytest.mark.parametrize("name", ["requested", "admits", "written", "publish", "refresh"])
def test_a_policy_that_raises_is_replaced_by_the_next_simpler_one(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = Runner()

    def fails(*arguments: object) -> None:
        raise RuntimeError("boom")

    setattr(made.policies["future"], name, fails)
    runner = made.runner
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            runner.publish(JobSpecification("train", "pictures", (PICTURES,)))
            runner.tend()
            runner.requested(read(1), hit=False)
            assert runner.admits(read(1))
            runner.written(DATASET.id, chunk(1), 0, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "the cache policy future failed; historic takes its place"
    ]
    assert runner.policy == "historic"


def test_without_a_policy_the_tier_s_own_admission_decides() -> None:
    class Second:
        def admits(self, dataset: bytes, chunk: bytes) -> bool:
            return chunk == b"second"

    runner = PolicyRunner(PolicyChoice("lru"), Second())
    assert runner.admits(ChunkRead(TAGS, DATASET.id, b"second", 0, 1, 2))
    assert not runner.admits(ChunkRead(TAGS, DATASET.id, b"first", 0, 1, 2))


def test_a_read_does_not_wait_for_a_refresh() -> None:
    made = Runner()
    runner, policy = made.runner, made.policies["future"]
    begun, go_on = threading.Event(), threading.Event()

    def slow(now: float) -> None:
        begun.set()
        assert go_on.wait(60)

    policy.refresh = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=runner.tend)
    thread.start()
    assert begun.wait(60)
    runner.requested(read(1), hit=False)
    assert not runner.admits(read(1))
    for part in range(3):
        runner.requested(read(2, MIB, start=part * MIB), hit=False)
    assert policy.told == []
    go_on.set()
    thread.join()
    made.clock.s += 10
    runner.tend()
    assert policy.told == [("train", "pictures", key(of), 4 * MIB) for of in (1, 2)]
    assert runner.counts.all()[CountedRow("pictures", "pictures", "train")].miss_bytes == 7 * MIB


def test_parts_after_the_first_one_need_no_lock() -> None:
    made = Runner()
    runner = made.runner
    runner.requested(read(1, MIB), hit=False)
    assert runner.admits(read(1, MIB))
    with runner._lock:
        runner.requested(read(1, MIB, start=MIB), hit=True)
        assert runner.admits(read(1, MIB, start=MIB))
    assert not runner._backlog


def test_reinserted_segments_are_those_of_chunks_that_the_policy_keeps() -> None:
    runner = Runner().runner
    lost = [Segment(chunk(n), number) for n in (1, 2) for number in range(3)]
    assert runner.stays(DATASET.id, lost) == lost[3:]
    size = 3 * 256 << 10
    assert runner.counts.all() == {
        CountedRow("pictures", "pictures"): PolicyCounts(
            evicted_bytes=size, reinserted_bytes=size, written_bytes=size
        )
    }


def test_a_budget_is_of_the_node() -> None:
    """What other processes write is taken from the budget of each."""
    made = Runner()
    runner, told = made.runner, made.policies["future"].told
    runner.node_wrote(10_000)  # before this process began
    runner.written(DATASET.id, chunk(1), 0, 500)
    runner.take_counts()
    runner.node_wrote(10_500)
    assert told == [("written", 500)]
    runner.node_wrote(13_500)
    assert told == [("written", 500), ("written", 3000)]
    runner.node_wrote(500)  # the index was built again
    runner.node_wrote(600)
    assert told[2:] == [("written", 100)]


def test_an_observer_sees_what_the_policy_sees() -> None:
    observed: list[Observed] = []
    runner = Runner(observed=observed).runner
    tags = ReaderTags(TAGS.bucket_of, "train", epoch=3)
    runner.requested(read(1, tags=tags), hit=False)
    runner.admits(read(1, tags=tags))
    runner.publish(specification := JobSpecification("train", "pictures", (PICTURES,)))
    assert observed == [
        PolicyRequest("train", 3, "pictures", PICTURES, key(1), 4 * MIB, False),
        PolicyDecision(PICTURES, key(1), True),
        specification,
    ]


@pytest.mark.parametrize(
    ("size", "numbers"),
    [(1, [0]), (32 * MIB, [0]), (32 * MIB + 1, [0, 128]), (41 * MIB, [0, 128, 144, 160])],
)
def test_an_object_is_decided_about_at_once_up_to_32_mib_and_then_by_blocks(
    size: int, numbers: Sequence[int]
) -> None:
    segments = decided_segments(b"c" * 16, size)
    assert [segment.number for segment in segments] == numbers
    assert {decided_segment(b"c" * 16, at) for at in range(0, size, 65536)} == set(segments)


def test_policies_of_the_real_kind_run(caplog: pytest.LogCaptureFixture) -> None:
    runner = PolicyRunner(PolicyChoice("future"), AdmitAll(), now=Clock(), policies=policy_of)
    runner.requested(read(1), hit=False)
    for reader in ("a", "b"):
        tags = ReaderTags(TAGS.bucket_of, reader)
        runner.publish(JobSpecification(reader, "pictures", (PICTURES,)))
        runner.requested(read(1, tags=tags), hit=False)
    runner.tend()
    assert runner.admits(read(1))
    assert not caplog.records


def test_a_decision_is_explained() -> None:
    clock = Clock()
    runner = PolicyRunner(
        PolicyChoice("future", write_budget=1.0), AdmitAll(), now=clock, policies=policy_of
    )
    unknown = runner.explain(DATASET.id, chunk(1))
    assert (unknown.admitted, unknown.priority, unknown.threshold) == (None, None, 1.1)
    assert "has not missed it lately" in unknown.reason
    tags = {job: ReaderTags(TAGS.bucket_of, job) for job in "ab"}

    def reason_when(*jobs: str) -> str:
        for job in jobs:
            runner.requested(read(1, tags=tags[job]), hit=False)
            runner.publish(JobSpecification(job, "pictures", (PICTURES,)))
        clock.s += 10
        runner.tend()
        runner.admits(read(1))
        clock.s += 2
        found = runner.explain(DATASET.id, chunk(1), tags=TAGS)
        assert (found.policy, found.bucket, found.decided_ago_s) == ("future", "pictures", 2.0)
        return found.reason

    assert reason_when() == (
        "refused: its bucket has no priority; no job reads it, or it is new within 10 s"
    )
    assert reason_when("a") == "refused: priority 1.0 is not above the threshold 1.1"
    assert reason_when("b") == "admitted: priority 2.0 is above the threshold 1.1"
    runner.written(DATASET.id, chunk(1), 0, 1 << 30)
    assert reason_when().endswith("the threshold 1.9, but the write budget is used up")
    plain = PolicyRunner(PolicyChoice(), AdmitAll())
    plain.admits(read(1))
    assert plain.explain(DATASET.id, chunk(1)).reason == (
        "admitted by --ssd-admission: there is no cache policy"
    )


@pytest.mark.parametrize("uses", [np.zeros(7), np.array([float("nan")]), "nonsense"])
def test_predictions_that_make_no_sense_cost_the_policy_its_place(uses: object) -> None:
    made = Runner("next-use") if "next-use" in POLICIES else Runner("hybrid")
    policy = made.policies[made.runner.policy]
    policy.next_uses = lambda keys: uses  # type: ignore[method-assign, assignment]
    found = made.runner.explain(DATASET.id, chunk(1))
    assert found.next_use_s is None
    assert made.runner.policy in ("future", "historic")
