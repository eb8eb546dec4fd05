"""Tests against Debian's Slurm, which runs on loopback: `make test-slurm`. Without DIESELFS_SLURM
nothing here is collected."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dieselfs.allocation.directory.folder import FolderDirectory
from tests.slurm.slurm_cluster import SlurmCluster, slurm_cluster

CHECKOUT = Path(__file__).parents[2]

if not os.environ.get("DIESELFS_SLURM"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    hooks = tmp_path_factory.mktemp("etc") / "dieselfs"
    shutil.copytree(CHECKOUT / "contrib/slurm", hooks)
    with slurm_cluster(hooks) as made:
        yield made


@dataclass(frozen=True, slots=True)
class Site:
    """DieselFS on the nodes of the cluster: a store with one dataset, and what the hooks use."""

    folder: Path
    pictures: Path
    mounts: Path
    environment: dict[str, str]

    @property
    def directory(self) -> FolderDirectory:
        memory = Path(self.environment["DIESELFS_MEMORY_FOLDER"])
        return FolderDirectory(memory / f"dieselfs-allocations-{os.geteuid()}")

    def declared(self) -> list[str]:
        """Return the names of the jobs that are declared."""
        return [entry.job for entry in self.directory.jobs()]

    def dlcmd(self, *arguments: str | Path) -> None:
        command = [self.folder / "dlcmd", "--quiet", *arguments]
        subprocess.run(command, env=self.environment, check=True, timeout=120)


@pytest.fixture(scope="session")
def site(started_cluster: SlurmCluster, node_memory_of_the_tests: Path) -> Site:
    """It has the dataset `pets`, in a folder into which all users see, as pytest's are not."""
    folder = started_cluster.folder / "site"
    folder.mkdir()
    dlcmd = folder / "dlcmd"
    dlcmd.write_text(f'#!/bin/sh\nexec {sys.executable} -m dieselfs "$@"\n')
    dlcmd.chmod(0o755)
    pictures = folder / "pictures"
    pictures.mkdir()
    for number in range(20):
        (pictures / f"{number}.jpg").write_bytes(os.urandom(5000))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUT),
        "DIESELFS_STORE": f"file://{folder}/store",
        "DIESELFS_INDEX": f"lmdb://{folder}/index",
        "DIESELFS_MEMORY_FOLDER": str(node_memory_of_the_tests),
        "DIESELFS_LOG_FOLDER": os.environ["DIESELFS_LOG_FOLDER"],
        **{f"XDG_{name}_HOME": f"{folder}/{name}" for name in ("CONFIG", "DATA", "CACHE", "STATE")},
    }
    made = Site(folder, pictures, folder / "jobs", environment)
    made.dlcmd("put", f"{pictures}/", "pets")
    return made


Configure = Callable[..., None]


@pytest.fixture
def configure(started_cluster: SlurmCluster, site: Site) -> Configure:
    """Write the settings of the hooks: those of the site, and what a test gives."""

    def write(**given: object) -> None:
        settings = {
            **site.environment,
            "DIESELFS_SLURM_DLCMD": site.folder / "dlcmd",
            "DIESELFS_SLURM_LOG": started_cluster.log,
            "DIESELFS_SLURM_LIMIT_S": 60,  # a busy machine
            "DIESELFS_SLURM_MOUNT_LIMIT_S": 60,
            **{f"DIESELFS_SLURM_{name}": value for name, value in given.items()},
        }
        lines = (f"{name}={value}\n" for name, value in settings.items())
        (started_cluster.hooks / "settings.env").write_text("".join(lines))

    return write


@pytest.fixture
def slurm(started_cluster: SlurmCluster, configure: Configure) -> Iterator[SlurmCluster]:
    """The cluster without jobs, and with the settings of the site."""
    configure()
    started_cluster.log.unlink(missing_ok=True)
    yield started_cluster
    started_cluster.cancel_all()
