"""What does a READ cost that misses, when the store's object is in the page cache?

One reader opens, reads and closes files of 110 KiB in random order through a mount whose memory
helps none of them, and drops the kernel's pages before each round. The store lies on a tmpfs, so
its objects are always in memory. Two kinds of miss:

    range   node memory has no room: each READ takes its bytes from the store
    chunk   memory for three chunks, the least recently used one leaves: the first READ of a file
            loads its whole chunk of 4 MiB

Expectation: a READ changes threads twice, to the store and back. That costs 20-50 us, the copies
and the hash of 110 KiB 40 us, a chunk of 4 MiB 2-3 ms. `--against` names another checkout, whose
`.venv/bin/python` takes turns with this one's; the ratio is this version's time over its time,
round by round.

    python -m benchmarks.bench_read_miss --against ../older --nice -15
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import mount_contenders as contenders
from benchmarks.harness import REPOSITORY, report, run_rounds, spread
from benchmarks.mount_contenders import FRONTS, Dataset, MountKind, Reader

FILE_BYTES = 110 << 10
OPTIONS = {"range": (1, ()), "chunk": (13, ("--eviction", "lru"))}
"""MiB of memory, and flags."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another checkout, with its .venv")
    parser.add_argument("--fronts", default="erofs,fuse")
    parser.add_argument("--misses", default="range,chunk")
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--nice", type=int, default=0, help="such as -15, daemons included")
    options = parser.parse_args()
    contenders.require_tools()
    os.nice(options.nice)
    with contenders.reader() as reader, _dataset(options.files) as data:
        for front in options.fronts.split(","):
            for miss in options.misses.split(","):
                _measure(data, reader, front, miss, options.against, options.rounds)


@contextmanager
def _dataset(files: int) -> Iterator[Dataset]:
    """Put the store on a tmpfs: reads of whole chunks drop their pages from any other file
    system."""
    with tempfile.TemporaryDirectory(prefix="dieselfs-miss-", dir="/dev/shm") as memory:
        with contenders.dataset(files, FILE_BYTES, store=Path(memory)) as data:
            yield data


def _measure(
    data: Dataset, reader: Reader, front: str, miss: str, against: Path | None, rounds: int
) -> None:
    kinds = [_kind("now", REPOSITORY, front)]
    if against is not None:
        kinds.append(_kind("before", against.resolve(), front))
    order = contenders.in_random_order(data)
    files = data.files if miss == "range" else data.files // 5
    order.write_text("".join(order.read_text().splitlines(keepends=True)[:files]))
    memory_mib, flags = OPTIONS[miss]
    with ExitStack() as stack:
        roots = {
            kind.name: stack.enter_context(
                contenders.mounted(data, kind, "--prefill", "0", *flags, memory_mib=memory_mib)
            )
            for kind in kinds
        }
        reader.verify(list(roots.values()), order)
        before = {name: _requests(root) for name, root in roots.items()}

        def epoch(root: Path) -> float:
            contenders.drop_page_cache(data.folder)
            return reader.seconds(root, order)

        times = run_rounds(
            {name: lambda root=root: epoch(root) for name, root in roots.items()},
            rounds,
            alternates=True,
        )
        reads = {
            name: (_requests(root) - before[name]) / (rounds + 1) / files
            for name, root in roots.items()
        }
    ratio = {} if against is None else {"ratio": spread(times.ratios("before", "now"))}
    report(
        f"miss of a file of 110 KiB, {miss}, {front}: time now / before",
        **ratio,
        us_a_file={name: times.median(name) / files * 1e6 for name in roots},
        reads_a_file=reads,
    )


def _kind(name: str, checkout: Path, front: str) -> MountKind:
    program = str(checkout / ".venv/bin/python")
    return MountKind(
        name, (program, "-m", "dieselfs.cli"), FRONTS[front].options, front, source=checkout
    )


def _requests(root: Path) -> int:
    return contenders.read_requests(contenders.statistics(root))


if __name__ == "__main__":
    main()
