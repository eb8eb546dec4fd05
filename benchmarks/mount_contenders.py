"""One tree of files, as each file system offers it: ext4, our mount, squashfuse_ll and the kernel's
squashfs.

A context manager for each, which leaves no mount, no loop device and no process behind; and the
states of the caches that a measurement begins with. Needs root (mounting an image, dropping caches)
and the Debian packages `PACKAGES`.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    DLCMD,
    REPOSITORY,
    dlcmd,
    dlcmd_environment,
    make_tree,
    scratch,
    sync,
)

PACKAGES = {"cc": "gcc libc6-dev"}
SQUASHFS_PACKAGES = {"squashfuse_ll": "squashfuse", "mksquashfs": "squashfs-tools"}
UNCOMPRESSED = ["-noI", "-noId", "-noD", "-noF", "-noX"]
_READER = Path(__file__).with_name("reader.c")
_SETTLED_S = 0.3


def require_tools(squashfs: bool = False) -> None:
    """End with what is missing and how to get it."""
    wanted = PACKAGES | (SQUASHFS_PACKAGES if squashfs else {})
    packages = [package for tool, package in wanted.items() if shutil.which(tool) is None]
    if packages:
        sys.exit(f"bench_mount needs more programs: apt-get install {' '.join(packages)}")
    if os.geteuid() != 0:
        sys.exit("bench_mount mounts images and drops the kernel's caches: run it as root")


# --- the tree ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dataset:
    """The same files as a directory, in a store of ours and, where asked for, in a squashfs
    image."""

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
    files: int,
    size_bytes: int,
    folders: int = 100,
    image: bool = False,
    store: Path | None = None,
) -> Iterator[Dataset]:
    """Made in a scratch folder, which is removed afterwards; the store may lie elsewhere."""
    with scratch("mount") as folder:
        if store is not None:
            (folder / "store").symlink_to(store)
        say(f"making {files} files of {size_bytes} bytes")
        try:
            make_tree(folder / "source", files, folders, size_bytes, processes=os.cpu_count() or 1)
            dlcmd("put", "-q", "-j", "2", f"{folder}/source/", "dl://bench", folder=folder)
            dlcmd("snapshot", "create", "-q", "bench", folder=folder)
            if image:
                arguments = [folder / "source", folder / "squashfs", "-no-progress", "-quiet"]
                subprocess.run(["mksquashfs", *arguments, *UNCOMPRESSED], check=True)
            made = Dataset(folder, files, size_bytes, 0, 0)
            with mounted(made) as root:
                shown = described(root)
            yield Dataset(folder, files, size_bytes, shown["chunks"], shown["bytes"])
        finally:
            remove_logs(folder)


def remove_logs(folder: Path) -> None:
    """Of mounts in this folder; this is where root's mounts log."""
    for log in glob.glob(f"/var/log/dieselfs/*{folder.name}*"):
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
    """The mount's own list for an epoch: chunks shuffled, and the files of `group` chunks
    together."""
    order = root / f".dieselfs/shuffle/seed=1,epoch=0,group={group},rank=0,world=1"
    return _written(data.folder / f"chunkwise-order-{group}", order.read_text())


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# --- the mounts ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MountKind:
    """A `dlcmd`, and how it is told to mount."""

    name: str
    command: tuple[str, ...] = tuple(DLCMD)
    options: tuple[str, ...] = ()
    front: str | None = None
    """What it must have chosen; None: an older version, which has one front alone."""
    source: Path = REPOSITORY
    """The checkout whose modules it uses, unless it is an older version that is installed."""

    @property
    def environment(self) -> dict[str, str]:
        """Another version must not find this one's modules, in the working directory neither."""
        modules = "" if self.front is None else str(self.source)
        return {"PYTHONPATH": modules, "PYTHONSAFEPATH": "1"}


