"""Runs the fault bench and writes its table into docs/reliability.md: `python -m tests.faults.report`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.faults.conftest import RESULTS

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: tests.faults.report -->", "<!-- end -->"


def family_of(test: str) -> str:
    return Path(test.partition("::")[0]).stem.removeprefix("test_").replace("_", " ")


def table(records: list[dict[str, Any]]) -> str:
    families: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record["test"]):
        families[family_of(record["test"])].append(record)
    lines: list[str] = []
    for family, cases in families.items():
        lines += ["", f"### {family.capitalize()}", ""]
        lines += ["| fault | promise | bound | measured |", "|---|---|---:|---|"]
        for case in cases:
            measured = "; ".join([*case["results"], f"{case['longest_s']:.2f} s at the longest"])
            lines.append(
                f"| {case['fault']} | {case['promise']} | {case['bound_s']:g} s | {measured} |"
            )
    return "\n".join(lines) + "\n"


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
