"""`dlcmd mount --record-trace`, with real mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dieselfs.advice.trace_file import read_trace
from dieselfs.cli.rendering.exit_codes import ExitCode
from tests.dieselfs.cli.conftest import Dlcmd
from tests.eventually import eventually

needs_fuse = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")


@needs_fuse
def test_a_dataset_that_is_read_twice(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path
) -> None:
    traces = [tmp_path / "trace", tmp_path / "trace.2"]
    ssd = ("--ssd", tmp_path / "ssd", "--ssd-size", "64MiB")
    for tier in ((), ssd):  # the second mount starts without node memory
        options = ("--prefill", "0", "--record-trace", traces[0], *tier)
        assert dlcmd("mount", "pets", mountpoint, *options).code == ExitCode.OK
        if tier:  # requests are recorded as the tier gets them
            eventually(lambda: dlcmd("stats", mountpoint, "--json").records[0]["ssd"]["in_service"])
        assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100
        assert dlcmd("umount", mountpoint).code == ExitCode.OK
    for path in traces:  # a mount that has gone may still write what is left
        eventually(lambda path=path: len(read_trace(path).records))
    first, second = map(read_trace, traces)
    assert first.records["key"].tolist() == second.records["key"][:1].tolist()
    assert first.names["datasets"] == second.names["datasets"] == ["", "pets"]
    assert 0 < second.started_s - first.started_s < 600
