"""The workloads of Table 3 as traces, and the benchmark of cache policies as a whole, small."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from benchmarks.harness import REPOSITORY
from benchmarks.policy_costs import PLANS, costs
from benchmarks.policy_replay import requests_of, size_of
from benchmarks.policy_workloads import ORDERS, WORKLOADS, Order, Workload, trace_of
from chunkstore.ssd.policies.baselines import AdmitEverything
from dieselfs.cache.advice.replay import replay

SEGMENTS = 256


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_each_job_reads_each_segment_of_its_partitions_once(
    workload: Workload, order: Order
) -> None:
    trace = trace_of(workload, order, SEGMENTS, seed=1)
    assert (np.diff(trace.times_s) >= 0).all()
    partitions = [job for batch in workload.batches for job in batch]
    for number, wanted in enumerate(partitions):
        places = trace.places[trace.job_numbers == number]
        assert len(set(places.tolist())) == len(places) == SEGMENTS * len(wanted)
        # Partition after partition, in the order of Table 3.
        assert (places // SEGMENTS).tolist() == [of for of in wanted for _ in range(SEGMENTS)]


def test_a_batch_starts_when_the_one_before_has_ended() -> None:
    jobs = trace_of(WORKLOADS[2], ORDERS[0], SEGMENTS, seed=1).jobs
    assert [job.begin_s for job in jobs] == pytest.approx([0] * 3 + [2000 / 3] * 3 + [4000 / 3] * 3)


def test_readers_walk_the_splits_of_a_queue_side_by_side() -> None:
    trace = trace_of(WORKLOADS[1], ORDERS[0], SEGMENTS, seed=1)
    first = trace.places[trace.job_numbers == 0][:12] - SEGMENTS
    assert first.tolist() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9, 10, 12]  # 5 readers, splits of 2


def test_one_order_for_all_gives_lru_nothing_in_the_pipeline() -> None:
    trace = trace_of(WORKLOADS[1], ORDERS[0], SEGMENTS, seed=1)
    assert replay(requests_of(trace), AdmitEverything(), size_of(trace)).hits == 0


KNOWING = ("historic", "future", "hybrid", "next-use")


def test_the_benchmark_works_small() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.bench_ssd_policies"),
            *("--segments", "128", "--seeds", "1", "--only", "table-3,figure-9"),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
        timeout=240,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    counts = Counter(line["question"] for line in lines)
    assert counts["table 3"] == 3 * 6 * len(ORDERS)
    for line in lines:
        if line["question"] == "table 3":
            assert 0 <= line["of_optimum"] <= 1
        if line["question"] == "figure 9" and line["policy"] in KNOWING:
            assert line["written_over_budget"] <= 1.05
            assert line["fills_over_dynamic"] < 0.1  # the paper: 96 % less
    own = {
        (line["workload"], line["policy"]): line["over_lru"]
        for line in lines
        if line.get("order") == "own-splits" and line["question"] == "table 3"
    }
    assert own["synchronized", "future"] > 1.3
    for workload in WORKLOADS:
        assert own[workload.name, "next-use"] >= own[workload.name, "future"]
    assert own["synchronized", "next-use"] > 2 * own["synchronized", "future"]
    assert own["pipelined", "future"] > 1.8
    assert own["pipelined", "historic"] < 1 < own["pipelined", "hybrid"]
    assert own["sequential", "future"] > 1.4


def test_the_costs_of_decisions_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    costs(segments=700, history_segments=1000)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["policy"] for line in lines].count("next-use") == len(PLANS)
    for line in lines[:-1]:
        assert line["admits_us"] > 0
        assert line["requested_us"] > 0
    assert lines[-1]["policy"] == "history"