EROFS = MountKind("erofs", options=("--front", "erofs"), front="erofs")
LOOP = MountKind("erofs-loop", options=("--front", "erofs-loop"), front="erofs-loop")
FUSE = MountKind("fuse", options=("--front", "fuse"), front="fuse")
FRONTS = {kind.name: kind for kind in (EROFS, LOOP, FUSE)}


def before(program: Path) -> MountKind:
    """An older version: its installed `dlcmd`."""
    return MountKind("before", (os.path.abspath(program),))


@contextmanager
def mounted(
    data: Dataset,
    kind: MountKind = EROFS,
    *options: str,
    memory_mib: int = 1024,
    preload: bool = False,
    enter: Callable[[], None] | None = None,
    checked: bool = True,
) -> Iterator[Path]:
    """A fresh mount with that much memory for chunks. `enter` runs in its process before anything
    else does; not `checked`: nobody has read anything of it yet."""
    root = data.folder / kind.name
    root.mkdir(exist_ok=True)
    task = f"bench-{kind.name}-{os.getpid()}"  # contenders share no memory
    command = [
        *(*kind.command, "mount", "-q", "--no-index", "--memory", f"{memory_mib}MiB"),
        *("--task", task, *kind.options, *options),
        *(["--preload"] if preload else []),
        *("dl://bench", str(root)),
    ]
    subprocess.run(command, env=_environment(data.folder, kind), check=True, preexec_fn=enter)
    try:
        if checked:
            _require_front(root, kind)
        yield root
    finally:
        pid = described(root)["pid"]
        if subprocess.run(
            [*kind.command, "umount", "-q", root],
            env=_environment(data.folder, kind),
            check=False,
        ).returncode:
            subprocess.run(["umount", "-l", root], check=False)
        _wait_for_the_end_of(pid)


def _environment(folder: Path, kind: MountKind) -> dict[str, str]:
    return dlcmd_environment(folder) | kind.environment


def described(root: Path) -> dict[str, Any]:
    """`dataset.json`."""
    return dict(json.loads((root / ".dieselfs/dataset.json").read_text()))


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
    """Names and attributes of everything, as a training program asks for them before its first
    epoch."""
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
    """Without those of the control directory, where they are told apart."""
    return int(stats["requests"].get("read", 0))


def filled_bytes(stats: dict[str, Any]) -> int:
    """What was put into the page cache before anybody asked for it; of an older version too."""
    if "stored_ahead" in stats:
        return int(stats["stored_ahead"]["bytes"])
    return int(stats["page_cache"]["filled"]["filled_bytes"])


def _require_front(root: Path, kind: MountKind) -> None:
    """A mount that fell back to another one is not what is to be measured."""
    found = statistics(root)
    if kind.front is not None and found["front"]["kind"] != kind.front:
        sys.exit(f"the mount's front is {found['front']['kind']}: {found['front']['reason']}")
    if kind.front is None and "fast_path" in found and not found["fast_path"]["active"]:
        sys.exit(f"the older mount has no fast path: {found['fast_path']['reason']}")


def fill_node_memory(data: Dataset, root: Path) -> float:
    """Wait until a mount made with `preload` has all chunks in the daemon's memory; the part of the
    bytes that is there then.

    None of their files is in the page cache then: what was not read is not filled.
    """
    before, now = -1, _cached_bytes(root)
    while now < data.payload_bytes and now != before:
        time.sleep(_SETTLED_S)
        before, now = now, _cached_bytes(root)
    drop_page_cache(data.folder)
    return now / max(data.payload_bytes, 1)


def _cached_bytes(root: Path) -> int:
    node = statistics(root)["cache"]["node"]
    return int(node["cached_bytes"]) if node else 0


def settle(root: Path) -> None:
    """Wait until nothing more is put into the page cache."""
    before, now = -1, filled_bytes(statistics(root))
    while now != before:
        time.sleep(_SETTLED_S)
        before, now = now, filled_bytes(statistics(root))


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
