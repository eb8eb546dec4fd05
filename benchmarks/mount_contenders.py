"""One tree of files, as each file system offers it: ext4, our mount, squashfuse_ll and the kernel's squashfs.

A context manager for each, which leaves no mount, no loop device and no process behind; and the states of the caches that a measurement
begins with. Needs root (mounting an image, dropping caches) and the Debian packages `PACKAGES`.
"""

from __future__ import annotations

import glob
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import DLCMD, dlcmd, make_tree, scratch, sync

PLAIN = "--plain"
"""Of `dlcmd mount`: no fast path, no stateless opens, no storing ahead."""
PACKAGES = {"squashfuse_ll": "squashfuse", "mksquashfs": "squashfs-tools", "cc": "gcc libc6-dev"}
UNCOMPRESSED = ["-noI", "-noId", "-noD", "-noF", "-noX"]
_READER = Path(__file__).with_name("reader.c")
_SETTLED_S = 0.3


def require_tools() -> None:
    """End with what is missing and how to get it."""
    packages = [package for tool, package in PACKAGES.items() if shutil.which(tool) is None]
    if packages:
        sys.exit(f"bench_mount needs more programs: apt-get install {' '.join(packages)}")
    if os.geteuid() != 0:
        sys.exit("bench_mount mounts images and drops the kernel's caches: run it as root")


