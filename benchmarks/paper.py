"""Takes the figures of docs/paper.md, one after the other, each in a process of its own; their JSON
lines go to stdout.

    python -m benchmarks.paper                     # all, full size: less than an hour, as root
    python -m benchmarks.paper --quick             # all, small: that they work, not what they say
    python -m benchmarks.paper "Table 2" "Fig. 9"  # some
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.run import QUICK


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the paper's, or one beside them, and what takes it."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """As it is typed."""
        return " ".join(["python -m", f"benchmarks.{self.module}", *self.arguments])


_LISTING = ("--only", "listing", "--fronts", "erofs", "--rounds", "2")
FIGURES = (
    Figure("Table 2", "bench_file_sizes", ("--rounds", "3")),
    Figure("Fig. 6", "bench_node_loss"),
    Figure("Fig. 9", "bench_writers", ("--rounds", "3")),
    Figure("Fig. 10a, 10b", "bench_lookups", ("--rounds", "3")),
    Figure("Fig. 10c", "bench_mount", _LISTING),
    Figure("Fig. 11a", "bench_peer_nodes", ("--nodes", "1,2,4")),
    Figure("Fig. 11b", "bench_peer_fill"),
    Figure("Fig. 12", "bench_readers", ("--rounds", "3")),
    Figure("Fig. 13", "bench_accuracy"),
    Figure("Fig. 14, 15", "bench_training"),
    Figure("Cache cluster", "bench_cache_cluster", ("--files", "3000", "--rounds", "3")),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="such as 'Fig. 9'; all if none is named")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    known = [figure.name for figure in FIGURES]
    if unknown := set(options.names) - set(known):
        parser.error(f"no figure {', '.join(sorted(unknown))}; there are {'; '.join(known)}")
    failed = 0
    for figure in FIGURES:
        if figure.name in (options.names or known):
            print(f"{figure.name}: {figure.command}", file=sys.stderr, flush=True)
            small = QUICK[figure.module] if options.quick else []
            command = [sys.executable, "-m", f"benchmarks.{figure.module}"]
            done = subprocess.run([*command, *figure.arguments, *small], check=False)
            failed |= done.returncode
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
