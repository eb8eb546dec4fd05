"""Nodes of a task on this machine: mounts with a shared memory of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.dieselfs.cli.conftest import Dlcmd
from tests.eventually import eventually

TASK = "run1"


@dataclass(frozen=True)
class Daemon:
    pid: int
    log: Path


@dataclass(frozen=True)
class NodeHere:
    """One of several on this machine."""

    dlcmd: Dlcmd
    memory: Path
    mountpoint: Path
    environment: dict[str, str] = field(default_factory=dict)
    daemons: list[Daemon] = field(default_factory=list)

    def __call__(self, *arguments: str | Path) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DIESELFS_MEMORY_FOLDER", str(self.memory))
            for name, value in self.environment.items():
                patch.setenv(name, value)
            result = self.dlcmd(*arguments)
        assert result.code == 0, result.err
        return result

    def mount(self, *arguments: str) -> Daemon:
        flags = ["--memory", "64MiB", "--prefill", "0", "--task", TASK, *arguments]
        [record] = self("mount", "pets", self.mountpoint, "--no-index", "--json", *flags).records
        self.daemons.append(Daemon(record["pid"], Path(record["log"])))
        return self.daemons[-1]

    def show(self) -> dict[str, Any]:
        [record] = self("task", "show", TASK, "--json").records
        return dict(record)

    def sees(self, *ids: str) -> bool:
        members = self.show()["members"]
        return [m["id"] for m in members if m["state"] in ("me", "up")] == sorted(ids)

    def statistics(self) -> dict[str, Any]:
        return dict(json.loads((self.mountpoint / ".dieselfs/stats.json").read_text()))

    def umount(self) -> float:
        """Seconds until the daemon has ended, and its task's folder is gone."""
        began = time.monotonic()
        self("umount", self.mountpoint)
        eventually(lambda: not task_folders(self.memory), "the end of the task's folder")
        return time.monotonic() - began


def task_folders(memory: Path) -> list[Path]:
    """The folders of tasks in node memory, without records.

    A daemon that has little time for its end leaves the records to those who read them next.
    """
    return [path for path in memory.glob("*/*") if path.is_dir()]


@contextmanager
def nodes_here(dlcmd: Dlcmd, folder: Path, count: int) -> Iterator[list[NodeHere]]:
    """Make nodes whose mounts are gone afterwards."""
    made = []
    for number in range(count):
        memory = Path(tempfile.mkdtemp(prefix="dieselfs-test-", dir="/dev/shm"))
        mountpoint = folder / f"mnt{number}"
        mountpoint.mkdir()
        made.append(NodeHere(dlcmd, memory, mountpoint))
    try:
        yield made
    finally:
        for node in made:
            command = ["umount", "-l", node.mountpoint]
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        for node in made:
            for daemon in node.daemons:
                proc = Path(f"/proc/{daemon.pid}")
                eventually(lambda proc=proc: not proc.exists(), "a daemon's end")
            shutil.rmtree(node.memory)
