"""`dlcmd run`: a command of root or a user reads a FUSE mount through an overlay of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dieselfs.cli.rendering.output import Output
from dieselfs.errors import MountError
from dieselfs.fuse.mounts import overlay_run
from dieselfs.fuse.mounts.mount_table import MountEntry
from tests.mount.mounting import Mount
from tests.mount.packing import PackedDataset, random_bytes
from tests.mount.test_ordinary_user import (
    NOBODY,
    ROOT_OF_CHECKOUT,
    as_nobody,
    open_folder,
)

SCENARIOS = 5
__all__ = ["open_folder"]


def check_scenarios(command: list[str], home: Path, memory: Path) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT_OF_CHECKOUT,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "HOME": str(home),
            "DIESELFS_MEMORY_FOLDER": str(memory),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == SCENARIOS


def scenarios(*arguments: Path) -> list[str]:
    return [sys.executable, "-m", "tests.mount.as_user_of_run", *map(str, arguments)]


def test_a_command_reads_through_an_overlay(small: PackedDataset, tmp_path: Path) -> None:
    memory = Path(os.environ["DIESELFS_MEMORY_FOLDER"])
    check_scenarios(scenarios(small.snapshot, small.store, tmp_path), tmp_path, memory)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become an ordinary user")
def test_an_ordinary_users_command_does_too(small: PackedDataset, open_folder: Path) -> None:
    store, snapshot = open_folder / "store", open_folder / small.snapshot.name
    shutil.copytree(small.store, store)
    shutil.copy(small.snapshot, snapshot)
    home, staging, memory = (open_folder / name for name in ("home", "staging", "memory"))
    for folder in (home, staging, memory):
        folder.mkdir()
    for path in (home, memory, store, *store.rglob("*"), snapshot):
        os.chown(path, NOBODY, NOBODY)
    check_scenarios(as_nobody(staging, scenarios(snapshot, store, home)), home, memory)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount EROFS")
def test_the_erofs_front_needs_no_overlay(small_mount: Mount) -> None:
    command = [sys.executable, "-m", "dieselfs.cli", "run", "-v", "--mount"]
    reader = ["cat", str(small_mount.path / "large"), "/proc/self/mountinfo"]
    done = subprocess.run(
        [*command, str(small_mount.path), *reader], cwd=ROOT_OF_CHECKOUT, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(random_bytes(3_000_000))
    assert b"dieselfs-run" not in done.stdout
    assert b"no mount: none has the fuse front" in done.stderr


def test_only_visible_fuse_mounts_get_an_overlay() -> None:
    kind = "fuse.dieselfs"
    entries = [
        MountEntry(Path("/"), "ext4", "/dev/vda"),
        MountEntry(Path("/mnt/a"), kind, "dieselfs:a"),
        MountEntry(Path("/mnt/b"), "erofs", "/var/cache/b.erofs"),
        MountEntry(Path("/mnt/b/.dieselfs"), kind, "dieselfs:b"),
        MountEntry(Path("/mnt/c"), kind, "dieselfs:c"),
        MountEntry(Path("/mnt/c"), "overlay", "dieselfs-run"),
    ]
    assert [entry.source for entry in overlay_run.fuse_mounts(entries, [Path("/")])] == [
        "dieselfs:a"
    ]
    assert not overlay_run.fuse_mounts(entries, [Path("/mnt/b")])


def test_without_a_namespace_the_command_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from dieselfs.cli.commands.run import _prepare

    def refuse(below: list[Path]) -> None:
        raise MountError("this process gets no mount namespace: Operation not permitted", "do it")

    monkeypatch.setattr(overlay_run, "lay_overlays", refuse)
    _prepare(Output(), verbose=False, mounts=["/"])
    told = capfd.readouterr().err
    assert "warning: this process gets no mount namespace" in told
    assert told.count("\n") == 1
