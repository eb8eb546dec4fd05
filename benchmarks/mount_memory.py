"""Memory held after an epoch over a dataset: by the daemon, in shared memory, in the page cache and as inodes and names."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from benchmarks import mount_contenders as contenders
from benchmarks.harness import report

_MIB = 1 << 20


def memory(files: int, size_bytes: int, memory_mib: int) -> None:
    """From empty caches: list everything, read everything in chunk-wise order. The same on ext4 beside it."""
    with contenders.dataset(files, size_bytes) as data, contenders.reader() as reader:
        with contenders.ours(data) as root:
            order = contenders.in_chunkwise_order(data, root, max(data.chunks // 10, 1))
        used: dict[str, dict[str, int]] = {}
        contenders.drop_all_caches(data.folder)
        with contenders.ours(data):
            pass  # so that the interpreter's own files are in the page cache already
        before = _system()
        with contenders.ours(data, memory_mib=memory_mib) as root:
            contenders.list_all(root)
            listed = _used_since(before, _daemon(root))
            reader.seconds(root, order)
            contenders.settle(root)
            daemon = _daemon(root)
            used["ours"] = _used_since(before, daemon)
            store = _in_page_cache(data.folder / "store")
        contenders.drop_all_caches(data.folder)
        before = _system()
        contenders.list_all(data.source)
        reader.seconds(data.source, order)
        used["ext4"] = _used_since(before)
        report(
            f"memory held after an epoch, {data}, {memory_mib} MiB for chunks",
            ratio=used["ours"]["total"] / used["ext4"]["total"],
            daemon_bytes_per_file=daemon["pss"] / files,
            daemon_mib=_mib(daemon),
            ours_mib=_mib(used["ours"]),
            of_it_store_in_page_cache_mib=store / _MIB,
            ours_when_listed_mib=_mib(listed),
            ext4_mib=_mib(used["ext4"]),
            dataset_mib=data.payload_bytes / _MIB,
        )


def _system() -> dict[str, int]:
    """Bytes in use of the whole machine, by kind."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    field = {name: int(rest.split()[0]) << 10 for name, rest in (line.split(":") for line in lines)}
    return {
        "page_cache": field["Cached"] + field["Buffers"] - field["Shmem"],
        "shared_memory": field["Shmem"],
        "slab": field["Slab"],
    }


def _used_since(before: dict[str, int], daemon: dict[str, int] | None = None) -> dict[str, int]:
    """By the whole machine, but for the processes' own memory: other work would change that most, so the daemon's stands for it."""
    now = _system()
    used = {name: now[name] - before[name] for name in before}
    if daemon is not None:
        used["daemon_anonymous"] = daemon["rss_anonymous"]
    return used | {"total": sum(used.values())}


def _daemon(root: Path) -> dict[str, int]:
    pid = json.loads((root / ".dieselfs/dataset.json").read_text())["pid"]
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    pss = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    resident = {
        line.split(":")[0]: int(line.split()[1]) << 10
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith(("VmRSS", "RssAnon", "RssFile", "RssShmem"))
    }
    return {
        "pss": pss["Pss"],
        "rss": resident["VmRSS"],
        "rss_anonymous": resident["RssAnon"],
        "rss_files": resident["RssFile"],
        "rss_shared": resident["RssShmem"],
    }


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


def _mib(parts: dict[str, int]) -> dict[str, float]:
    return {name: value / _MIB for name, value in parts.items()}
