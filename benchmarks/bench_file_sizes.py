"""How does the rate of reading depend on the size of the files (DIESEL Table 2)?

Files of 1 KiB to 4 MiB, read once from a cold disk: from ext4 in random order, which is what the
paper's table shows of its storage; through a mount and through `Client.get` in chunk-wise order,
with memory for a fifth of the chunks. Nothing is in the page cache or in node memory when the clock
starts; names have been listed. Contenders take turns.

Expectation: ext4 pays for a random read of the disk each file, 50 to 100 us on a virtual disk, so
its bandwidth grows with the size until the disk's own is reached, at 64 KiB or 256 KiB. Chunk-wise
each request is 4 MiB whatever the files: small files cost what the reader does for a file (3 us in
C through the mount, 1.5 us by `get`) and a copy, so many times ext4's rate at 1 KiB, and 0.5 to 1
time at 4 MiB, where there is nothing to gain and a mount copies twice.

As root:

    python -m benchmarks.bench_file_sizes [--mib 256] [--rounds 3] [--quick]
"""

from __future__ import annotations

import argparse
import secrets
import time

from benchmarks import mount_contenders as contenders
from benchmarks.harness import report, run_rounds, spread
from benchmarks.mount_contenders import Dataset, Reader
from benchmarks.mount_epochs import cold_ext4
from dieselfs.client import connect

PAPER_MB_PER_S = {
    1 << 10: 33.54,
    4 << 10: 128.28,
    16 << 10: 464.44,
    64 << 10: 1317.04,
    256 << 10: 2725.93,
    1 << 20: 3104.26,
    4 << 20: 3197.68,
}
"""The rates of the paper's storage cluster (6 machines, 6 SSDs each), by the size of files."""
MOST_FILES = 100_000
GROUPS = 10


class ColdEpochs:
    """One epoch of each contender, from a disk of which nothing is cached."""

    def __init__(self, data: Dataset, reader: Reader) -> None:
        self._data, self._reader = data, reader
        self._group = max(data.chunks // GROUPS, 1)
        memory_bytes = (2 * self._group + 2) * data.chunk_bytes
        self._memory_mib = (memory_bytes >> 20) + 1
        self._random = contenders.in_random_order(data)

    def ext4(self) -> float:
        return cold_ext4(self._data, self._reader, self._random)

    def mount(self) -> float:
        contenders.drop_all_caches(self._data.folder)
        with contenders.mounted(self._data, memory_mib=self._memory_mib) as root:
            contenders.list_all(root)
            contenders.drop_page_cache(self._data.folder)
            begin = time.perf_counter()
            order = contenders.in_chunkwise_order(self._data, root, self._group)
            told = time.perf_counter() - begin
            return told + self._reader.seconds(root, order)

    def api(self) -> float:
        contenders.drop_all_caches(self._data.folder)
        folder = self._data.folder
        store, index = f"file://{folder}/store", f"lmdb://{folder}/index"
        with connect("bench", store=store, index=index) as client:
            client.load_meta(client.save_meta())
            task = f"bench-{secrets.token_hex(4)}"
            client.open_memory(self._memory_mib << 20, task)
            contenders.drop_page_cache(folder)
            begin = time.perf_counter()
            read = sum(map(len, map(client.get, client.shuffle(seed=1, group_size=self._group))))
            elapsed = time.perf_counter() - begin
        if read != self._data.payload_bytes:
            raise RuntimeError(f"{read} bytes instead of {self._data.payload_bytes}")
        return elapsed


def measure(size_bytes: int, files: int, reader: Reader, rounds: int) -> None:
    with contenders.dataset(files, size_bytes, min(100, files)) as data:
        epochs = ColdEpochs(data, reader)
        turns = {"ext4": epochs.ext4, "mount": epochs.mount, "API": epochs.api}
        taken = run_rounds(turns, rounds, alternates=True)
    rates = {name: files / taken.median(name) for name in turns}
    report(
        f"cold epoch, {data}: chunk-wise through mount and API, over ext4 in random order",
        ratio={name: spread(taken.ratios(name, "ext4")) for name in ("mount", "API")},
        mb_per_s={name: rate * size_bytes / 1e6 for name, rate in rates.items()},
        files_per_s=rates,
        iops_of_4_kib={name: rate * size_bytes / 4096 for name, rate in rates.items()},
        paper_mb_per_s=PAPER_MB_PER_S[size_bytes],
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256, help="of each size, at most 100,000 files")
    parser.add_argument("--sizes", help="in bytes: 1024,4096,… (default: the paper's seven)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")] if options.sizes else PAPER_MB_PER_S
    if options.quick:
        options.mib, options.rounds, sizes = 16, 1, [4 << 10, 4 << 20]
    contenders.require_tools()
    with contenders.reader() as reader:
        for size_bytes in sizes:
            files = min((options.mib << 20) // size_bytes, MOST_FILES)
            measure(size_bytes, files, reader, options.rounds)


if __name__ == "__main__":
    main()
