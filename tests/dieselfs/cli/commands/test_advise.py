"""`dlcmd advise` by traces: of real mounts, of a whole command line, and bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from dieselfs.cache.advice.trace_file import TraceEncoder, head, read_trace
from dieselfs.cli.rendering.exit_codes import ExitCode
from tests.dieselfs.cache.advice.made_events import request
from tests.dieselfs.cli.conftest import Dlcmd
from tests.eventually import eventually

needs_fuse = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")


@needs_fuse
def test_a_dataset_that_is_read_twice(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path
) -> None:
    traces = [tmp_path / "trace", tmp_path / "trace.2"]
    ssd = ("--ssd", tmp_path / "ssd", "--ssd-size", "64MiB")
    for task, tier, trace in (("first", (), traces[0]), ("second", ssd, traces[1])):
        # A task of its own: the first one's memory lasts until its server has ended.
        options = ("--task", task, "--prefill", "0", "--record-trace", traces[0], *tier)
        assert dlcmd("mount", "pets", mountpoint, *options).code == ExitCode.OK
        if tier:  # requests are recorded as the tier gets them
            eventually(lambda: dlcmd("stats", mountpoint, "--json").records[0]["ssd"]["in_service"])
        assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100
        # At its end a mount waits half a second for what is left to be written.
        eventually(lambda trace=trace: len(read_trace(trace).records), "a request is written")
        assert dlcmd("umount", mountpoint).code == ExitCode.OK
    first, second = map(read_trace, traces)
    assert first.records["key"].tolist() == second.records["key"][:1].tolist()
    assert first.names["datasets"] == second.names["datasets"] == ["", "pets"]
    assert 0 < second.started_s - first.started_s < 600
    lines = dlcmd("advise", *traces).lines
    assert lines[0].startswith("2 requests of 1.2 KiB in ")
    assert lines[-1] == "637 B with lru absorb 50%; the optimum is 50%"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three epochs of 16 chunks of a MiB."""
    requests = [(float(at), request(at % 16)) for at in range(48)]
    path = tmp_path / "made.trace"
    path.write_bytes(head(0) + TraceEncoder().encode(requests))
    return path


def test_a_table_a_record_and_a_plot(dlcmd: Dlcmd, trace: Path, tmp_path: Path) -> None:
    options = ("--ssd-size", "8MiB,16MiB", "--policy", "lru,historic", "--region-size", "none")
    plot = tmp_path / "advice.svg"
    lines = dlcmd("advise", trace, *options, "--plot", plot).lines
    assert lines[0] == "48 requests of 48.0 MiB in 47 s; working set 16.0 MiB"
    assert lines[2].split() == ["SSD", "POLICY", "REGION", "ABSORBED", "STORE", "WRITTEN"]
    assert [line.split()[2:5:2] for line in lines if "optimum  " in line] == [
        ["optimum", "33.3%"],
        ["optimum", "66.7%"],
    ]
    assert "16.0 MiB  lru       –       66.7%     16.0 MiB  16.0 MiB" in lines
    assert lines[-1] == "16.0 MiB with lru absorb 67%; the optimum is 67%"
    assert plot.read_text().count("<polyline") > 8
    assert "optimum" in plot.read_text()

    (found,) = dlcmd("advise", trace, *options, "--json").records
    assert found["working_set_bytes"] == 16 << 20
    assert [(each["ssd_bytes"] >> 20, each["policy"]) for each in found["tiers"]] == [
        *((8, "lru"), (8, "historic")),
        *((16, "lru"), (16, "historic")),
    ]
    assert found["recommended"]["store_bytes"] == 16 << 20
    assert found["recommendation"] == lines[-1]


def test_a_trace_that_was_cut_off(dlcmd: Dlcmd, trace: Path) -> None:
    whole = trace.read_bytes()
    trace.write_bytes(whole + b"\5")
    found = dlcmd("advise", trace, "--policy", "lru")
    assert found.code == ExitCode.OK
    assert f"{trace} was cut off; it is read up to there" in found.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--power",), "different questions"),
        (("--ssd-size", "0"), "an SSD of 0 bytes"),
        (("--ssd-size", "nan"), "'nan' is not a size"),
        (("--ssd-size", ","), "--ssd-size is empty"),
        (("--policy", "clever"), "no cache policy 'clever'"),
        (("--policy", "dynamic"), "needs a write budget"),
        (("--write-budget", "0"), "--write-budget of 0"),
        (("--write-budget", "nan"), "'nan' is not a rate"),
        (("--region-size", "0"), "--region-size of 0"),
        (("--region-size", "1GiB"), "an SSD has two regions at least"),
    ],
)
def test_bad_options(dlcmd: Dlcmd, trace: Path, options: tuple[str, ...], said: str) -> None:
    found = dlcmd("advise", trace, *options)
    assert (found.code, found.out) == (ExitCode.USAGE, b"")
    assert said in found.err


def test_a_file_that_is_no_trace(dlcmd: Dlcmd, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some text")
    assert "is not a trace" in dlcmd("advise", tmp_path / "file").err
    (tmp_path / "file").write_bytes(head(0))
    assert "the trace has no requests" in dlcmd("advise", tmp_path / "file").err
    assert "No such file" in dlcmd("advise", tmp_path / "absent").err
    assert "nothing to advise on" in dlcmd("advise", "--ssd-size", "1GiB").err
