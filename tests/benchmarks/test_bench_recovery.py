"""The benchmark of rebuilding works, small: what it says of a loaded machine is not looked at."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.harness import REPOSITORY


def test_it_reads_heads_and_commits_once_and_ends_with_the_index() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.bench_recovery"),
            *("--files", "3000", "--rounds", "1", "--no-redis"),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    assert found["bytes_read_to_heads_and_commits"] == 1.0
    assert found["files_per_s"] > 0
