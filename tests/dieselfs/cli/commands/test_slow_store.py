"""An allocator over real mounts of a store that gives a quarter of what it was said to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.harness import dlcmd, make_tree
from benchmarks.policy_jobs import environment, slow_dlcmd
from benchmarks.shared_slow_store import SharedSlowStore
from dieselfs.allocation.directory.folder import FolderDirectory
from tests.eventually import PATIENCE_S, eventually
from tests.own_node_memory import own_node_memory

pytestmark = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
MIB = 1 << 20
STORE, PROMISED = 2 * MIB, 8 * MIB
FILES, FILE_BYTES = 320, 200 << 10


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A dataset of 64 MB on a slow disk, and a shared memory of the test."""
    with own_node_memory():
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        SharedSlowStore.make(tmp_path)
        make_tree(tmp_path / "source", FILES, 4, FILE_BYTES)
        dlcmd("put", "-q", "--chunk-size", "1MiB", f"{tmp_path}/source/", "pets", folder=tmp_path)
        SharedSlowStore.make(tmp_path, bytes_per_s=float(STORE))
        yield tmp_path


@contextmanager
def job(folder: Path, name: str) -> Iterator[None]:
    """Mount the dataset for a job, and read it as fast as it comes."""
    root, ended = folder / name, threading.Event()
    root.mkdir()
    options = ("--memory", "16MiB", "--prefill", "0", "--front", "fuse", "--task", name)
    slow_dlcmd(folder, "mount", "-q", "--no-index", *options, "--job", name, "pets", root)

    def read() -> None:
        while not ended.is_set():
            for path in sorted(root.glob("class*/*")):
                if ended.is_set():
                    return
                path.read_bytes()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join(PATIENCE_S)
        slow_dlcmd(folder, "umount", "-q", root)


@contextmanager
def allocator(folder: Path) -> Iterator[Path]:
    """Run an allocator; yield its log."""
    log = folder / "allocator.log"
    command = [sys.executable, "-m", "benchmarks.dlcmd_disk", "alloc", "run", "--cache", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--remote-io", str(PROMISED)],
            env=environment(folder),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait()


def test_the_total_falls_to_what_the_store_gives(folder: Path) -> None:
    memory = Path(os.environ["DIESELFS_MEMORY_FOLDER"])
    directory = FolderDirectory(memory / f"dieselfs-allocations-{os.geteuid()}")

    def total() -> float:
        return sum(each.bytes_per_s for each in directory.decisions().ios)

    with ExitStack() as stack:
        log = stack.enter_context(allocator(folder))
        for name in ("a", "b"):
            stack.enter_context(job(folder, name))
        eventually(lambda: len(directory.decisions().ios) == 2, "rates of both jobs")
        eventually(lambda: "the store gives about" in log.read_text(), "that it is said")
        eventually(lambda: 0.5 * STORE < total() < 1.5 * STORE, "a total of what it gives")
