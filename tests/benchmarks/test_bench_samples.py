"""The benchmark of samples works, small: a sample costs about what its files cost."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.harness import REPOSITORY


def test_a_sample_costs_about_what_its_files_cost() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_samples", "--quick"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=120,
    )
    [found] = [json.loads(line) for line in done.stdout.splitlines()]
    assert found["samples"] == 2000
    # Processor time of the same work in turn: a busy machine does not turn 0.6 into 0.35.
    assert found["samples_over_get_many"] > 0.35
