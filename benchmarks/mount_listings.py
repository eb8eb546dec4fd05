"""Names: `ls -R` and `ls -lR` of a million files, an ImageFolder; and a stock DataLoader over one,
warm."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from benchmarks import mount_contenders as contenders
from benchmarks.harness import run_rounds, spread
from benchmarks.mount_bars import REPORTED, Bar, Result, judge
from benchmarks.mount_contenders import EROFS, MountKind
from benchmarks.mount_epochs import EXT4, page_reads, refill, warm_roots
from benchmarks.named_dataset import NamedDataset, make_names, named_dataset
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.client import connect

_WORKERS = 2
_BATCH = 256
_READ_FILE = " with read_file"
_DIESEL = "DieselDataset"


IMAGEFOLDER_BAR = Bar(most=1.0)
"""Times ext4's seconds."""
LOADER_BAR = Bar(least=0.97)
"""Times ext4's rate."""
READ_FILE_BAR = Bar(least=0.80)
"""Times ext4's rate with Python's `open`."""
DATASET_BAR = Bar(least=1.0)
"""The same."""
FIRST_LISTING_BAR = Bar(least=200_000)
"""Entries a second."""
SECOND_LISTING_BAR = Bar(least=1.2)
"""Times ext4's rate."""


def listing(files: int, folders: int, rounds: int, kinds: Sequence[MountKind]) -> list[Result]:
    """`ls -lR` and, for names alone, `ls -R` (DIESEL Fig. 10c): each on a mount made for it, again
    on the same, and on ext4 with all inodes cached."""
    found = []
    with named_dataset(files, folders) as named, ExitStack() as stack:
        files = named.data.files
        entries = files + folders
        contenders.say(f"making {files} sparse files on ext4")
        make_names(named.paths, named.data.source)
        fresh = {kind.name: stack.enter_context(_FreshMount(named, kind)) for kind in kinds}
        _require_complete(fresh[kinds[0].name].replace(), named.data.source, entries)
        fresh[kinds[0].name].close()
        times = {}
        for flags in ("-lR", "-R"):
            turns: dict[str, Callable[[], float]] = {
                "ext4": lambda flags=flags: _ls(named.data.source, flags)  # type: ignore[misc]
            }
            for name, each in fresh.items():
                turns |= _listings(name, each, flags)
            times[flags] = run_rounds(turns, rounds)
    for flags, name in itertools.product(times, fresh):
        first, second, taken = f"{name} first", f"{name} second", times[flags]
        rates = {each: entries / taken.median(each) for each in ("ext4", first, second)}
        is_judged = name == EROFS.name and flags == "-lR"
        found += [
            judge(
                f"ls {flags}, {files} files in {folders} folders, fresh mount: {name}, entries/s",
                [entries / each for each in taken.seconds[first]],
                FIRST_LISTING_BAR if is_judged else REPORTED,
                over_ext4=spread(taken.ratios(first, "ext4")),
                entries_per_s=rates,
            ),
            judge(
                f"ls {flags}, {files} files in {folders} folders, second: {name} x ext4",
                taken.ratios(second, "ext4"),
                SECOND_LISTING_BAR if is_judged else REPORTED,
                entries_per_s=rates,
            ),
        ]
    return found


def imagefolder(data: contenders.Dataset, rounds: int, kinds: Sequence[MountKind]) -> list[Result]:
    """Building `torchvision.datasets.ImageFolder` needs names only. Time as a multiple of that on
    ext4, whose names are cached."""
    datasets = _torchvision_datasets()
    found = []

    def build(root: Path) -> float:
        gc.collect()
        begin = time.perf_counter()
        found = datasets.ImageFolder(root)
        elapsed = time.perf_counter() - begin
        assert len(found) == data.files, f"{len(found)} of {data.files}"
        return elapsed

    with ExitStack() as stack:
        fresh = {
            kind.name: stack.enter_context(_FreshMount(NamedDataset(data), kind)) for kind in kinds
        }
        turns: dict[str, Callable[[], float]] = {"ext4": lambda: build(data.source)}
        for name, each in fresh.items():
            turns[f"{name} fresh"] = lambda each=each: build(each.replace())
            turns[f"{name} again"] = lambda each=each: build(each.root)
            turns[f"{name} unmount"] = each.close
        times = run_rounds(turns, rounds)
    for name in fresh:
        found.append(
            judge(
                f"ImageFolder built over {data.files} files on a fresh mount, time: {name} / ext4",
                times.ratios("ext4", f"{name} fresh"),
                IMAGEFOLDER_BAR if name == EROFS.name else REPORTED,
                again=spread(times.ratios("ext4", f"{name} again")),
                seconds={name: times.median(name) for name in times.seconds},
            )
        )
    return found


