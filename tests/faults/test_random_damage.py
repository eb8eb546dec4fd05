"""Some damage of what `make damage` does 300 times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.case import Measured, fault_case
from tests.faults.random_damage import damage_at_random_everywhere

COUNT = 5


@pytest.mark.timeout(300)
@fault_case(
    "files of the index, mounted snapshots, chunks in node memory and chunk objects are damaged at random together",
    promise="the mount and every command give what is right, or refuse; no wrong byte, no end by a "
    "signal, no hang",
    bound_s=300,
    why="each kind of file has its check, which its own cases take out; here they meet",
)
def test_damaged_at_random_everywhere(tmp_path: Path, measured: Measured) -> None:
    with measured.felt():
        outcome = damage_at_random_everywhere(tmp_path, COUNT, seed=3)
    assert outcome.faults == []
    assert outcome.count == COUNT
    assert outcome.right_reads
    measured.note(f"{COUNT} files damaged: 0 wrong, 0 signals, 0 hangs; `make damage`: 300")
