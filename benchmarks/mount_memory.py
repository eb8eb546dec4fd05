"""Memory after an epoch: what processes and kernel hold a byte read, a file, an inode.

Page cache and shared memory are what a control group of the daemon and the reader is charged for,
so other work on the machine does not count.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks import mount_contenders as contenders
from benchmarks.control_group import GROUPS, ControlGroup
from benchmarks.mount_bars import REPORTED, Bar, Result, judge
from benchmarks.mount_contenders import EROFS, Dataset, MountKind, Reader
from benchmarks.mount_epochs import memory_for_all

PAGE_CACHE_BAR = Bar(most=1.05)
"""Bytes a byte read."""
_MIB = 1 << 20
_INODES = {
    EROFS.name: "erofs_inode",
    "erofs-loop": "erofs_inode",
    "fuse": "fuse_inode",
    "before": "fuse_inode",
    "ext4": "ext4_inode_cache",
}


def memory(data: Dataset, reader: Reader, kinds: list[MountKind]) -> list[Result]:
    """From empty caches: list everything, read everything in chunk-wise order, unmount nothing, and
    look. Once told the order, once not."""
    if not GROUPS.is_dir():
        contenders.say("memory: no control groups of version 1, skipped")
        return []
    found = []
    with ControlGroup() as charged:
        contenders.drop_all_caches(data.folder)
        _read(charged, reader, data.source, contenders.in_random_order(data))
        base = charged.page_cache_bytes()
        found.append(_judged(data, base, "ext4", REPORTED))
    for kind in kinds:
        for known in (False, True):
            found.append(_of_mount(data, reader, kind, known))
    return found


def _of_mount(data: Dataset, reader: Reader, kind: MountKind, known: bool) -> Result:
    group = max(-(-data.chunks // 4), 1)
    with contenders.mounted(data, kind) as root:
        order = contenders.in_chunkwise_order(data, root, group)
    contenders.drop_all_caches(data.folder)
    with contenders.mounted(data, kind):
        # so that the interpreter's own files and the snapshot are in the page cache, and not
        # charged
        pass
    store = data.folder / "store"
    with (
        ControlGroup() as charged,
        contenders.mounted(
            data, kind, memory_mib=3 * memory_for_all(data), enter=charged.enter
        ) as root,
    ):
        _entered(charged, ["find", str(root), "-type", "f", "-size", "+1000000G"])
        before = charged.page_cache_bytes() - _in_page_cache(store)
        charged.start_over()
        if known:
            contenders.in_chunkwise_order(data, root, group)
        _read(charged, reader, root, order)
        contenders.settle(root)
        used = charged.page_cache_bytes() - _in_page_cache(store) - before
        peak, daemon = charged.peak_bytes, _daemon(contenders.described(root))
        how = "known order" if known else "no order known"
        return _judged(
            data,
            used,
            f"{kind.name}, {how}",
            PAGE_CACHE_BAR if kind.name == EROFS.name else REPORTED,
            names_mib=before / _MIB,
            peak_of_page_cache_and_shared_memory_mib=peak / _MIB,
            store_in_page_cache_mib=_in_page_cache(store) / _MIB,
            daemon_mib={name: value / _MIB for name, value in daemon.items()},
            daemon_bytes_per_file=daemon["anonymous"] / data.files,
        )


def _judged(data: Dataset, used: int, who: str, bar: Bar, **figures: object) -> Result:
    return judge(
        f"page cache a byte read after an epoch, {data}: {who}",
        used / data.payload_bytes,
        bar,
        page_cache_mib=used / _MIB,
        kernel_inode_bytes=_inode_bytes(_INODES[who.split(",")[0]]),
        **figures,
    )


def _read(charged: ControlGroup, reader: Reader, root: Path, order: Path) -> None:
    _entered(charged, [str(reader.program), str(root), str(order)])


def _entered(charged: ControlGroup, command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=charged.enter)


def _inode_bytes(cache: str) -> int | None:
    """Of one inode in the kernel's slab."""
    for line in Path("/proc/slabinfo").read_text().splitlines():
        if line.startswith(f"{cache} "):
            return int(line.split()[3])
    return None


def _daemon(described: dict[str, int]) -> dict[str, int]:
    """Of the supervisor and the server, or of the only process of an older version."""
    total = {"anonymous": 0, "files": 0, "shared": 0}
    for pid in {described["pid"], described.get("server_pid", described["pid"])}:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            for name, field in (
                ("anonymous", "RssAnon"),
                ("files", "RssFile"),
                ("shared", "RssShmem"),
            ):
                if line.startswith(field):
                    total[name] += int(line.split()[1]) << 10
    return total


def _in_page_cache(folder: Path) -> int:
    """Bytes of a directory's files that the kernel caches."""
    files = [str(path) for path in folder.rglob("*") if path.is_file()]
    total = 0
    for start in range(0, len(files), 1000):
        done = subprocess.run(
            ["fincore", "--bytes", "--noheadings", "--output", "RES", *files[start : start + 1000]],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        total += sum(map(int, done.stdout.split()))
    return total