def loader(
    data: contenders.Dataset,
    reader: contenders.Reader,
    rounds: int,
    kinds: Sequence[MountKind],
) -> list[Result]:
    """A stock DataLoader with 2 workers, random order, everything in the page cache or in node
    memory; one epoch, workers started before. Over an ImageFolder that opens files as Python does,
    over one with `image_files.read_file`, and over a DieselDataset.

    A pass of the C reader goes before each epoch, over ext4 as over mounts: the kernel of some
    machines drops clean pages by itself, some 3 % in two seconds. An epoch that comes long after
    the last one over the same files would pay for them, and the next would not. `reads` tells how
    many requests came to the daemons in each epoch nevertheless, the warm-up's first.
    """
    datasets = _torchvision_datasets()
    import torch
    from torch.utils.data import DataLoader

    from dieselfs.integrations.image_files import read_file

    def to_tensor(content: bytes) -> Any:
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)

    def loader_of(images: Any) -> Any:
        return DataLoader(
            images,
            batch_size=_BATCH,
            shuffle=True,
            num_workers=_WORKERS,
            persistent_workers=True,
            generator=torch.Generator().manual_seed(1),
            multiprocessing_context="fork",
        )

    def epoch(name: str) -> float:
        if name in sources:
            reader.seconds(sources[name], order)
        batches, before = loaders[name], page_reads(roots)
        begin, seen = time.perf_counter(), 0
        for images, _ in batches:
            seen += images.shape[0]
        assert seen == data.files
        seconds = time.perf_counter() - begin
        reads[name].append(sum(page_reads(roots).values()) - sum(before.values()))
        return seconds

    with warm_roots(data, kinds) as roots, _diesel_dataset(data, roots, to_tensor) as diesel:
        order = contenders.in_random_order(data)
        bars = {_DIESEL: DATASET_BAR}
        loaders, sources = {_DIESEL: loader_of(diesel)}, {}
        for name, root in roots.items():
            for how, read in [("", _bytes_of), (_READ_FILE, read_file)]:
                images = datasets.ImageFolder(root, loader=read, transform=to_tensor)
                loaders[name + how], sources[name + how] = loader_of(images), root
        reads: dict[str, list[int]] = {name: [] for name in loaders}
        bars |= {EROFS.name: LOADER_BAR, EROFS.name + _READ_FILE: READ_FILE_BAR}

        def prepare(number: int) -> None:
            turns = list(roots.items())
            refill(data, reader, dict(turns[::-1] if number % 2 else turns), order)

        times = run_rounds(
            {name: lambda name=name: epoch(name) for name in loaders},
            rounds,
            alternates=True,
            prepare=prepare,
        )
        names = [name for name in loaders if name != EXT4]
        loaders.clear()  # ends the workers, which hold nothing open, before the mounts go
        gc.collect()
    return [
        judge(
            f"stock DataLoader, {_WORKERS} workers, warm, {data}: {name} x ext4 and ImageFolder",
            times.ratios(name, EXT4),
            bars.get(name, REPORTED),
            files_per_s={name: data.files / times.median(name) for name in times.seconds},
            reads=reads[name],
        )
        for name in names
    ]


@contextmanager
def _diesel_dataset(
    data: contenders.Dataset, roots: Mapping[str, Path], transform: Callable[[bytes], Any]
) -> Iterator[Any]:
    """A DieselDataset with node memory for everything, which an epoch has filled."""
    from dieselfs.integrations.torch_dataset import DieselDataset

    root = next(root for name, root in roots.items() if name != EXT4)
    snapshot = contenders.described(root)["snapshot_file"]
    places = contenders.dlcmd_environment(data.folder)
    with (
        connect("bench", store=places["DIESELFS_STORE"], index=places["DIESELFS_INDEX"]) as client,
        TemporaryDirectory(prefix="bench-", dir="/dev/shm") as folder,
        NodeMemory.open(
            TaskFolder.at("bench", Path(folder)),
            client.dataset.reader,
            budget_bytes=data.payload_bytes * 5 // 4 + (64 << 20),
        ) as memory,
    ):
        client.load_meta(Path(snapshot))
        made = DieselDataset(client, loader=bytes, transform=transform, memory=memory)
        for number in range(0, len(made), _BATCH):
            made.__getitems__(range(number, min(number + _BATCH, len(made))))
        yield made


class _FreshMount:
    """A mount that is replaced by a new one between the timed parts of a round."""

    def __init__(self, named: NamedDataset, kind: MountKind) -> None:
        self._named, self._kind = named, kind
        self._open = ExitStack()
        self.root = named.data.source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def replace(self) -> Path:
        self.close()
        self.root = self._open.enter_context(self._named.mounted(self._kind))
        return self.root

    def close(self) -> float:
        self._open.close()
        return 0.0


def _listings(name: str, mount: _FreshMount, flags: str) -> dict[str, Callable[[], float]]:
    return {
        f"{name} first": lambda: _ls(mount.replace(), flags),
        f"{name} second": lambda: _ls(mount.root, flags),
        f"{name} unmount": mount.close,
    }


def _ls(root: Path, flags: str) -> float:
    begin = time.perf_counter()
    subprocess.run(
        ["ls", flags, root],
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
    """All paths below, with the size of files: that of a directory is the file system's own
    affair."""
    shown = ["-type", "f", "-printf", r"%P %s\0", "-o", "-printf", r"%P\0"]
    done = subprocess.run(
        ["find", root, "-mindepth", "1", *shown], stdout=subprocess.PIPE, check=True
    )
    # The control directory is no part of the dataset.
    return [each for each in done.stdout.split(b"\0")[:-1] if not each.startswith(b".dieselfs")]


def _bytes_of(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _torchvision_datasets() -> Any:
    try:
        from torchvision import datasets
    except ImportError:
        sys.exit("this part of bench_mount needs PyTorch: scripts/setup.sh torch")
    return datasets
