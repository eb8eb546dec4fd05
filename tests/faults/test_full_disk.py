"""A file system that fills up under a store, node memory or snapshots: a real one of 64 MiB, with
real ENOSPC."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NoReturn

import pytest

from dieselfs.cli.rendering.exit_codes import ExitCode
from tests.faults.case import Measured, fault_case
from tests.faults.kept_dataset import Places, check_kept
from tests.faults.reading import content
from tests.faults.served import NAME, Place

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")

BOUND_S = 60.0
DISK_BYTES = 64 << 20


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """An ext4 of 64 MiB where loop devices can be had, else a tmpfs."""
    disk = folder / "disk"
    disk.mkdir()
    image = folder / "image"
    with open(image, "wb") as file:
        file.truncate(DISK_BYTES)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", image], capture_output=True).returncode == 0
    if not made or subprocess.run(["mount", "-o", "loop", image, disk]).returncode:
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk]
        subprocess.run(command, check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
        image.unlink()


def fill(disk: Path, leave_bytes: int) -> Path:
    """A file that takes all room but so much, root's reserve too."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        with pytest.raises(OSError, match="No space left"):
            write_without_end(file)
        file.truncate(file.tell() - leave_bytes)
        os.fsync(file.fileno())
    return ballast


def write_without_end(file: FileIO) -> NoReturn:
    while True:
        file.write(bytes(1 << 16))


def tree(folder: Path, files: int, size: int, seed: int) -> dict[bytes, bytes]:
    folder.mkdir()
    made = {}
    for number in range(files):
        name, data = f"{seed}-{number:03}", random.Random(seed * 1000 + number).randbytes(size)
        (folder / name).write_bytes(data)
        made[name.encode()] = data
    return made


@fault_case(
    "the disk of a file:// store full in the middle of a put",
    promise="the put ends with the reason; what was acknowledged is whole, nothing partial is visible; the same put goes on when there is room",
    bound_s=BOUND_S,
    check="chunkstore.stores.local_directory:_translate=none",
)
def test_full_store(measured: Measured, tmp_path: Path) -> None:
    first = tree(tmp_path / "first", 20, 50_000, 1)
    second = tree(tmp_path / "second", 40, 500_000, 2)
    place = Place(tmp_path / "place")
    place.folder.mkdir()
    with small_disk(tmp_path) as disk:
        places = Places(f"file://{disk}/store", f"lmdb://{tmp_path}/index", NAME)
        put = ["put", *places.flags, "-j", "1"]
        assert place.dlcmd(*put, f"{tmp_path}/first/", NAME).returncode == 0
        ballast = fill(disk, 8 << 20)
        with measured.felt():
            done = place.dlcmd(*put, f"{tmp_path}/second/", NAME)
        assert done.returncode == ExitCode.FAILURE, done.stderr
        assert "No space left" in done.stderr
        with places.opened() as dataset:
            found = check_kept(dataset, first, second, 0, tmp_path / "snapshots")
        measured.note(f"{len(found) - len(first)} of {len(second)} files committed before")
        ballast.unlink()
        with measured.felt():
            done = place.dlcmd(*put, f"{tmp_path}/second/", NAME)
        assert done.returncode == 0, done.stderr
        with places.opened() as dataset:
            found = check_kept(dataset, first | second, {}, 0, tmp_path / "snapshots")
        assert found == first | second


@fault_case(
    "the tmpfs of node memory full, others having filled it",
    promise="reads go past node memory; they use it again when there is room",
    bound_s=BOUND_S,
    check="dieselfs.cache.node.agreed_budget:AgreedBudget.note_full=none",
)
def test_full_node_memory(measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    memory = tmp_path / "shm"
    memory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", memory], check=True)
    try:
        monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(memory))
        files = {f"f{number:02}": content(f"f{number:02}", 100_000) for number in range(40)}
        place = Place(tmp_path / "place")
        place.make(files, target_bytes=400_000).close()
        with place.mounted(tmp_path / "mnt", "--memory", "8MiB", "--prefill", "0") as mount:
            ballast = fill(memory, 500_000)
            for path, data in files.items():
                with measured.felt():
                    assert (mount.path / path).read_bytes() == data
            past = mount.statistics()["cache"]["fallbacks"]
            assert past
            assert "is full" in mount.log
            measured.note(f"{past} of {len(files)} files read past it")
            ballast.unlink()
    finally:
        subprocess.run(["umount", "--lazy", memory], check=True)


@fault_case(
    "the disk of the folder of snapshots full while one is made, or pulled",
    promise="an error with the reason, no partial file; made when there is room",
    bound_s=BOUND_S,
    check="metadata.snapshot_folder:_drop=none",
)
def test_full_snapshot_folder(measured: Measured, tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    files = {f"a-rather-long-name-of-a-file-{number:05}": b"x" for number in range(3000)}
    with place.make(files) as snapshot:
        published = snapshot.id
    assert place.dlcmd("snapshot", "create", NAME).returncode == 0
    with small_disk(tmp_path) as disk:
        (disk / "snapshots").mkdir(mode=0o700)
        ballast = fill(disk, 40_000)
        environment = {"DIESELFS_SNAPSHOTS": f"{disk}/snapshots"}
        for verb in (["create", NAME], ["pull", f"{NAME}@{published}"]):
            with measured.felt():
                done = place.dlcmd("snapshot", *verb, environment=environment)
            assert done.returncode == ExitCode.FAILURE, done.stderr
            assert "No space left" in done.stderr
            assert list((disk / "snapshots").iterdir()) == []
        ballast.unlink()
        with measured.felt():
            done = place.dlcmd("snapshot", "create", NAME, environment=environment)
        assert done.returncode == 0, done.stderr
