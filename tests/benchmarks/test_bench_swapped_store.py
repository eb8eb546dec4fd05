"""The benchmark of a swapped store works, small; what it says of a loaded machine's speed is not
looked at."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.harness import REPOSITORY


def test_each_file_is_read_or_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_swapped_store", "--quick"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=120,
    )
    figures = json.loads(done.stdout)
    assert figures["rate"] > 0
    assert figures["other_files"] * 3 == figures["sound_files"]
