"""From typing `dlcmd mount` until the first READ is answered, with the kernel's image of the names
there and with none."""

from __future__ import annotations

import time

from benchmarks.harness import run_rounds
from benchmarks.mount_bars import REPORTED, Bar, Result, judge
from benchmarks.mount_contenders import EROFS, MountKind
from benchmarks.named_dataset import FIRST, NamedDataset, named_dataset

PRESENT_BAR = Bar(most=0.6)
BUILT_BAR = Bar(most=3.5)
"""Seconds, for 1.28 million files."""


def startup(files: int, folders: int, rounds: int, kinds: list[MountKind]) -> list[Result]:
    """What is read is in the page cache already: the snapshot, the store, Python's modules."""
    with named_dataset(files, folders) as named:
        turns = {}
        for kind in kinds:
            turns[f"{kind.name}, image present"] = lambda kind=kind: _first_read(named, kind)
        turns["erofs, image to be built"] = lambda: _without_image(named)
        times = run_rounds(turns, rounds)
        files = named.data.files
    bars = {"erofs, image present": PRESENT_BAR, "erofs, image to be built": BUILT_BAR}
    return [
        judge(
            f"mount of {files} files, typed until the first READ, seconds: {name}",
            times.seconds[name],
            bars.get(name, REPORTED),
        )
        for name in turns
    ]


def _first_read(named: NamedDataset, kind: MountKind) -> float:
    begin = time.perf_counter()
    with named.mounted(kind, checked=False) as root, open(root / FIRST, "rb") as file:
        assert len(file.read()) == 4096
        return time.perf_counter() - begin


def _without_image(named: NamedDataset) -> float:
    assert named.snapshot is not None
    images = list(named.data.folder.rglob("*.erofs"))
    assert images, "the mount before has built one"
    for image in images:
        image.unlink()
    return _first_read(named, EROFS)
