"""Runs seeds of the simulation: `python -m tests.simulation.run [--seeds 1000] [--seed 123
[--trace]]`. Ends with 1 if one fails.

What fails is printed with the command that runs it again, to the same end.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.simulation.scenario import scenario_of
from tests.simulation.task import Outcome, World

STUCK_S: Final = 120
"""Of real time in one seed: a real lock is waited for, or a thread computes for ever."""
SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    what: str

    def __str__(self) -> str:
        scenario = "\n".join(scenario_of(self.seed).lines())
        return f"{scenario}\n{self.what}\n\nagain: {command_of(self.seed)}"


def command_of(seed: int) -> str:
    return f"make simulate SEED={seed}   # or: .venv/bin/python -m tests.simulation.run --seed {seed} --trace"


def run_seed(seed: int, trace: Callable[[str], None] | None = None) -> Outcome | Failure:
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    try:
        return World(scenario_of(seed), trace).run()
    except Exception:
        return Failure(seed, traceback.format_exc())
    finally:
        faulthandler.cancel_dump_traceback_later()


def run_seeds(seeds: range, processes: int) -> Iterator[tuple[int, Outcome | Failure]]:
    """As they end."""
    if processes == 1:
        for seed in seeds:
            yield _numbered(seed)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_numbered, seeds, chunksize=8)


def _numbered(seed: int) -> tuple[int, Outcome | Failure]:
    return seed, run_seed(seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument(
        "--trace", action="store_true", help="print what happens, with virtual time"
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    if chosen.seed is not None:
        print("\n".join(scenario_of(chosen.seed).lines()))
        outcome = run_seed(chosen.seed, print if chosen.trace else None)
        print(outcome)
        return int(isinstance(outcome, Failure))
    begun = time.monotonic()
    failures: list[Failure] = []
    kinds: Counter[str] = Counter()
    steps = reads = 0
    for seed, outcome in run_seeds(
        range(chosen.first, chosen.first + chosen.seeds), chosen.processes
    ):
        kinds[scenario_of(seed).kind] += 1
        if isinstance(outcome, Failure):
            failures.append(outcome)
            if len(failures) <= SHOWN:
                print(f"{outcome}\n", flush=True)
        else:
            steps += outcome.steps
            reads += outcome.reads
    took_s = time.monotonic() - begun
    about = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(
        f"{chosen.seeds} seeds ({about}) in {took_s:.1f} s: {reads} reads, {steps} steps, {len(failures)} failed"
    )
    if failures:
        print(
            "failed: "
            + " ".join(str(failure.seed) for failure in sorted(failures, key=lambda f: f.seed))
        )
    return int(bool(failures))


if __name__ == "__main__":
    gc.freeze()
    sys.exit(main())
