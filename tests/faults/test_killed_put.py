"""`dlcmd put` is killed at a call of store or index, in its own process or in one of its packing processes.

The suite tries some of the calls; DIESELFS_LONG_FAULTS=1 every one of them, and 200 points drawn at random.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.case import Measured, fault_case
from tests.faults.forked_dlcmd import Ended, start_dlcmd
from tests.faults.kept_dataset import Places, check_kept, files_of
from tests.faults.killed_calls import WHEN, KillPoint

LONG = bool(os.environ.get("DIESELFS_LONG_FAULTS"))
BOUND_S = 30.0
GROUP_BYTES = 12_000
"""A commit is two chunks or three."""
OLD = {b"%c/%d" % (97 + i % 3, i): b"old %d " % i * 30 for i in range(12)}
NEW = {b"%c/%d" % (97 + i % 4, i): b"new %d " % i * 90 for i in range(6, 60)}


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory: what is killed is a process, not the machine."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


class KilledPuts:
    """A dataset of OLD files; NEW ones, some of them of the same names, are put again and again from the same beginning."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._template = Places(
            f"file://{folder}/template/store", f"lmdb://{folder}/template/index"
        )
        self.places = Places(f"file://{folder}/tried/store", f"lmdb://{folder}/tried/index")
        for name, files in (("old", OLD), ("new", NEW)):
            for path, data in files.items():
                file = folder / name / os.fsdecode(path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        (folder / "template/store").mkdir(parents=True)
        ended = self._put("old", self._template, None)
        assert ended.code == 0, ended.errors
        self.undisturbed = self.put(None)
        assert self.undisturbed.code == 0, self.undisturbed.errors
        assert self.undisturbed.acknowledged == len(NEW)

    def put(self, point: KillPoint | None) -> Ended:
        shutil.rmtree(self._folder / "tried", ignore_errors=True)
        shutil.copytree(self._folder / "template", self._folder / "tried")
        return self._put("new", self.places, point)

    def again(self) -> Ended:
        return self._put("new", self.places, None)

    def _put(self, source: str, places: Places, point: KillPoint | None) -> Ended:
        arguments = ["put", *places.flags, "-j", "2", "--chunk-size", "4KiB", "--no-progress"]
        arguments += [f"{self._folder}/{source}/", "d"]
        return start_dlcmd(self._folder, arguments, point, GROUP_BYTES).end()

    def calls(self, in_packing_process: bool) -> int:
        found = self.undisturbed
        return found.packing_calls if in_packing_process else found.put_calls

    def random_points(self, draw: random.Random, number: int) -> list[KillPoint]:
        """Most of them in the put's own process, which makes most of the calls."""
        points = []
        for _ in range(number):
            packing = draw.random() < 0.3
            call = draw.randint(1, self.calls(packing))
            points.append(KillPoint(packing, call, draw.choice(WHEN)))
        return points

    def every_point(self) -> list[KillPoint]:
        return [
            KillPoint(packing, call, when)
            for packing in (False, True)
            for call in range(1, self.calls(packing) + 1)
            for when in WHEN
        ]

    def check(self, point: KillPoint) -> Ended:
        """Kill one put, look at what it left, and let the same command finish."""
        ended = self.put(point)
        if point.in_packing_process and ended.code:
            assert "run the same command again" in ended.errors, (point, ended)
        with self.places.opened() as dataset:
            try:
                check_kept(dataset, OLD, NEW, ended.acknowledged, self._folder / "snapshots")
            except AssertionError as error:
                raise AssertionError(point, ended) from error
        finished = self.again()
        assert finished.code == 0, (point, finished)
        with self.places.opened() as dataset:
            assert files_of(dataset) == {**OLD, **NEW}, point
        return ended


@fault_case(
    "`dlcmd put` or one of its packing processes is SIGKILLed at a call of store or index: before it, half-way, after it took effect",
    promise="no acknowledged file is lost, none is half visible; the same command finishes; the index is what recovery builds; a snapshot can be made",
    bound_s=BOUND_S,
    why="the order of things: chunk, commit, index; each whole or not at all",
)
def test_a_put_killed_at_a_call(folder: Path, measured: Measured) -> None:
    puts = KilledPuts(folder)
    draw = random.Random(5)
    points = puts.random_points(draw, 200 if LONG else 18)
    if LONG:
        points += puts.every_point()
    killed = 0
    for point in points:
        with measured.felt():
            ended = puts.check(point)
        killed += ended.code != 0
    assert killed > 0.7 * len(points)
    measured.note(f"{killed} kills, 0 acknowledged files lost, 0 partial files visible")
