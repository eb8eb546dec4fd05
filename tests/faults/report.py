"""Runs the fault bench and writes its table into docs/reliability.md: `python -m
tests.faults.report`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.faults.conftest import RESULTS

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "reliability.md"
_FOLDER = re.compile(r"/(dev/shm|tmp)/[-\w/]*")
"""A case's own, which has another name in each run."""
BEGIN, END = "<!-- begin: tests.faults.report -->", "<!-- end -->"


def family_of(test: str) -> str:
    return Path(test.partition("::")[0]).stem.removeprefix("test_").replace("_", " ")


def table(records: list[dict[str, Any]]) -> str:
    """A table for each family. Cases that differ only in a parameter share a row."""
    families: defaultdict[str, defaultdict[tuple[str, str, float], list[dict[str, Any]]]]
    families = defaultdict(lambda: defaultdict(list))
    for record in sorted(records, key=lambda record: record["test"]):
        row = record["fault"], record["promise"], record["bound_s"]
        families[family_of(record["test"])][row].append(record)
    lines: list[str] = []
    for family, rows in families.items():
        lines += ["", f"### {family.capitalize()}", ""]
        lines += ["| fault | promise | bound | measured |", "|---|---|---:|---|"]
        for (fault, promise, bound_s), cases in rows.items():
            longest_s = max(case["longest_s"] for case in cases)
            measured = "; ".join([*_results(cases), f"{longest_s:.2f} s at the longest"])
            lines.append(f"| {fault} | {promise} | {bound_s:g} s | {measured} |")
    return "\n".join(lines) + "\n"


def _results(cases: list[dict[str, Any]]) -> list[str]:
    """What was noted, each text once with its number."""
    noted = Counter(_FOLDER.sub("FOLDER", result) for case in cases for result in case["results"])
    return [f"{text} ({times} times)" if times > 1 else text for text, times in noted.items()]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            os.fspath(ROOT / "tests/faults"),
        ]
        code = subprocess.run(command, env=os.environ | {RESULTS: folder}, cwd=ROOT).returncode
        records = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    if code:
        return code
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table(records)}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