# --- the tree ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dataset:
    """The same files as a directory, in a store of ours and, where asked for, in a squashfs image."""

    folder: Path
    files: int
    size_bytes: int
    chunks: int
    payload_bytes: int

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def image(self) -> Path:
        return self.folder / "squashfs"

    @property
    def chunk_bytes(self) -> int:
        return -(-self.payload_bytes // max(self.chunks, 1))

    def __str__(self) -> str:
        size = f"{self.size_bytes >> 10} KiB" if self.size_bytes >= 1024 else f"{self.size_bytes} B"
        return f"{self.files} files of {size}"


@contextmanager
def dataset(
    files: int, size_bytes: int, folders: int = 100, image: bool = False
) -> Iterator[Dataset]:
    """Made in a scratch folder, which is removed afterwards."""
    with scratch("mount") as folder:
        say(f"making {files} files of {size_bytes} bytes")
        try:
            make_tree(folder / "source", files, folders, size_bytes, processes=os.cpu_count() or 1)
            dlcmd("put", "-q", "-j", "2", f"{folder}/source/", "dl://bench", folder=folder)
            dlcmd("snapshot", "create", "-q", "bench", folder=folder)
            if image:
                arguments = [folder / "source", folder / "squashfs", "-no-progress", "-quiet"]
                subprocess.run(["mksquashfs", *arguments, *UNCOMPRESSED], check=True)
            made = Dataset(folder, files, size_bytes, 0, 0)
            with ours(made) as root:
                shown = json.loads((root / ".dieselfs/dataset.json").read_text())
            yield Dataset(folder, files, size_bytes, shown["chunks"], shown["bytes"])
        finally:
            for log in glob.glob(f"/var/log/dieselfs/*{folder.name}*"):  # where root's mounts log
                os.unlink(log)


def in_random_order(data: Dataset) -> Path:
    """A list of all files, shuffled as a whole."""
    paths = [
        f"{os.path.basename(directory)}/{name}\n"
        for directory, _, names in os.walk(data.source)
        for name in names
    ]
    random.Random(7).shuffle(paths)
    return _written(data.folder / "random-order", "".join(paths))


def in_chunkwise_order(data: Dataset, root: Path, group: int) -> Path:
    """The mount's own list for an epoch: chunks shuffled, and the files of `group` chunks together."""
    order = root / f".dieselfs/shuffle/seed=1,epoch=0,group={group},rank=0,world=1"
    return _written(data.folder / f"chunkwise-order-{group}", order.read_text())


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# --- the mounts ----------------------------------------------------------------------------------


@contextmanager
def ours(
    data: Dataset, *, plain: bool = False, memory_mib: int = 1024, preload: bool = False
) -> Iterator[Path]:
    """A fresh mount with that much memory for chunks."""
    root = data.folder / ("plain" if plain else "ours")
    root.mkdir(exist_ok=True)
    dlcmd(
        "mount",
        *("-q", "--no-index", "--memory", f"{memory_mib}MiB"),
        *([PLAIN] if plain else []),
        *(["--preload"] if preload else []),
        *("dl://bench", root),
        folder=data.folder,
    )
    pid = json.loads((root / ".dieselfs/dataset.json").read_text())["pid"]
    try:
        if not plain:
            _require_fast_path(root)
        yield root
    finally:
        if subprocess.run([*DLCMD, "umount", "-q", root], check=False).returncode:
            subprocess.run(["umount", "-l", root], check=False)
        _wait_for_the_end_of(pid)


@contextmanager
def squashfuse(data: Dataset) -> Iterator[Path]:
    root = data.folder / "squashfuse"
    root.mkdir()
    daemon = subprocess.Popen(["squashfuse_ll", "-f", data.image, root])
    try:
        while not os.path.ismount(root):
            if daemon.poll() is not None:
                raise RuntimeError(f"squashfuse_ll ended with {daemon.returncode}")
            time.sleep(0.01)
        yield root
    finally:
        subprocess.run(["umount", root], check=False)
        daemon.terminate()
        daemon.wait()


@contextmanager
def kernel_image(data: Dataset) -> Iterator[Path]:
    """The kernel's own squashfs on a loop device, which goes with the mount."""
    root = data.folder / "kernel"
    root.mkdir()
    subprocess.run(["mount", "-t", "squashfs", "-o", "loop,ro", data.image, root], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", root], check=False)


def _wait_for_the_end_of(pid: int) -> None:
    """What a daemon held is free only then. A zombie, where nobody collects it, has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return
        except OSError:
            return
        time.sleep(0.01)


# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reader:
    """The C program `reader.c`, compiled."""

    program: Path

    def read(
        self, root: Path, order: Path, threads: int = 1, checksum: bool = False
    ) -> dict[str, Any]:
        flags = ["-t", str(threads), *(["-c"] if checksum else [])]
        done = subprocess.run(
            [self.program, *flags, root, order], stdout=subprocess.PIPE, text=True, check=True
        )
        return dict(json.loads(done.stdout))

    def seconds(self, root: Path, order: Path, threads: int = 1) -> float:
        return float(self.read(root, order, threads)["seconds"])

    def verify(self, roots: Sequence[Path], order: Path) -> None:
        """That all hold the same bytes under the same names. Fills the page cache."""
        found = {root.name: self.read(root, order, 2, checksum=True) for root in roots}
        seen = {(each["files"], each["bytes"], each["checksum"]) for each in found.values()}
        if len(seen) != 1:
            sys.exit(f"the contenders differ: {found}")


@contextmanager
def reader() -> Iterator[Reader]:
    with scratch("reader") as folder:
        program = folder / "reader"
        subprocess.run(["cc", "-O2", "-pthread", "-o", program, _READER], check=True)
        yield Reader(program)


def list_all(root: Path) -> None:
    """Names and attributes of everything, as a training program asks for them before its first epoch."""
    subprocess.run(["find", root, "-type", "f", "-size", "+1000000G"], check=True)


# --- the caches ----------------------------------------------------------------------------------


def drop_all_caches(folder: Path) -> None:
    """What is dirty stays, so what was written to the folder's disk is made durable first."""
    sync(folder)
    _drop(3)


def drop_page_cache(folder: Path) -> None:
    """Data only: inodes and names stay known."""
    sync(folder)
    _drop(1)


def _drop(what: int) -> None:
    Path("/proc/sys/vm/drop_caches").write_text(f"{what}\n")


def statistics(root: Path) -> dict[str, Any]:
    return dict(json.loads((root / ".dieselfs/stats.json").read_text()))


def read_requests(stats: dict[str, Any]) -> int:
    return int(stats["requests"].get("read", 0))


def stored_ahead(stats: dict[str, Any]) -> int:
    """Files."""
    return int(stats["stored_ahead"]["files"])


def _require_fast_path(root: Path) -> None:
    """A mount that fell back to Python is not what is to be measured."""
    found = statistics(root)["fast_path"]
    if not found["active"]:
        sys.exit(f"the mount has no fast path: {found['reason']}")


def fill_node_memory(data: Dataset, root: Path) -> float:
    """Wait until a mount made with `preload` has all chunks in the daemon's memory; the part of the bytes that is there then.

    None of their files is in the page cache then: what was not read is not stored ahead.
    """
    before, now = -1, _cached_bytes(root)
    while now < data.payload_bytes and now != before:
        time.sleep(_SETTLED_S)
        before, now = now, _cached_bytes(root)
    drop_page_cache(data.folder)
    return now / max(data.payload_bytes, 1)


def _cached_bytes(root: Path) -> int:
    node = statistics(root)["cache"]["node"]
    return int(node["held_bytes"]) if node else 0


def settle(root: Path) -> None:
    """Wait until nothing more is stored ahead."""
    before, now = -1, stored_ahead(statistics(root))
    while now != before:
        time.sleep(_SETTLED_S)
        before, now = now, stored_ahead(statistics(root))


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
