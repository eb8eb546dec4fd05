"""Does a mount give many readers more than one?

Figure 12 of the paper reads a shuffled epoch with 16 threads on each node. Here 1, 4 and 16 reader
processes (C) share the first epoch of a mount in chunk-wise order: batches of 64 files go round
among them, as a DataLoader deals them to its workers. All chunks are in node memory and no file is
in the page cache. ext4 is read in the same way in the same run, cold and warm.

Expectation on 2 cores: one reader keeps one core busy and the server half of the other one, so
more readers gain by what one reader leaves idle, and lose nothing by waiting for each other. With a
known order the mount is told it as the epoch begins, and one reader already finds filled pages.

    python -m benchmarks.bench_readers                        # as root
    python -m benchmarks.bench_readers --threads 1 --rounds 3 # of the mount's server
    python -m benchmarks.bench_readers --quick
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import mount_contenders as contenders
from benchmarks.harness import report, run_rounds, spread
from benchmarks.mount_bars import REPORTED, Bar, Result, judge, show_table
from benchmarks.mount_contenders import EROFS, Dataset, Reader
from benchmarks.mount_epochs import EXT4, EXT4_COLD, SMALL_BYTES, memory_for_all

BATCH_FILES = 64
_START_S = 0.5
"""The time in which all readers have started and read their lists."""


def shares(order: Path, readers: int) -> list[Path]:
    """The order dealt out to `readers`, in batches, as one list each."""
    paths = order.read_text().splitlines(keepends=True)
    batches = [paths[at : at + BATCH_FILES] for at in range(0, len(paths), BATCH_FILES)]
    lists = []
    for number in range(readers):
        path = order.with_name(f"{order.name}-{number}-of-{readers}")
        path.write_text("".join(line for batch in batches[number::readers] for line in batch))
        lists.append(path)
    return lists


def seconds(
    reader: Reader, root: Path, lists: Sequence[Path], begin: Callable[[], object] = lambda: None
) -> float:
    """The time in which as many processes as there are lists read all of them together.

    `begin` is called when they begin.
    """
    moment = time.monotonic() + _START_S
    running = [
        subprocess.Popen([reader.program, "-s", str(moment), root, each], stdout=subprocess.PIPE)
        for each in lists
    ]
    time.sleep(max(0.0, moment - time.monotonic()))
    begin()
    outputs = [each.communicate()[0] for each in running]
    if any(each.returncode for each in running):
        raise RuntimeError("a reader has failed")
    return max(float(json.loads(output)["seconds"]) for output in outputs)


def first_epoch(
    data: Dataset, reader: Reader, lists: Sequence[Path], group: int, threads: int, known: bool
) -> float:
    """The seconds of a first epoch; with `known`, the mount learns the order as it begins."""
    options = ("--threads", str(threads)) if threads else ()
    memory = memory_for_all(data) * (3 if known else 1)  # pages that are filled for a plan count
    with contenders.mounted(data, EROFS, *options, memory_mib=memory, preload=True) as root:
        contenders.list_all(root)
        contenders.fill_node_memory(data, root)

        def tell() -> None:
            if known:
                contenders.in_chunkwise_order(data, root, group)

        return seconds(reader, root, lists, tell)


def cold(data: Dataset, reader: Reader, lists: Sequence[Path]) -> float:
    """The seconds of an epoch of ext4 that was listed and has no content in memory."""
    contenders.drop_page_cache(data.folder)
    return seconds(reader, data.source, lists)


def measure(data: Dataset, reader: Reader, options: argparse.Namespace) -> list[Result]:
    group = max(-(-data.chunks // 2), 1)
    with contenders.mounted(data) as root:
        order = contenders.in_chunkwise_order(data, root, group)
    contenders.list_all(data.source)
    lists = {readers: shares(order, readers) for readers in options.readers}
    turns: dict[str, Callable[[], float]] = {}
    for readers, own in lists.items():
        for threads in options.threads:
            for known in (False, True):
                turns[_name(readers, threads, known)] = partial(
                    first_epoch, data, reader, own, group, threads, known
                )
        turns[f"{EXT4_COLD}, {readers}"] = partial(cold, data, reader, own)
        turns[f"{EXT4}, {readers}"] = partial(seconds, reader, data.source, own)
    times = run_rounds(turns, options.rounds, warm_up=0, alternates=True)
    rates = {name: data.files / times.median(name) for name in turns}
    report(f"first epoch of several readers, {data}", files_per_s=rates)
    fewest, most = min(lists), max(lists)
    found = []
    for threads in options.threads:
        for known in (False, True):
            for readers in sorted(lists)[1:]:
                ratios = times.ratios(_name(readers, threads, known), _name(fewest, threads, known))
                name, bar = _name(readers, threads, known), Bar(least=1.5 if readers == most else 1)
                over = times.ratios(name, f"{EXT4_COLD}, {readers}")
                found.append(judge(f"{name} x {fewest}", ratios, bar, over_ext4_cold=spread(over)))
    for state in (EXT4_COLD, EXT4):
        ratios = times.ratios(f"{state}, {most}", f"{state}, {fewest}")
        found.append(judge(f"{state}, {most} readers x {fewest}", ratios, REPORTED))
    return found


def _name(readers: int, threads: int, known: bool) -> str:
    order = "known" if known else "unknown"
    return f"{readers} readers, order {order}, threads {threads or 'by cores'}"


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--readers", type=_numbers, default=[1, 4, 16], help="such as 1,16")
    parser.add_argument(
        "--threads", type=_numbers, default=[0], help="of the server; 0: its default"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=50_000, help="of 4 KiB")
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.files = 1, 4000
    contenders.require_tools()
    with contenders.dataset(options.files, SMALL_BYTES) as data, contenders.reader() as reader:
        show_table(measure(data, reader, options))


if __name__ == "__main__":
    main()
