"""Does reading through a mount cost what it costs on a local disk?

Our mount against the same tree on ext4 (warm, and cold after dropping the caches), squashfuse_ll, the kernel's squashfs (uncompressed image)
and `dlcmd mount --plain`. A C reader opens, reads and closes files in a given order; contenders take turns. Expectation: what the kernel has
in its caches costs no request, so warm epochs and second listings run at the speed of ext4 (3-4 us a file of 4 KiB); a first epoch costs one
copy into the page cache ahead of the reader; a first listing one copy of each name and inode, about 3 us.

    warm         epochs of 4 KiB and 110 KiB files, random order, 1 and 2 threads
    first        a first epoch after a listing, chunks in the daemon's memory, 4 KiB and 110 KiB
    cold         the same from the local store with cold caches
    listing      ls -lR of 1.28 million files
    imagefolder  torchvision's ImageFolder built over 50,000 files
    loader       a stock DataLoader over it, warm
    memory       held for a dataset of 2 GB
    scale        rates from 10,000 to 1,280,000 files

    python -m benchmarks.bench_mount                        # all, as root
    python -m benchmarks.bench_mount --only warm,first
    python -m benchmarks.bench_mount --only cold --only-size 4096 --group 4
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from benchmarks import mount_contenders, mount_epochs, mount_listings, mount_memory
from benchmarks.mount_epochs import LARGE_BYTES, SMALL_BYTES

_SCALE_ROUNDS = 3
"""At most: the largest dataset takes minutes a round."""


def sections(options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    rounds, group = options.rounds, options.group
    epochs = [
        (files, size)
        for files, size in ((options.files, SMALL_BYTES), (options.large_files, LARGE_BYTES))
        if options.only_size in (None, size)
    ]

    def warm() -> None:
        for files, size in epochs:
            mount_epochs.warm(files, size, rounds)

    def first() -> None:
        for files, size in epochs:
            mount_epochs.first(files, size, rounds, group)

    def cold() -> None:
        for files, size in epochs:
            mount_epochs.cold(files, size, rounds, group)

    listed, folders = options.listing_files, min(1000, max(options.listing_files // 100, 1))
    scale_rounds = min(rounds, _SCALE_ROUNDS)
    return {
        "warm": warm,
        "first": first,
        "cold": cold,
        "listing": lambda: mount_listings.listing(listed, folders, options.listing_bytes, rounds),
        "imagefolder": lambda: mount_listings.imagefolder(options.files, rounds),
        "loader": lambda: mount_listings.loader(options.files, SMALL_BYTES, rounds),
        "memory": lambda: mount_memory.memory(options.memory_files, SMALL_BYTES, 1024),
        "scale": lambda: mount_epochs.scale(options.scale, SMALL_BYTES, scale_rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="sections, with commas between; all by default")
    parser.add_argument("--rounds", type=int, default=5, help=f"(scale: at most {_SCALE_ROUNDS})")
    parser.add_argument("--files", type=int, default=50_000, help="of 4 KiB")
    parser.add_argument("--large-files", type=int, default=5_000, help="of 110 KiB")
    parser.add_argument("--only-size", type=int, help="epochs of files of this size alone, bytes")
    parser.add_argument("--group", type=int, help="chunks shuffled together in first and cold")
    parser.add_argument("--listing-files", type=int, default=1_280_000)
    parser.add_argument("--listing-bytes", type=int, default=0, help="size of the listed files")
    parser.add_argument("--memory-files", type=int, default=500_000, help="of 4 KiB")
    parser.add_argument(
        "--scale", type=_numbers, default=[10_000, 100_000, 1_280_000], help="such as 1000,10000"
    )
    parser.add_argument("--nice", type=int, default=0, help="such as -15, daemons included")
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.files, options.large_files = 1, 2000, 200
        options.listing_files, options.memory_files, options.scale = 5000, 5000, [1000, 3000]
    known = sections(options)
    wanted = options.only.split(",") if options.only else list(known)
    if unknown := set(wanted) - set(known):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    mount_contenders.require_tools()
    os.nice(options.nice)
    for name in wanted:
        mount_contenders.say(f"{name}:")
        known[name]()


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
