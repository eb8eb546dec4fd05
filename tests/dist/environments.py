"""Environments to install into: nothing is in them but what a package brings."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("chunkstore", "dieselfs", "metadata")
OURS = ("DIESELFS_", "XDG_", "PYTHON", "VIRTUAL_ENV")
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the home of its user."""

    folder: Path
    home: Path

    def run(self, program: str, *arguments: str | Path, path: str | None = None) -> str:
        """Run a program of the environment; return all that it prints."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        for name in ("DIESELFS_MEMORY_FOLDER", "DIESELFS_LOG_FOLDER"):
            if folder := os.environ.get(name):
                variables[name] = folder
        variables |= {"HOME": str(self.home)} | ({} if path is None else {"PATH": path})
        done = subprocess.run(
            [self.folder / "bin" / program, *arguments],
            env=variables,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


def new_environment(folder: Path, *, with_pip: bool) -> Environment:
    """Return an empty environment in a new folder."""
    without = [] if with_pip else ["--without-pip"]
    command = [sys.executable, "-m", "venv", *without, folder / "venv"]
    subprocess.run(command, check=True)
    (folder / "home").mkdir()
    return Environment(folder / "venv", folder / "home")


def install(wheel: Path, environment: Environment) -> None:
    """Install a wheel; what it requires is linked from this environment, and nothing else."""
    python = environment.folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment.folder / "lib" / version / "site-packages"
    [installed] = packages.glob("dieselfs-*.dist-info/METADATA")
    fields = (line.partition(": ") for line in installed.read_text().splitlines())
    for required in [value for name, _, value in fields if name == "Requires-Dist"]:
        _link(required, packages, set())


def _link(required: str, packages: Path, linked: set[str]) -> None:
    requirement = Requirement(required)
    if requirement.name in linked:
        return
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
        return
    linked.add(requirement.name)
    found = distribution(requirement.name)
    for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
        if not (packages / name).exists():
            (packages / name).symlink_to(Path(sysconfig.get_path("platlib"), name))
    for other in found.requires or ():
        _link(other, packages, linked)


def build_sdist(folder: Path) -> Path:
    """Build the source package from a copy of the checkout; return where it is unpacked."""
    copy = folder / "checkout"
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=CHECKOUT, text=True)
    for name in filter(None, listed.split("\0")):
        path = Path(name)
        if (len(path.parts) == 1 or path.parts[0] in PACKAGES) and (CHECKOUT / path).is_file():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_bytes((CHECKOUT / path).read_bytes())
    built = folder / _build("build_sdist", copy, folder)
    with tarfile.open(built) as packed:
        # Python 3.11 before 3.11.4 knows no filters, and later ones warn without one.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder)
    return folder / built.name.removesuffix(".tar.gz")


def build_wheel(source: Path, folder: Path, **variables: str) -> Path:
    """Build a wheel with these variables in its environment, from nothing that was built before."""
    shutil.rmtree(source / "build", ignore_errors=True)
    return folder / _build("build_wheel", source, folder, **variables)


def _build(what: str, source: Path, folder: Path, **variables: str) -> str:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, folder],
        cwd=source,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]
