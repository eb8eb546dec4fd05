"""Takes out the check of each case of the fault bench in turn: `python -m tests.faults.proof [-k
NAME]`. Ends with 1 if a case passes all the same, and says how many of all cases are proven.

A case that does not notice that its check is gone proves nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from tests.faults.case import FaultCase

BENCH = Path(__file__).parent
TIMEOUT_S = 300


class Collector:
    """A pytest plugin that only looks."""

    def __init__(self) -> None:
        self.cases = 0
        self.checks: dict[str, str] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marker = item.get_closest_marker("fault")
            if marker is not None:
                self.cases += 1
                case: FaultCase = marker.args[0]
                callspec = getattr(item, "callspec", None)  # of a test with parameters
                check = case.check_of("" if callspec is None else callspec.id)
                if check is not None:
                    self.checks[item.nodeid] = check


def exists(checks: str) -> bool:
    """Return whether there is each of the checks, which are joined by ` + `."""
    return all(map(_exists, checks.split(" + ")))


def _exists(check: str) -> bool:
    module, _, rest = check.partition(":")
    owner = importlib.import_module(module)
    for part in rest.partition("=")[0].split("."):
        owner = getattr(owner, part, None)
    return owner is not None


def passing(tests: Collection[str]) -> set[str]:
    """Return those of the tests that pass with all checks in place."""
    said = run(["-rA", *tests], os.environ, TIMEOUT_S * len(tests)).stdout
    return {line.removeprefix("PASSED ") for line in said.splitlines()} & set(tests)


def fails(test: str, without: str) -> bool:
    """Return whether the test fails without these checks. A test that hangs does not."""
    path = [os.fspath(BENCH / "taken_out"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "DIESELFS_TAKEN_OUT": without,
    }
    try:
        done = run([test], environment, TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == pytest.ExitCode.TESTS_FAILED and " failed" in done.stdout


def run(
    arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only cases whose name matches, as pytest's -k")
    chosen = parser.parse_args()
    collector = Collector()
    pytest.main(
        ["--collect-only", "-q", "-n", "0", "-k", chosen.k, os.fspath(BENCH)], plugins=[collector]
    )
    sound = passing(collector.checks) if collector.checks else set()
    noticed = 0
    for test, check in collector.checks.items():
        if not exists(check):
            verdict = "there is no such check"
        elif test not in sound:
            verdict = "fails with it as well"
        else:
            verdict = "noticed" if fails(test, check) else "NOT NOTICED"
        noticed += verdict == "noticed"
        print(f"{verdict}: {test} without {check}", flush=True)
    unnoticed = len(collector.checks) - noticed
    print(f"{len(collector.checks)} checks taken out, {unnoticed} not noticed")
    share = noticed / max(collector.cases, 1)
    print(f"proven: {noticed} of {collector.cases} cases, {share:.0%}")
    return 1 if unnoticed or not collector.checks else 0


if __name__ == "__main__":
    sys.exit(main())
