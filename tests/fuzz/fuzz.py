"""Feeds damaged bytes to every decoder: `python -m tests.fuzz.fuzz [--minutes 10] [--seed N]
[TARGET ...]`.

Each round of a target runs in a process of its own, so that a crash of the interpreter is a finding
like any other. What fails is kept as a file, with the command that runs it again.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import random
import sys
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import Target, all_targets

ROUND_INPUTS = 2000
FOUND = Path("fuzz-findings")
_MEMORY_EVERY = 16
"""Inputs: measuring every one would take most of the time."""
_SLOW_S = 20.0


@dataclass(frozen=True, slots=True)
class Finding:
    target: str
    data: bytes
    what: str


def attempt(target: Target, data: bytes, *, measure: bool = False) -> Finding | None:
    """Run one input; what is wrong with what came of it."""
    if measure:
        tracemalloc.start()
    started = time.monotonic()
    try:
        target.run(data)
    except target.refusals:
        pass
    except Exception as error:
        return Finding(target.name, data, f"{type(error).__name__}: {error}")
    finally:
        peak = tracemalloc.get_traced_memory()[1] if measure else 0
        tracemalloc.stop()
    if peak > target.memory_bytes + target.memory_times * len(data):
        return Finding(target.name, data, f"{peak} bytes of memory for {len(data)} of input")
    if time.monotonic() - started > _SLOW_S:
        return Finding(target.name, data, f"took more than {_SLOW_S} s")
    return None


def fuzz(target: Target, inputs: int, seed: int) -> list[Finding]:
    """Many inputs, the same ones for the same seed. At most ten findings."""
    draw = random.Random(f"{target.name} {seed}")
    found: list[Finding] = []
    for number in range(inputs):
        data = mutated(draw.choice(target.seeds), target.seeds, draw)
        if target.reseal is not None and draw.random() < 0.75:
            data = target.reseal(data)
        finding = attempt(target, data, measure=number % _MEMORY_EVERY == 0)
        if finding is not None:
            found.append(finding)
            if len(found) == 10:
                break
    return found


def keep(finding: Finding) -> Path:
    FOUND.mkdir(exist_ok=True)
    path = FOUND / f"{finding.target}-{abs(hash(finding.data)):x}"
    path.write_bytes(finding.data)
    return path


def _round(name: str, inputs: int, seed: int) -> None:
    faulthandler.enable()
    [target] = [target for target in all_targets() if target.name == name]
    found = fuzz(target, inputs, seed)
    for finding in found:
        path = keep(finding)
        print(f"{name}: {finding.what}\n  again: python -m tests.fuzz.fuzz --input {path} {name}")
    sys.exit(1 if found else 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="the first round's; else by time")
    parser.add_argument("--input", type=Path, help="run this file alone")
    chosen = parser.parse_args()
    targets = [
        target for target in all_targets() if target.name in (chosen.targets or [target.name])
    ]
    if not targets:
        parser.error(f"no such target; there are {', '.join(t.name for t in all_targets())}")
    if chosen.input:
        finding = attempt(targets[0], chosen.input.read_bytes(), measure=True)
        print(finding.what if finding else "well refused, or sound")
        return 1 if finding else 0
    seed = int(time.time()) if chosen.seed is None else chosen.seed
    until, rounds, failed = time.monotonic() + chosen.minutes * 60, 0, 0
    spawn = multiprocessing.get_context("spawn")
    while time.monotonic() < until:
        for target in targets:
            inputs = max(1, int(ROUND_INPUTS * target.rate))
            process = spawn.Process(target=_round, args=(target.name, inputs, seed))
            process.start()
            process.join()
            if process.exitcode:
                failed += 1
                print(f"{target.name}: round {seed} ended with {process.exitcode}", flush=True)
        seed, rounds = seed + 1, rounds + 1
    print(f"{rounds} rounds of {len(targets)} targets, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
