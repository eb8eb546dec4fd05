"""`dlcmd task`, and mounts with peers: what is refused, what reaches the daemon, and that the secret is seen nowhere.

Two nodes are two folders for memory on one machine, and two mounts.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.dieselfs.cli.conftest import Dlcmd
from tests.mount.mounting import eventually
from tests.services.redis_processes import free_port

needs_fuse = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
SECRET = "f00d" * 16
TASK = "run1"


def test_a_secret_is_made_once(dlcmd: Dlcmd, tmp_path: Path) -> None:
    file = tmp_path / "run1.secret"
    result = dlcmd("task", "secret", file)
    assert (result.code, result.out) == (0, b"")
    assert f"--secret-file {file}" in result.err
    made = file.read_text()
    assert re.fullmatch(r"[0-9a-f]{64}\n", made)
    assert file.stat().st_mode & 0o777 == 0o600
    assert made.strip() not in result.err
    assert dlcmd("task", "secret", file).code == 8
    assert file.read_text() == made
    [record] = dlcmd("task", "secret", tmp_path / "other", "--json").records
    assert record == {"file": str(tmp_path / "other")}
    assert dlcmd("task", "secret", tmp_path / "no" / "folder").code == 1


@pytest.mark.parametrize("name", ["unknown", "..", "a/b", ""])
def test_a_task_that_is_not_here(dlcmd: Dlcmd, name: str) -> None:
    result = dlcmd("task", "show", name)
    assert (result.code, "`dlcmd task ls`" in result.err) == (1, True)


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        (["--peers", "redis"], {}, "--task"),
        (["--peers", "redis", "--task", TASK], {}, "DIESELFS_INDEX"),
        (["--peers", "localhost:1", "--task", TASK], {}, "dlcmd task secret FILE"),
        (["-o", "peers=localhost:1+localhost:1", "--task", TASK], {}, "once"),
        (["--peer-nodes", "2"], {}, "--peers redis"),
        (["-o", "no_share"], {}, "--peers redis"),
        (["-o", f"peers=torch,task={TASK}"], {}, "torchrun"),
        (["-o", f"peers=redis,task={TASK},cache_policy=never"], {}, "oneshot or on-demand"),
        (["-o", f"peers=redis,task={TASK},peer_nodes=x"], {}, "not a number"),
        (["--task", TASK], {"DIESELFS_PEERS": "localhost:1"}, "dlcmd task secret FILE"),
        ([], {"DIESELFS_PEERS": "redis"}, "--task"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mount_with_wrong_options_is_refused_in_the_terminal(
    dlcmd: Dlcmd,
    dataset: Path,
    mountpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    environment: dict[str, str],
    said: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = dlcmd("mount", "pets", mountpoint, *flags)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert said in result.err
    assert not mountpoint.is_mount()
