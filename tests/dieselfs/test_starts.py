"""What each way to start imports: modules are counted, never time.

`python -m benchmarks.bench_start` measures how long each start takes, and where its time goes.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dieselfs
from tests.mount.mounting import needs_fuse

CHECKOUT = Path(__file__).parents[2]
OURS = ("chunkstore", "dieselfs", "metadata")
CLOUDS = {"obstore", "botocore", "rados"}
SELDOM = {"rich", "redis", "hiredis", "torch", "asyncio", "ssl", "importlib.metadata", *CLOUDS}
"""Imported only for a Redis index, a cloud store, PyTorch, a bar on a terminal or `--version`."""
OF_NAMES = {"numpy", "lmdb", "xxhash", "msgspec"}
OF_ERRORS = {"difflib", "tomllib"}
HASHES = {"hashlib", "secrets"}
"""They load OpenSSL."""
STARTS = {
    "import dieselfs": ({"click", "logging", *OF_NAMES, *OF_ERRORS, *HASHES}, 1),
    "dlcmd --help": ({"logging", "ctypes", "json", *OF_NAMES, *OF_ERRORS, *HASHES}, 22),
    "dlcmd ls": ({"msgspec", *OF_ERRORS, *HASHES}, 89),
    "dlcmd mounts": ({"numpy", "lmdb", *OF_ERRORS}, 84),
    "dlcmd ls pets": ({"msgspec", *OF_ERRORS, *HASHES}, 118),
}
"""What each must not import, and how many modules of ours it may."""
MOUNT_MODULES = {"dlcmd": 247, "supervisor and server": 358}
_IMPORTED = re.compile(r"import time: +\d+ \| +\d+ \| +(\S+)")
_SCRIPT = """
import json, sys
before = set(sys.modules)
import dieselfs
if sys.argv[1:]:
    from dieselfs.cli import run_dlcmd
    assert run_dlcmd(sys.argv[2:]) == 0
print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a user with a dataset in embedded places."""
    folder = tmp_path_factory.mktemp("starts")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("DIESELFS_P")
    } | {
        "DIESELFS_STORE": f"file://{folder}/store",
        "DIESELFS_INDEX": f"lmdb://{folder}/index",
        **{f"XDG_{name}_HOME": f"{folder}/{name}" for name in ("CONFIG", "DATA", "STATE")},
        "PYTHONPATH": str(CHECKOUT),
    }
    source = folder / "source"
    source.mkdir()
    (source / "cat.jpg").write_bytes(b"meow")
    for arguments in (["put", f"{source}/", "pets"], ["snapshot", "create", "pets"]):
        dlcmd(environment, *arguments)
    return environment


def dlcmd(environment: dict[str, str], *arguments: str) -> bytes:
    command = [sys.executable, "-m", "dieselfs", *arguments]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout


def ours(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.partition(".")[0] in OURS)


@pytest.mark.parametrize("start", STARTS)
def test_a_start_imports_what_it_uses(environment: dict[str, str], start: str) -> None:
    forbidden, most = STARTS[start]
    words = [] if start == "import dieselfs" else start.split()
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = set(json.loads(done.stderr))
    assert imported & (forbidden | SELDOM) == set()
    assert len(ours(imported)) <= most, ours(imported)


@needs_fuse
def test_a_mount_imports_what_it_uses(environment: dict[str, str], tmp_path: Path) -> None:
    """Its `dlcmd`, and its supervisor and server together, until the first READ."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    observed = environment | {"PYTHONPROFILEIMPORTTIME": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dieselfs", "mount", "--json", "pets", str(mountpoint)],
            env=observed,
            capture_output=True,
            text=True,
            check=True,
        )
        assert (mountpoint / "cat.jpg").read_bytes() == b"meow"
        log = Path(json.loads(done.stdout)["log"])
        said_by = (done.stderr, log.read_text())
        for said, most in zip(said_by, MOUNT_MODULES.values(), strict=True):
            imported = set(_IMPORTED.findall(said))
            assert imported & (OF_ERRORS | SELDOM) == set()
            assert len(ours(imported)) <= most, ours(imported)
    finally:
        dlcmd(environment, "umount", str(mountpoint))
    log.unlink()


def test_the_public_names_are_whole_though_they_are_imported_late() -> None:
    assert set(dieselfs.__all__) <= set(dir(dieselfs))
    for name in dieselfs.__all__:
        assert getattr(dieselfs, name).__name__ == name
