"""An allocator of three jobs and its Redis, for benchmarks that kill them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.allocated_reader import CHUNK_BYTES, ReaderKind
from benchmarks.harness import REPOSITORY
from dieselfs.allocation.directory.redis_directory import RedisDirectory
from dieselfs.errors import RegistryUnavailable
from metadata.keys import ALLOCATION_LEADER
from tests.services.redis_processes import RedisProcess

TOTAL = 40e6
JOBS = [
    ReaderKind(job, speed_bytes_per_s=speed, chunk_bytes=CHUNK_BYTES // 4)
    for job, speed in {"fast": 60e6, "middle": 30e6, "slow": 6e6}.items()
]
"""They want more than the total together."""


@contextmanager
def scratch_redis() -> Iterator[RedisProcess]:
    with tempfile.TemporaryDirectory(prefix="dieselfs-allocation-") as folder:
        with RedisProcess(Path(folder)) as server:
            yield server


def start_allocator(url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dieselfs.cli", "alloc", "run"]
    return subprocess.Popen(
        [*command, "--remote-io", str(int(TOTAL)), "--cache", "0"],
        env={**os.environ, "DIESELFS_INDEX": url, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def leader_of(server: RedisProcess) -> str:
    """The id of the allocator that leads; it has its process id."""
    with server.client() as client:
        return (client.hget(ALLOCATION_LEADER, "id") or b"").decode()


def rates_of(directory: RedisDirectory) -> dict[str, float]:
    """The rates that are published; none while the Redis is away."""
    try:
        return {each.job: each.bytes_per_s for each in directory.decisions().ios}
    except RegistryUnavailable:
        return {}


def seconds_until(condition: Callable[[], bool], longest_s: float = 60.0) -> float:
    began = time.monotonic()
    while not condition() and time.monotonic() - began < longest_s:
        time.sleep(0.05)
    return time.monotonic() - began
