"""The example for Ray, without Ray: what its tasks read, and what Ray is told of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dieselfs.cli import run_dlcmd
from tests.mount.mounting import needs_fuse

EXAMPLE = Path(__file__).parents[2] / "examples/ray_remote_io.py"
FILES = {f"{number}.bin": bytes([number]) * (1 + number) for number in range(30)}
FILES |= {"ends\ra line.bin": b"in Python", "so does\u2028this.bin": b"in Python too"}


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ray_remote_io", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example = _loaded()


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DIESELFS_STORE", f"file://{tmp_path}/store")
    monkeypatch.setenv("DIESELFS_INDEX", f"lmdb://{tmp_path}/index")
    monkeypatch.setenv("DIESELFS_JOB", "ray-1")
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", f"{tmp_path}/{name}")
    source = tmp_path / "source"
    source.mkdir()
    for name, content in FILES.items():
        (source / name).write_bytes(content)
    assert run_dlcmd(["--quiet", "put", f"{source}/", "pets"]) == 0
    return "pets"


@pytest.mark.parametrize("mounted", [False, pytest.param(True, marks=needs_fuse)])
def test_tasks_read_each_file_once_an_epoch(dataset: str, mounted: bool) -> None:
    shards = [example.Shard(dataset, rank, 2, 3, 100, mounted) for rank in range(2)]
    through = example.through_mount if mounted else example.through_client
    contents = [content for shard in shards for content in through(shard)]
    assert sorted(contents) == sorted([*FILES.values()] * 3)
    job, count, seconds = example.read(shards[0])
    assert job == "ray-1"
    assert 0 < count < 3 * sum(map(len, FILES.values()))
    assert seconds > 0


def test_a_task_takes_its_part_of_the_remote_io() -> None:
    options = example.task_options("train", 114, readers=4)
    assert options["resources"] == {"dieselfs_io": 28.5}
    assert options["runtime_env"] == {"env_vars": {"DIESELFS_JOB": "train"}}
