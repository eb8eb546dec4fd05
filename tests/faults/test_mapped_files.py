"""A program that has a file mapped whose chunk cannot be read: the kernel ends it by SIGBUS."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import PATIENCE_S, eventually
from tests.faults.case import Measured, fault_case
from tests.faults.reading import content
from tests.faults.served import Place, paths_in_chunk

MAP_ONE = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sys.stdout.buffer.write(mapped[:])
"""
SIZES = (100, 8_000, 60_000)
FILES = {f"f{number:02}": content(f"f{number:02}", SIZES[number % 3]) for number in range(48)}
HOW = {
    "erofs": ("--front", "erofs"),
    "fuse": ("--front", "fuse"),
    "plan": ("--shuffle", "seed=1,group=2"),
}
BOUND_S = 20.0
"""A damaged chunk is known for 5 s at the longest; a busy machine takes longer."""


def mapped(path: Path) -> bytes | int:
    """The bytes that a program of its own sees in a map of the file, or how it ended."""
    command = [sys.executable, "-S", "-E", "-c", MAP_ONE, os.fspath(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=PATIENCE_S)
    return done.returncode or done.stdout


def flip(file: Path) -> None:
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))


@pytest.mark.parametrize("damage", [os.unlink, flip], ids=["missing", "damaged"])
@pytest.mark.parametrize("how", HOW)
@fault_case(
    "a chunk object missing or damaged under programs that map its files, and back",
    promise="SIGBUS, as the kernel has it, and never a page of zeros; a new map is right when the damage is not known any more, after 5 s at the longest",
    bound_s=BOUND_S,
    why="the kernel keeps no page that could not be read",
)
def test_mapped(measured: Measured, tmp_path: Path, how: str, damage) -> None:  # type: ignore[no-untyped-def]
    place = Place(tmp_path / "place")
    task = f"mapped-{os.getpid()}-{how}-{damage.__name__}"
    with place.make(FILES, target_bytes=400_000) as snapshot:
        file = place.chunk_file(snapshot, 1)
        paths = paths_in_chunk(snapshot, 1)
        before = paths_in_chunk(snapshot, 0)[-1]
    kept = file.with_name("kept")
    shutil.copy(file, kept)
    damage(file)  # before the mount: a plan fetches at once
    with place.mounted(tmp_path / "mnt", "--task", task, *HOW[how]) as mount:
        assert mapped(mount.path / before) == FILES[before]  # the kernel reads ahead beyond it
        for path in paths:
            with measured.felt():
                assert mapped(mount.path / path) == -signal.SIGBUS, path
        os.replace(kept, file)
        with measured.felt():
            for path in paths:
                eventually(lambda path=path: mapped(mount.path / path) != -signal.SIGBUS, path)
        assert {p: mapped(mount.path / p) == FILES[p] for p in paths} == dict.fromkeys(paths, True)
        assert mount.wrong(FILES) == []
    measured.note(f"SIGBUS for {len(paths)} files, then right")
