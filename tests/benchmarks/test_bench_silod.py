"""The benchmark of allocations prints the lines that the issue's reader parses."""

from __future__ import annotations

import json

import pytest

from benchmarks.bench_silod import table_6
from benchmarks.silod_figures import WithoutIoControl, course
from benchmarks.silod_runs import Change
from dieselfs.allocation.jobs import Job, JobState, Resources
from dieselfs.allocation.policies.naming import policy_of
from dieselfs.allocation.simulation.simulator import simulate
from dieselfs.allocation.simulation.trace import GB


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_table_6_has_a_line_beside_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    table_6(["quiver"], Change(None, None), beat_s=600)
    table, figure = lines(capsys)
    assert (table["question"], table["system"]) == ("table 6", "quiver")
    assert table["paper"] == {
        "jct_min": [3609, 3592],
        "makespan_min": [3933, 3915],
        "first_epoch_min": 460,
    }
    assert len(table["ends_min"]) == 5  # type: ignore[arg-type]
    assert figure["question"] == "figure 9"
    # The first epoch is bound by remote IO: 200 MB/s for all systems.
    assert figure["mb_per_s"][0] == 200  # type: ignore[index]


def test_another_set_up_has_no_figures_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    table_6(["silod"], Change("100GB/s", "0"), beat_s=600)
    table = lines(capsys)[0]
    assert "paper" not in table
    assert table["makespan_min"] == pytest.approx(3452, rel=0.001)


def test_without_io_control_each_job_gets_its_fair_share_of_what_it_needs() -> None:
    jobs = [
        JobState(Job(name, name, 100 * GB, speed), 100 * GB)
        for name, speed in (("fast", 100e6), ("slow", 10e6))
    ]
    policy = WithoutIoControl(policy_of("max-min", "silod"))
    found = policy.schedule(jobs, Resources(2, 0, 60e6))
    assert found.io_bytes_per_s == pytest.approx({"fast": 50e6, "slow": 10e6})


def test_the_course_of_fairness_is_averaged_by_parts() -> None:
    jobs, total = [Job("one", "one", 100 * GB, 100e6, passes=5)], Resources(1, 0, 50e6)
    found = course(simulate(jobs, policy_of("max-min", "silod"), total, beat_s=100))
    assert found["median"] == pytest.approx([1.0] * 99)
    assert found["days"] == sorted(found["days"])
