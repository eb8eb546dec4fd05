"""What is installed from a wheel or from the source package works in an empty environment.

The tests of every change build both and link the required libraries from this environment. `make
test-dist` takes the packages that `make dist` has built, and has pip install them from the package
index.
"""

import os
import zipfile
from pathlib import Path

import pytest

from tests.dist.environments import (
    PACKAGES,
    Environment,
    build_sdist,
    build_wheel,
    install,
    new_environment,
)

DIST = os.environ.get("DIESELFS_DIST")
FILES = {"cat/1.jpg": b"1" * 5000, "dog/2.jpg": b"2"}
WHY = "from metadata.path_lookup import why_in_python as why; print(why())"
PROGRAM = """
import dieselfs
with dieselfs.connect("pets") as client:
    paths = list(client.shuffle(seed=1, epoch=0, group_size=1, memory_bytes=32 << 20))
    print(sorted((path, len(client.get(path))) for path in paths))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source package."""
    return build_sdist(tmp_path_factory.mktemp("source"))


def use(environment: Environment) -> str:
    """Pack, read and mount with an installed DieselFS; return what the mount said."""
    for name, content in FILES.items():
        (environment.home / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        (environment.home / "pets" / name).write_bytes(content)
    nothing = str(environment.home / "no-programs")  # neither fusermount3 nor a compiler
    assert "Pack files" in environment.run("dlcmd", "--help", path=nothing)
    environment.run("dlcmd", "put", f"{environment.home}/pets/", "pets", path=nothing)
    environment.run("dlcmd", "get", "pets:cat/1.jpg", environment.home / "1.jpg", path=nothing)
    assert (environment.home / "1.jpg").read_bytes() == FILES["cat/1.jpg"]
    shown = environment.run("python", "-c", PROGRAM, path=nothing)
    assert shown == f"{[(name, len(content)) for name, content in FILES.items()]}\n"
    mountpoint = environment.home / "mnt"
    mountpoint.mkdir()
    said = environment.run("dlcmd", "mount", "pets", mountpoint)
    try:
        assert {name: (mountpoint / name).read_bytes() for name in FILES} == FILES
    finally:
        environment.run("dlcmd", "umount", mountpoint)
    return said


def test_a_wheel_serves_a_mount(source: Path, tmp_path: Path) -> None:
    wheel = build_wheel(source, tmp_path / "built", DIESELFS_STABLE_ABI="1")
    assert "-cp311-abi3-" in wheel.name
    names = {Path(name).parts[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if "dist-info" not in name} == set(PACKAGES)
    environment = new_environment(tmp_path, with_pip=False)
    install(wheel, environment)
    assert environment.run("python", "-c", WHY) == "None\n"
    assert "without the C extension" not in use(environment)


def test_no_compiler_is_needed(source: Path, tmp_path: Path) -> None:
    wheel = build_wheel(source, tmp_path / "built", CC="/no/compiler")
    environment = new_environment(tmp_path, with_pip=False)
    install(wheel, environment)
    said = use(environment)
    assert "take 3 times as long without the C extension: it was not built" in said
    assert "; install gcc and python3-dev, then DieselFS again" in said


@pytest.mark.timeout(900)
@pytest.mark.skipif(not DIST, reason="make test-dist has pip install from the package index")
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_pip_installs_what_is_built(kind: str, tmp_path: Path) -> None:
    [package] = Path(DIST or "").absolute().glob(kind)
    environment = new_environment(tmp_path, with_pip=True)
    environment.run("pip", "install", "--quiet", package)
    use(environment)
    assert environment.run("python", "-c", WHY) == "None\n"
