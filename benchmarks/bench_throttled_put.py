"""Does a put use what a throttling store gives, without an error?

`dlcmd put -j 2` into an S3 server on loopback that throttles tenfold for 30 s (503 above its rate,
and ten times the latency), against the same put into a server without throttling whose rate is the
mean of the other's. Bar: at least 0.9 times as fast, and no error. Then, without any throttling,
into a server without a limit and into a local folder, if wanted beside another checkout.
Expectation: what is lost are the pauses that are under way when the throttling ends, some 2 s, and
the recovery of the limit, some 24 uploads, of 60 s.

    python -m benchmarks.bench_throttled_put                     # 3 rounds of 2 × 60 s
    python -m benchmarks.bench_throttled_put --quick
    python -m benchmarks.bench_throttled_put --unthrottled --before CHECKOUT   # ratios to its dlcmd
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path

from benchmarks.harness import (
    DLCMD,
    REPOSITORY,
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

CHUNK_BYTES, FILE_BYTES = 1 << 20, 256 << 10
_FULL_RATE = 1e6


class Bench:
    """The puts of one source."""

    def __init__(self, folder: Path, uploads: int, jobs: int) -> None:
        self._folder, self._jobs = folder, jobs
        self.repeated: list[int] = []
        self.least: list[int] = []
        self.uploads = uploads
        self.files = uploads * CHUNK_BYTES // FILE_BYTES
        self.source = folder / "source"
        make_tree(self.source, self.files, 20, FILE_BYTES)
        warm(self.source)

    def into(self, store: str, checkout: Path = REPOSITORY) -> float:
        """Put the source into an empty store; the seconds of the whole command."""
        place = self._folder / "place"
        empty(place)
        environment = dlcmd_environment(place) | CREDENTIALS
        environment |= {"PYTHONPATH": str(checkout)}
        if store:
            environment["DIESELFS_STORE"] = store
        began = time.perf_counter()
        done = subprocess.run(
            [
                *DLCMD,
                *("put", "--json", "--no-publish", "--chunk-size", str(CHUNK_BYTES)),
                *("-j", str(self._jobs), f"{self.source}/", "dl://bench"),
            ],
            env=environment,
            cwd="/",
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        seconds = time.perf_counter() - began
        result = json.loads(done.stdout.splitlines()[-1])
        if result["files"] != self.files or result["failed"]:
            raise RuntimeError(f"not all is put: {result}")
        self.repeated.append(result.get("uploads_repeated", -1))
        self.least.append(result.get("least_uploads_at_once", -1))
        return seconds

    def into_server(self, rules: Throttling, checkout: Path = REPOSITORY) -> float:
        """Put the source into a new server."""
        with throttling_server(rules) as url:
            return self.into(url, checkout)


def compare(bench: Bench, throttled: Throttling, even: Throttling, rounds: int) -> None:
    """Run the throttled and the even put in turns."""
    times = run_rounds(
        {
            "throttled": lambda: bench.into_server(throttled),
            "even": lambda: bench.into_server(even),
        },
        rounds,
        warm_up=0,
        alternates=True,
    )
    report(
        f"dlcmd put of {bench.uploads} chunks, {throttled.lasts_s:g} s of it throttled tenfold, "
        "against an even store of the same mean",
        ratio=spread(times.ratios("throttled", "even")),
        throttled_s=times.median("throttled"),
        even_s=times.median("even"),
        errors=0,
        uploads_repeated=max(bench.repeated),
        least_uploads_at_once=min(bench.least),
    )


def not_throttled(bench: Bench, before: Path | None, rounds: int) -> None:
    """Run puts into fast stores, in turns with those of another checkout if one is given."""
    fast = Throttling(_FULL_RATE, 0.0)
    contenders = {
        "fast server": lambda: bench.into_server(fast),
        "folder": lambda: bench.into(""),
    }
    if before is not None:
        old = before.resolve()
        contenders |= {
            "fast server, before": lambda: bench.into_server(fast, old),
            "folder, before": lambda: bench.into("", old),
        }
    times = run_rounds(contenders, rounds, alternates=True)
    for place in ("fast server", "folder"):
        ratio = spread(times.ratios(place, f"{place}, before")) if before else None
        report(
            f"dlcmd put of {bench.uploads} chunks into a {place} without throttling",
            **({"ratio": ratio} if ratio else {}),
            seconds=spread(times.seconds[place]),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=30, help="uploads of 1 MiB a second")
    parser.add_argument("--latency", type=float, default=0.1, help="seconds of each upload")
    parser.add_argument("--seconds", type=float, default=60, help="of each put")
    parser.add_argument("--throttled", type=float, default=30, help="seconds of them")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--unthrottled", action="store_true", help="only what is not throttled")
    parser.add_argument("--quick", action="store_true", help="10 s of which 5 s are throttled")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.throttled, options.rounds = 10, 5, 1
    uploads = int(options.rate * (options.seconds - 0.9 * options.throttled))
    begins_s = (options.seconds - options.throttled) / 3
    throttled = Throttling(options.rate, options.latency, begins_s, options.throttled)
    even = Throttling(uploads / options.seconds, options.latency)
    with scratch("throttled") as folder:
        bench = Bench(folder, uploads, options.jobs)
        if not options.unthrottled:
            compare(bench, throttled, even, options.rounds)
        not_throttled(bench, options.before, options.rounds)


if __name__ == "__main__":
    main()
