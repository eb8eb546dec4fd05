"""Does reading through a mount cost what it costs on a local disk?

Our mount against the same tree on ext4 (warm, and cold after dropping the caches), and against an
older version's mount where its `dlcmd` is given. A C reader opens, reads and closes files in a
given order; contenders take turns within a round. Expectation: what the kernel has in its caches
costs no request, and EROFS answers all but bytes that are not in memory, so warm epochs and second
listings run at the speed of ext4 (3-4 us a file of 4 KiB). A first epoch costs a READ a MiB and a
second copy of small files: 1.2 us a file.

    warm         epochs of 4 KiB and 110 KiB files, random order, 1 and 2 threads, over ext4's
    loader       a stock PyTorch DataLoader over an ImageFolder, 2 workers, warm, over ext4's
    imagefolder  torchvision's ImageFolder built on a fresh mount: time over ext4's
    listing      ls -lR and ls -R of 1.28 million files: first on a fresh mount, second over ext4's
    first        a first epoch from the daemon's memory, chunk-wise and known order, over the older
                 version's
    unknown      the same while the mount is not told the order (reported)
    random       the same in full random order, no plan, over ext4 cold
    cold         from the local store with cold caches in the known order, over ext4 cold in random
                 order
    plan         over a slow disk with memory for 2 % (bench_plan)
    survival     SIGKILLs of the server, snapshot swaps and upgrades under readers (bench_survival)
    startup      mounting 1.28 million files, image present and to be built: typed until the first
                 READ
    memory       page cache a byte read; kernel inodes
    scale        rates from 10,000 to 1,280,000 files (only where it is named)

    python -m benchmarks.bench_mount --before /opt/older/bin/dlcmd      # all, as root
    python -m benchmarks.bench_mount --only warm,first --fronts erofs,erofs-loop,fuse --rounds 3

Each measure is a JSON line with its bar; a table on stderr ends the run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import (
    bench_plan,
    bench_survival,
    mount_contenders,
    mount_epochs,
    mount_listings,
    mount_memory,
    mount_startup,
)
from benchmarks.mount_bars import Result, show_table
from benchmarks.mount_contenders import EROFS, FRONTS, Dataset, MountKind
from benchmarks.mount_epochs import LARGE_BYTES, SMALL_BYTES

_SCALE_ROUNDS = 3
"""At most: the largest dataset takes minutes a round."""
_PLAN_ROUNDS = 3
_NOT_BY_DEFAULT = ("scale",)


class Datasets:
    """Made once, for all sections that read files of the same size."""

    def __init__(self, stack: ExitStack, files: dict[int, int], squashfs: bool) -> None:
        self._stack, self._files, self._squashfs = stack, files, squashfs
        self._made: dict[int, Dataset] = {}

    def of(self, size_bytes: int) -> Dataset:
        if size_bytes not in self._made:
            made = mount_contenders.dataset(
                self._files[size_bytes], size_bytes, image=self._squashfs
            )
            self._made[size_bytes] = self._stack.enter_context(made)
        return self._made[size_bytes]

    def all(self) -> Iterator[Dataset]:
        for size_bytes in self._files:
            yield self.of(size_bytes)


def sections(
    options: argparse.Namespace,
    kinds: list[MountKind],
    datasets: Datasets,
    reader: mount_contenders.Reader,
) -> dict[str, Callable[[], Sequence[Result] | None]]:
    rounds, group = options.rounds, options.group
    listed, folders = options.listing_files, min(1000, max(options.listing_files // 100, 2))

    def each_size(measure: Callable[[Dataset], list[Result]]) -> Callable[[], list[Result]]:
        return lambda: [result for data in datasets.all() for result in measure(data)]

    return {
        "warm": each_size(
            lambda data: mount_epochs.warm(data, reader, rounds, kinds, options.squashfs)
        ),
        "loader": lambda: mount_listings.loader(datasets.of(SMALL_BYTES), reader, rounds, kinds),
        "imagefolder": lambda: mount_listings.imagefolder(datasets.of(SMALL_BYTES), rounds, kinds),
        "listing": lambda: mount_listings.listing(listed, folders, rounds, kinds),
        "first": each_size(lambda data: mount_epochs.first(data, reader, rounds, kinds, group)),
        "unknown": each_size(
            lambda data: mount_epochs.first(data, reader, rounds, kinds, group, known=False)
        ),
        "random": lambda: mount_epochs.first_in_random_order(
            datasets.of(SMALL_BYTES), reader, rounds, kinds
        ),
        "cold": each_size(lambda data: mount_epochs.cold(data, reader, rounds, kinds, group)),
        "plan": lambda: _plan(options, reader.program),
        "survival": lambda: _survival(options, kinds),
        "startup": lambda: mount_startup.startup(listed, folders, rounds, kinds),
        "memory": each_size(lambda data: mount_memory.memory(data, reader, kinds)),
        "scale": lambda: mount_epochs.scale(options.scale, SMALL_BYTES, min(rounds, _SCALE_ROUNDS)),
    }


def _plan(options: argparse.Namespace, reader: Path) -> list[Result]:
    share, group = (0.4, 2) if options.quick else (None, None)
    known = bench_plan.sections(min(options.rounds, _PLAN_ROUNDS), "erofs", share, group)
    found = []
    for files, size in ((options.plan_files, SMALL_BYTES), (options.plan_large_files, LARGE_BYTES)):
        with bench_plan.packed(files, size) as data:
            for name in ("fast", "paced"):
                found += known[name](data, reader)
    return found


def _survival(options: argparse.Namespace, kinds: list[MountKind]) -> list[Result]:
    events = {"kills": 200, "swaps": 50, "upgrades": 20}
    files, large_files = 20_000, 2_000
    if options.quick:
        events, files, large_files = {"kills": 6, "swaps": 4, "upgrades": 2}, 2_000, 200
    return [
        result
        for kind in kinds
        if kind.front is not None
        for result in bench_survival.survive(kind, events, files, large_files)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="sections, with commas between; all by default")
    parser.add_argument("--fronts", default=EROFS.name, help=f"of {','.join(FRONTS)}")
    parser.add_argument("--before", type=Path, help="an older version's dlcmd, to compare with")
    parser.add_argument("--squashfs", action="store_true", help="compare warm epochs with it")
    parser.add_argument(
        "--rounds", type=int, default=5, help=f"(plan and scale: at most {_SCALE_ROUNDS})"
    )
    parser.add_argument("--files", type=int, default=50_000, help="of 4 KiB")
    parser.add_argument("--large-files", type=int, default=5_000, help="of 110 KiB")
    parser.add_argument("--only-size", type=int, help="epochs of files of this size alone, bytes")
    parser.add_argument("--group", type=int, help="chunks shuffled together in first and cold")
    parser.add_argument("--listing-files", type=int, default=1_280_000)
    parser.add_argument("--plan-files", type=int, default=524_288, help="of 4 KiB")
    parser.add_argument("--plan-large-files", type=int, default=19_456, help="of 110 KiB")
    parser.add_argument(
        "--scale", type=_numbers, default=[10_000, 100_000, 1_280_000], help="such as 1000,10000"
    )
    parser.add_argument("--nice", type=int, default=0, help="such as -15, daemons included")
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.files, options.large_files = 1, 2000, 200
        options.listing_files, options.scale = 5000, [1000, 3000]
        options.plan_files, options.plan_large_files = 40_960, 400
    if unknown := set(options.fronts.split(",")) - set(FRONTS):
        parser.error(f"no front {', '.join(sorted(unknown))}; there are {', '.join(FRONTS)}")
    kinds = [FRONTS[name] for name in options.fronts.split(",")]
    kinds += [] if options.before is None else [mount_contenders.before(options.before)]
    mount_contenders.require_tools(options.squashfs)
    os.nice(options.nice)
    show_table(list(_measured(parser, options, kinds)))


def _measured(
    parser: argparse.ArgumentParser, options: argparse.Namespace, kinds: list[MountKind]
) -> Iterator[Result]:
    sizes = {SMALL_BYTES: options.files, LARGE_BYTES: options.large_files}
    sizes = {size: files for size, files in sizes.items() if options.only_size in (None, size)}
    with ExitStack() as stack:
        reader = stack.enter_context(mount_contenders.reader())
        datasets = Datasets(stack, sizes, options.squashfs)
        known = sections(options, kinds, datasets, reader)
        chosen = options.only.split(",") if options.only else []
        wanted = chosen or [name for name in known if name not in _NOT_BY_DEFAULT]
        if unknown := set(wanted) - set(known):
            parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        for name in wanted:
            mount_contenders.say(f"{name}:")
            yield from known[name]() or ()


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
