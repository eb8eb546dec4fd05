"""`dlcmd alloc simulate`: the tables, the record, the plot, and bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dieselfs.cli.conftest import Dlcmd

HEADER = "job,dataset,dataset_bytes,speed_bytes_per_s,gpus,passes,submitted_s,regular"
TRACE = f"""{HEADER}
fast,small,100000000000,100000000,1,4,0,yes
slow,large,200000000000,50000000,1,1,600,yes
"""
TOTALS = ("--cache", "100000000000", "--remote-io", "50000000")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "trace.csv").write_text(TRACE)
    return tmp_path / "trace.csv"


def test_jobs_wait_run_and_end(dlcmd: Dlcmd, trace: Path) -> None:
    lines = dlcmd("alloc", "simulate", trace, "--gpus", "1", *TOTALS).lines
    # 2,000 s at the store's rate and three epochs of 1,000 s; then 4,000 s.
    assert lines[1].split()[-4:] == ["83", "min", "83", "min"]
    assert lines[2].split()[-4:] == ["151", "min", "141", "min"]
    assert lines[4].split() == ["MEAN", "JCT", "50", "%", "90", "%", "99", "%", "MAKESPAN"]
    assert lines[-2].startswith("jobs read at 85% of their ideal rates")


@pytest.mark.parametrize("grain", ["fluid", "items"])
def test_the_record_has_the_figures_and_all_jobs(dlcmd: Dlcmd, trace: Path, grain: str) -> None:
    [found] = dlcmd("alloc", "simulate", trace, *TOTALS, "--grain", grain, "--json").records
    assert found["system"] == "silod"
    assert found["order"] == "fifo"
    assert [job["job"] for job in found["jobs"]] == ["fast", "slow"]
    assert found["makespan_s"] == max(job["ended_s"] for job in found["jobs"])
    assert found["jct_s"]["mean"] == pytest.approx(
        sum(job["ended_s"] - job["submitted_s"] for job in found["jobs"]) / 2
    )


def test_a_plot_of_rates_and_cache(dlcmd: Dlcmd, trace: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    dlcmd("alloc", "simulate", trace, "--system", "alluxio", *TOTALS, "--plot", plot)
    drawn = plot.read_text()
    assert drawn.startswith("<svg")
    assert "effective" in drawn
    nowhere = tmp_path / "missing" / "plot.svg"
    failed = dlcmd("alloc", "simulate", trace, *TOTALS, "--plot", nowhere)
    assert "cannot write the plot" in failed.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--order", "lifo", *TOTALS), "unknown order 'lifo'"),
        (("--system", "ceph", *TOTALS), "unknown system 'ceph'"),
        (("--cache", "1TB"), "--remote-io is not given"),
        (("--cache", "1TB", "--remote-io", "0"), "--remote-io of 0"),
    ],
)
def test_bad_options_are_named(
    dlcmd: Dlcmd, trace: Path, options: tuple[str, ...], said: str
) -> None:
    assert said in dlcmd("alloc", "simulate", trace, *options).err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("draws,large,200GB,50MB/s,1,1,0,no", "job 'draws' is not regular"),
        ("wide,large,200GB,50MB/s,4,1,0,yes", "job 'wide' needs 4 GPUs of 2"),
    ],
)
def test_jobs_that_cannot_be_simulated_are_named(
    dlcmd: Dlcmd, tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "trace.csv").write_text(f"{HEADER}\n{line}\n")
    options = ("--gpus", "2", *TOTALS)
    assert said in dlcmd("alloc", "simulate", tmp_path / "trace.csv", *options).err
