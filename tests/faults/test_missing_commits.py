"""A commit that is missing in the middle of a dataset's log."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from chunkstore.commit_log import CommitLog, find_dataset
from chunkstore.object_keys import commit_key
from chunkstore.stores.local_directory import LocalDirectory
from tests.faults.case import Measured, fault_case
from tests.faults.reading import content
from tests.forked_programs import run_forked

PUTS = 5
LOST = 4
"""A generation in the middle: the third put."""


class Place:
    """A store in a folder, and `dlcmd` with an index that knows nothing yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalDirectory(folder / "store")
        self.files: dict[str, bytes] = {}

    def dlcmd(self, *arguments: str | Path, index: str = "index") -> CompletedProcess[str]:
        environment = {
            **os.environ,
            "DIESELFS_STORE": f"file://{self.folder}/store",
            "DIESELFS_INDEX": f"lmdb://{self.folder}/{index}",
            "XDG_DATA_HOME": f"{self.folder}/data",
        }
        command = [sys.executable, "-m", "dieselfs.cli", *map(str, arguments)]
        return run_forked(command, env=environment)

    def put(self, number: int, index: str = "index") -> CompletedProcess[str]:
        source = self.folder / f"source{number}"
        source.mkdir(exist_ok=True)
        for name in (f"e{number}", f"f{number}"):
            (source / name).write_bytes(content(f"{name} {number}"))
        return self.dlcmd("put", "-j", "1", f"{source}/", "dl://d", index=index)

    def read(self) -> dict[str, bytes]:
        back = self.folder / f"back{len(list(self.folder.iterdir()))}"
        self.dlcmd("get", "-r", "dl://d/", back, index="fresh").check_returncode()
        return {path.name: path.read_bytes() for path in back.iterdir()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """With five puts of two files each."""
    place = Place(tmp_path)
    for number in range(PUTS):
        place.put(number).check_returncode()
        place.files |= {
            f"f{number}": content(f"f{number} {number}"),
            f"e{number}": content(f"e{number} {number}"),
        }
    return place


@fault_case(
    "a commit object is missing in the middle of the log, and the index is behind or new",
    promise="ls, put and purge refuse with the exit code 7 and write nothing; `recover --without-commits` says what cannot be known, asks, and brings every file back",
    bound_s=30,
    check="chunkstore.commit_log:CommitLog._unless_end=none",
)
def test_a_commit_is_missing(measured: Measured, place: Place) -> None:
    place.store.delete(commit_key("d", LOST))
    before = {info.key for info in place.store.list("datasets/d/commits/")}
    for command in (["ls", "d"], ["purge", "d"], ["snapshot", "create", "d"]):
        with measured.felt():
            done = place.dlcmd(*command, index="fresh")
        assert done.returncode == 7, (command, done.stdout, done.stderr)
        assert f"commit {LOST} of dataset d is missing" in done.stderr
    assert place.put(7, index="fresh").returncode == 7
    assert {info.key for info in place.store.list("datasets/d/commits/")} == before
    asked = place.dlcmd("recover", "--without-commits", "d", index="fresh")
    assert asked.returncode == 2
    assert "which of two versions of a file is newer" in asked.stderr
    with measured.felt():
        place.dlcmd("recover", "--without-commits", "--yes", "d", index="fresh").check_returncode()
    assert place.read() == place.files
    measured.note("refused; brought back")


@fault_case(
    "a commit object is missing, and another one was made in its place; then `recover --without-commits`",
    promise="it ends with the exit code 7 and says how many files of chunks that are there are not brought back; `--adopt` brings them",
    bound_s=30,
    check="dieselfs.cli.commands.recover:_check_all_is_back=none",
)
def test_a_commit_has_taken_the_place(measured: Measured, place: Place) -> None:
    dataset = find_dataset(place.store, "d")
    assert dataset is not None
    place.store.delete(commit_key("d", LOST))
    CommitLog(place.store, dataset).append_exactly(LOST)
    with measured.felt():
        done = place.dlcmd("recover", "--without-commits", "--yes", "d", index="fresh")
    assert done.returncode == 7, done.stderr
    assert "2 files in 1 chunk of d are not brought back" in done.stderr
    place.dlcmd("recover", "--adopt", "--yes", "d", index="fresh").check_returncode()
    assert place.read().keys() == place.files.keys()
    measured.note("refused; adopted")
