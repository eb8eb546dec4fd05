"""Does packing a directory keep up with tar?

`dlcmd put -j 2` of a warm directory, index included, the whole command timed, against `tar cf` of
the same tree to the same disk and a sync of that file: both durable. Expectation: tar does one
thread of open, fstat, read and write; two packers do that and the hashing, and one core's worth of
index, so about as fast as tar on two cores. The snapshot that a put publishes by default is not in
it: `bench_publish` says what that costs.

    python -m benchmarks.bench_put                  # 500,000 files of 4 KiB, 5,000 of 110 KiB
    python -m benchmarks.bench_put --files 50000 --rounds 3

With `--before CHECKOUT` it answers another question: is `dlcmd put` as fast as in an older version?
Both put the same source in turn, with `--s3` into an S3 server on loopback that answers after 20
ms; the ratio is the older version's seconds over this one's, of the clock and of the processors.
Expectation: 1 within the machine's noise. With `--s3` a put takes 0.05 s more for its listings,
whatever its size. Compile the modules of both first (`python -m compileall`).

    python -m benchmarks.bench_put --before ../older --files 50000 [--s3]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from benchmarks.harness import (
    REPOSITORY,
    dlcmd,
    dlcmd_environment,
    empty,
    make_tree,
    report,
    run_rounds,
    scratch,
    spread,
    warm,
)
from benchmarks.throttling_server import CREDENTIALS, Throttling, throttling_server


def compare(files: int, size_bytes: int, rounds: int, folder: Path) -> None:
    source, ours, theirs = folder / "source", folder / "ours", folder / "theirs"
    make_tree(source, files, 100, size_bytes)
    warm(source)

    def put() -> None:
        dlcmd("put", "-q", "-j", "2", "--no-publish", f"{source}/", "dl://bench", folder=ours)

    def tar() -> None:
        archive = theirs / "source.tar"
        subprocess.run(["tar", "cf", archive, "-C", source, "."], check=True)
        subprocess.run(["sync", archive], check=True)

    def clean() -> float:
        empty(ours)
        empty(theirs)
        return 0.0

    times = run_rounds(
        {"clean": clean, "dlcmd put": put, "clean again": clean, "tar + sync": tar}, rounds
    )
    report(
        f"dlcmd put -j 2 of {files} files of {size_bytes} bytes against tar + sync",
        ratio=spread(times.ratios("dlcmd put", "tar + sync")),
        put_files_per_s=files / times.median("dlcmd put"),
        tar_files_per_s=files / times.median("tar + sync"),
    )


def compare_versions(
    files: int, size_bytes: int, rounds: int, folder: Path, older: Path, s3: bool
) -> None:
    source, ours = folder / "source", folder / "ours"
    make_tree(source, files, 100, size_bytes)
    warm(source)
    seconds: dict[str, list[float]] = {"now": [], "before": []}
    processor: dict[str, list[float]] = {"now": [], "before": []}
    for number in range(rounds):
        turns = [("now", REPOSITORY), ("before", older)]
        for name, checkout in turns[:: 1 if number % 2 else -1]:
            empty(ours)
            with s3_server() if s3 else nullcontext({}) as place:
                wall_s, processor_s = put_with(checkout, source, ours, place)
            seconds[name].append(wall_s)
            processor[name].append(processor_s)
    report(
        f"dlcmd put -j 2 of {files} files of {size_bytes} bytes{' to S3' * s3}: before / now",
        ratio=ratio_of(seconds),
        ratio_of_processor_time=ratio_of(processor),
        files_per_s=files / min(seconds["now"]),
    )


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """The variables of a server that is never busy, an empty one each time."""
    with throttling_server(Throttling(uploads_per_s=1e6, latency_s=0.02)) as url:
        yield CREDENTIALS | {"DIESELFS_STORE": url}


def put_with(
    checkout: Path, source: Path, folder: Path, place: Mapping[str, str]
) -> tuple[float, float]:
    """The seconds of the clock and of the processors that a put by this checkout takes."""
    environment = dlcmd_environment(folder) | {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    environment |= place
    command = [f"{checkout}/.venv/bin/python", "-m", "dieselfs.cli", "put", "-q", "-j", "2"]
    before, began = os.times(), time.perf_counter()
    subprocess.run(
        [*command, "--no-publish", f"{source}/", "dl://bench"], env=environment, check=True
    )
    after, ended = os.times(), time.perf_counter()
    used_s = after.children_user + after.children_system
    return ended - began, used_s - before.children_user - before.children_system


def ratio_of(seconds: dict[str, list[float]]) -> dict[str, float]:
    return spread([b / n for n, b in zip(seconds["now"], seconds["before"], strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--files", type=int, default=500_000, help="of 4 KiB; a hundredth as many of 110 KiB"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--before", type=Path, help="a checkout of an older version, with its .venv"
    )
    parser.add_argument("--s3", action="store_true", help="with --before: into an S3 server")
    options = parser.parse_args()
    for files, size_bytes in ((options.files, 4096), (max(options.files // 100, 1000), 110 << 10)):
        with scratch("put") as folder:
            if options.before is None:
                compare(files, size_bytes, options.rounds, folder)
            else:
                older = options.before.resolve()
                compare_versions(files, size_bytes, options.rounds, folder, older, options.s3)


if __name__ == "__main__":
    main()
