"""The benchmark of purge works, small, and space is what it promises; what it says of a loaded
machine's speed is not looked at."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.harness import REPOSITORY


def test_space_is_that_of_the_live_files_and_their_heads() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_purge", "--quick", "--no-readers"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=120,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    spaces = [figures for figures in found if "space" in figures["question"]]
    assert len(spaces) == 2
    for figures in spaces:
        assert figures["over_live_files_and_heads"] < 1.02
        assert figures["before_over_live_files"] > 1.1
