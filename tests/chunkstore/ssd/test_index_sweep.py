"""Indexes in shared memory whose tiers have been deleted go when somebody opens another one, unless
somebody uses them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chunkstore.ssd.segment_store import SegmentStore

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
DATASET, CHUNK = b"d" * 16, b"c" * 16
DATA = random.Random(1).randbytes(100_000)
_OTHERS = """
import sys
from pathlib import Path
from chunkstore.ssd.segment_store import SegmentStore
folder = Path(sys.argv[1])
store = SegmentStore(folder / sys.argv[2], folder / "indexes" / sys.argv[2], 10 << 20)
store.append(b"d" * 16, b"c" * 16, 0, memoryview(b"theirs"), True)
print("open", flush=True)
sys.stdin.readline()
print(bytes(store.read_whole(b"c" * 16) or b"gone").decode(), flush=True)
"""
_SWEEPS = """
import sys
from pathlib import Path
from chunkstore.ssd.segment_store import SegmentStore
folder = Path(sys.argv[1])
store = SegmentStore(folder / "sweeper", folder / "indexes" / "sweeper", 10 << 20)
print("open", flush=True)
while not (folder / "stop").exists():
    store.sweep()
store.close()
"""


def opened(folder: Path, name: str) -> SegmentStore:
    return SegmentStore(folder / name, folder / "indexes" / name, 10 * MIB)


def process(code: str, *arguments: str) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "open\n"
    return started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_an_index_goes_with_its_tier_unless_it_is_used(folder: Path) -> None:
    for name in ("gone", "kept"):
        opened(folder, name).close()
    used = process(_OTHERS, str(folder), "used")
    mine = opened(folder, "mine")
    mine.append(DATASET, CHUNK, 0, memoryview(DATA), True)
    for name in ("gone", "used"):
        shutil.rmtree(folder / name)
    mine.sweep()
    assert {path.name for path in (folder / "indexes").iterdir()} == {
        "kept",
        "used",
        "mine",
        "lock",
    }
    assert mine.read_whole(CHUNK) == DATA
    assert used.communicate("look\n", timeout=60)[0] == "gone\n"  # its folder is
    shutil.rmtree(folder / "mine")
    mine.sweep()
    assert mine.is_there is False
    assert {path.name for path in (folder / "indexes").iterdir()} == {"kept", "mine", "lock"}
    mine.reopen()
    mine.append(DATASET, CHUNK, 0, memoryview(DATA), True)
    assert mine.read_whole(CHUNK) == DATA
    mine.close()


def test_who_opens_a_tier_while_others_sweep_has_an_index_that_all_find(folder: Path) -> None:
    (folder / "indexes").mkdir(mode=0o700)
    sweeper = process(_SWEEPS, str(folder))
    try:
        for _ in range(40):
            first = opened(folder, "tier")
            assert first.append(DATASET, CHUNK, 0, memoryview(DATA), True)
            assert first.is_there
            assert first.read_whole(CHUNK) == DATA
            first.close()
            shutil.rmtree(folder / "tier")
    finally:
        (folder / "stop").touch()
        sweeper.communicate(timeout=60)
    assert sweeper.returncode == 0
