#!/usr/bin/env python3
"""Reads a dataset in tasks of Ray, which share the remote IO that is allocated to their job.

    ray start --head --resources='{"dieselfs_io": 4000}'
    ray_remote_io.py imagenet --io 114 --readers 2 --epochs 2

Two things are said to Ray. `DIESELFS_JOB` in the environment of the tasks is the name by which
DieselFS knows the job: all its readers together keep to what an allocator gives it. And each task
takes its part of the job's MB/s from the custom resource `dieselfs_io`, of which a node has as much
as its administrator gave it: a job that the store could not feed waits. docs/slurm.md says more.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

RESOURCE = "dieselfs_io"


class Shard(NamedTuple):
    """What one task reads: the part of one rank of the dataset's chunk-wise shuffled order."""

    dataset: str
    rank: int
    world_size: int
    epochs: int
    group_size: int
    through_a_mount: bool

    def list_of(self, epoch: int) -> str:
        """Return where a mount has the order of an epoch, as paths below the mountpoint."""
        part = f"rank={self.rank},world={self.world_size}"
        return f".dieselfs/shuffle/seed=1,epoch={epoch},group={self.group_size},{part}"


def task_options(job: str, io_mb_per_s: float, readers: int) -> dict[str, Any]:
    """Return what Ray is told of each task of a job that may read `io_mb_per_s` in all."""
    return {
        "num_cpus": 1,
        "resources": {RESOURCE: io_mb_per_s / readers},
        "runtime_env": {"env_vars": {"DIESELFS_JOB": job}},
    }


def read(shard: Shard) -> tuple[str, int, float]:
    """Read a shard; return the job's name, the bytes, and the seconds of reading."""
    began, count = time.perf_counter(), 0
    for content in through_mount(shard) if shard.through_a_mount else through_client(shard):
        count += len(content)
    return os.environ["DIESELFS_JOB"], count, time.perf_counter() - began


def through_client(shard: Shard) -> Iterator[bytes]:
    """Read with a client, whose node memory is that of the job."""
    import dieselfs

    with dieselfs.connect(shard.dataset) as client:
        for epoch in range(shard.epochs):
            order = client.shuffle(
                seed=1,
                epoch=epoch,
                group_size=shard.group_size,
                rank=shard.rank,
                world_size=shard.world_size,
                task=os.environ["DIESELFS_JOB"],
            )
            yield from map(client.get, order)


def through_mount(shard: Shard) -> Iterator[bytes]:
    """Read through a mount that this task makes for itself, and that ends with it."""
    import dieselfs

    with tempfile.TemporaryDirectory() as folder:
        with dieselfs.mount(shard.dataset, Path(folder, "mnt")) as root:
            for epoch in range(shard.epochs):
                names = Path(root, shard.list_of(epoch)).read_bytes().split(b"\n")[:-1]
                yield from (Path(root, os.fsdecode(name)).read_bytes() for name in names)


def run(arguments: argparse.Namespace) -> None:
    import ray

    ray.init()
    job = arguments.job or f"ray-{ray.get_runtime_context().get_job_id()}"
    shards = [
        Shard(
            *(arguments.dataset, rank, arguments.readers),
            *(arguments.epochs, arguments.group, arguments.mount),
        )
        for rank in range(arguments.readers)
    ]
    task = ray.remote(read).options(**task_options(job, arguments.io, arguments.readers))
    for name, count, seconds in ray.get([task.remote(shard) for shard in shards]):
        print(f"job {name}: {count:,} bytes, {count / seconds / 2**20:.1f} MiB/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Read a dataset in tasks of Ray.")
    parser.add_argument("dataset")
    parser.add_argument("--io", type=float, default=100, help="remote IO of the job, in MB/s")
    parser.add_argument("--readers", type=int, default=2, help="tasks")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--group", type=int, default=100, help="chunks that are shuffled together")
    parser.add_argument("--mount", action="store_true", help="read through mounts, not clients")
    parser.add_argument("--job", help="the job's name (default: ray- and Ray's job id)")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
