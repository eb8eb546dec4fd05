"""A reader of a mount that cannot write into the task's folder: another user's, in a container.

`python -m tests.mount.foreign_reader MOUNT [--user UID] [--namespace] [--read-only]`. In a mount
namespace of its own it sees the mount at another place and has a /dev/shm of its own. It samples
every third file with a `ChunkShuffleSampler`, and says in a line of JSON how that began. For each
line that it is given it reads so many samples, and says what it has read; 0 ends it.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler

CLONE_NEWNS = 0x20000


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def enter_namespace(mount: Path, *, read_only: bool) -> Path:
    """Leave the machine's mounts behind, as a container does; return where the mount is now."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/mnt")
    place = Path("/mnt/dataset")
    place.mkdir()
    run("mount", "--rbind", str(mount), str(place))
    if read_only:
        for shown in (place, place / ".dieselfs"):
            if os.path.ismount(shown):
                run("mount", "-o", "remount,bind,ro", str(shown))
    run("umount", "--lazy", str(mount))
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    return place


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mount", type=Path)
    parser.add_argument("--user", type=int)
    parser.add_argument("--namespace", action="store_true")
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    root: Path = options.mount
    if options.namespace:
        root = enter_namespace(root, read_only=options.read_only)
    if options.workers:  # import what workers need: another user may not reach this Python
        np.random.seed(0)
        list(DataLoader(range(2), num_workers=1))  # type: ignore[arg-type]
    if options.user is not None:
        os.setgroups([])
        os.setresgid(options.user, options.user, options.user)
        os.setresuid(options.user, options.user, options.user)
    found = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(root)
        if ".dieselfs" not in folder
        for name in names
        if name != ".dieselfs"
    ]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        samples = Samples(sorted(found)[::3])
        sampler = ChunkShuffleSampler(samples.paths, group_size=2, seed=1)
        loader: Any = ChunkShuffleLoader(
            samples, 4, sampler=sampler, num_workers=options.workers, collate_fn=list
        )
        batches = iter(loader)
        read = next(batches)
        publishing = sampler._publisher._publishing
        assert publishing is not None
        publishing.join()
    say(samples=len(samples), warnings=[str(each.message) for each in warned], read=read)
    for line in sys.stdin:
        wanted, read = int(line), []
        if not wanted:
            break
        for batch in batches:
            read += batch
            if len(read) >= wanted:
                break
        say(read=read)
    sampler.close()


class Samples(Dataset[tuple[str, int]]):
    """Each is a path, and the checksum of what was read there."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[str, int]:
        path = self.paths[index]
        with open(path, "rb", buffering=0) as file:
            return "/".join(path.split("/")[-2:]), zlib.crc32(file.read())

    def __getitems__(self, indices: list[int]) -> list[tuple[str, int]]:
        return [self[index] for index in indices]


if __name__ == "__main__":
    main()
