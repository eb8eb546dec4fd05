"""Commands say that a store has throttled their uploads."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.throttling_server import CREDENTIALS, Throttling, throttling_server
from chunkstore.stores.adaptive_limit import LimitStatistics
from dieselfs.cli.rendering.upload_limit import throttled, upload_record
from tests.dieselfs.cli.conftest import Dlcmd


def test_the_line_and_the_record() -> None:
    assert throttled(LimitStatistics(limit=8, least=8)) == ""
    some = LimitStatistics(limit=8, failures=1214, least=2)
    assert throttled(some) == "throttled: 1,214 uploads were repeated, concurrency fell to 2"
    assert upload_record(some) == {"uploads_repeated": 1214, "least_uploads_at_once": 2}


def test_the_summary_of_a_put_says_that_it_was_throttled(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(120):
        (source / str(number)).write_bytes(bytes([number]) * 2000)
    with throttling_server(Throttling(200, 0.002, 0.0, 0.5)) as url:
        monkeypatch.setenv("DIESELFS_STORE", url)
        options = ("-j", "1", "--chunk-size", "8KiB", "--no-publish")
        done = dlcmd("put", *options, f"{source}/", "dl://d")
    assert done.code == 0, done.err
    assert "put 120 files" in done.lines[0]
    assert done.lines[1].startswith("throttled: ")
    assert "repeated, concurrency fell to" in done.lines[1]
