"""Names: `ls -lR` of a million files, an ImageFolder; and a stock DataLoader over one, warm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from benchmarks import mount_contenders as contenders
from benchmarks.harness import report, run_rounds, spread, warm

_WORKERS = 2
_BATCH = 256


def listing(files: int, folders: int, size_bytes: int, rounds: int) -> None:
    """`ls -lR`: on a mount made for it, again on the same, and on ext4 with all inodes cached."""
    entries = files + folders
    with contenders.dataset(files, size_bytes, folders) as data, _FreshMount(data) as fresh:
        _require_complete(fresh.replace(), data.source, entries)
        times = run_rounds(
            {
                "first": lambda: _ls(fresh.replace()),
                "second": lambda: _ls(fresh.root),
                "ext4": lambda: _ls(data.source),
                "unmount": fresh.close,
            },
            rounds,
        )
        report(
            f"ls -lR, {files} files in {folders} folders",
            ratio=spread(times.ratios("second", "ext4")),
            first_over_ext4=spread(times.ratios("first", "ext4")),
            entries_per_s={
                name: entries / times.median(name) for name in ("first", "second", "ext4")
            },
            first_entries_per_s=spread([entries / each for each in times.seconds["first"]]),
        )


def imagefolder(files: int, rounds: int) -> None:
    """Building `torchvision.datasets.ImageFolder` needs names only. Time as a multiple of that on ext4."""
    datasets = _torchvision_datasets()
    with contenders.dataset(files, 4096) as data, _FreshMount(data) as fresh:

        def build(root: Path) -> float:
            begin = time.perf_counter()
            found = datasets.ImageFolder(root)
            elapsed = time.perf_counter() - begin
            assert len(found) == files, f"{len(found)} of {files}"
            return elapsed

        times = run_rounds(
            {
                "fresh mount": lambda: build(fresh.replace()),
                "mount again": lambda: build(fresh.root),
                "ext4": lambda: build(data.source),
            },
            rounds,
        )
        report(
            f"ImageFolder built over {files} files, time on a fresh mount against ext4 warm",
            ratio=spread(times.ratios("ext4", "fresh mount")),
            again=spread(times.ratios("ext4", "mount again")),
            seconds={name: times.median(name) for name in times.seconds},
        )


def loader(files: int, size_bytes: int, rounds: int) -> None:
    """A stock DataLoader with 2 workers over an ImageFolder, random order, everything in the page cache; one epoch, workers started before."""
    datasets = _torchvision_datasets()
    import torch
    from torch.utils.data import DataLoader

    def to_tensor(data: bytes) -> Any:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def loader_of(root: Path) -> Any:
        images = datasets.ImageFolder(root, loader=_bytes_of, transform=to_tensor)
        return DataLoader(
            images,
            batch_size=_BATCH,
            shuffle=True,
            num_workers=_WORKERS,
            persistent_workers=True,
            generator=torch.Generator().manual_seed(1),
            multiprocessing_context="fork",
        )

    def epoch(batches: Any) -> float:
        begin, seen = time.perf_counter(), 0
        for images, _ in batches:
            seen += images.shape[0]
        assert seen == files
        return time.perf_counter() - begin

    with contenders.dataset(files, size_bytes) as data, contenders.ours(data) as root:
        for each in (root, data.source):
            warm(each)
        loaders = {"ours": loader_of(root), "ext4": loader_of(data.source)}
        times = run_rounds(
            {name: lambda each=each: epoch(each) for name, each in loaders.items()}, rounds
        )
        del loaders  # ends the workers, which hold nothing open, before the mount goes
    report(
        f"DataLoader over ImageFolder, {_WORKERS} workers, warm, {data}",
        ratio=spread(times.ratios("ours", "ext4")),
        files_per_s={name: files / times.median(name) for name in times.seconds},
    )


class _FreshMount:
    """A mount that is replaced by a new one between the timed parts of a round."""

    def __init__(self, data: contenders.Dataset) -> None:
        self._data = data
        self._open = ExitStack()
        self.root = data.source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def replace(self) -> Path:
        self.close()
        self.root = self._open.enter_context(contenders.ours(self._data))
        return self.root

    def close(self) -> float:
        self._open.close()
        return 0.0


def _ls(root: Path) -> float:
    begin = time.perf_counter()
    subprocess.run(
        ["ls", "-lR", root],
        stdout=subprocess.DEVNULL,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    return time.perf_counter() - begin


def _require_complete(root: Path, source: Path, entries: int) -> None:
    """Each name once. Lists ext4 too, so that its inodes are cached."""
    names = [sorted(_find(each)) for each in (root, source)]
    if names[0] != names[1] or len(names[0]) != entries:
        sys.exit(
            f"{root} and {source} differ: {len(names[0])} and {len(names[1])} entries, {entries} made"
        )


def _find(root: Path) -> list[bytes]:
    """All paths below, with the size of files: that of a directory is the file system's own affair."""
    shown = ["-type", "f", "-printf", r"%P %s\0", "-o", "-printf", r"%P\0"]
    done = subprocess.run(
        ["find", root, "-mindepth", "1", *shown], stdout=subprocess.PIPE, check=True
    )
    return done.stdout.split(b"\0")[:-1]


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _torchvision_datasets() -> Any:
    try:
        import torch
    except ImportError:
        sys.exit("this part of bench_mount needs PyTorch: scripts/setup.sh torch")
    try:
        from torchvision import datasets
    except RuntimeError:
        # A torchvision built for CUDA beside a torch without it looks up operators that nobody has declared.
        operators = torch.library.Library("torchvision", "DEF")
        operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from torchvision import datasets
    return datasets
