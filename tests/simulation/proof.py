"""Breaks the peer cache in known ways, one at a time: `python -m tests.simulation.proof [-k NAME]
[--seeds 300]`. Ends with 1 if the seeds miss one.

A simulation that finds nothing proves nothing, unless it finds what was put there.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from unittest.mock import patch

from chunkstore.chunk_reader import ChunkReader
from dieselfs.cache.membership import placement
from dieselfs.cache.membership.breakers import Breakers
from dieselfs.cache.membership.membership import TaskMembership
from dieselfs.cache.peers import peer_requests, peer_source, routing, task_peers
from dieselfs.cache.wire.messages import NotCached
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_connection import PeerConnection
from dieselfs.cache.wire.peer_server import PeerServer
from dieselfs.cache.wire.served_connection import ServedConnection
from dieselfs.cache.wire.slow_answers import SlowAnswers
from tests.simulation.memory import SimulatedMemory
from tests.simulation.run import Failure, run_seed

MAX_SEEDS = 300


@dataclass(frozen=True, slots=True)
class Break:
    """One way to break it: `target.name` becomes `wrong`."""

    what: str
    target: object
    name: str
    wrong: object
    """A function of the same signature, or a value."""

    def __str__(self) -> str:
        return self.what

    def apply(self, stack: ExitStack) -> None:
        stack.enter_context(patch.object(self.target, self.name, self.wrong))


def nothing(*_: object, **__: object) -> None:
    """In place of what should be done."""


def _steps_that_always_fetch(*arguments: object) -> object:
    return (routing.Step(step.peer, True) for step in _steps(*arguments))  # type: ignore[arg-type]


def _unverified(self: ChunkReader, data: memoryview, chunk: object) -> memoryview:
    return data[chunk.head_bytes :]  # type: ignore[attr-defined]


def _file_as_it_is(data: memoryview, file: object) -> memoryview:
    return data


def _taken_as_they_are(
    files: object, batch: object, bulk: memoryview, found: list[bytes | None]
) -> None:
    at = 0
    for position in batch.positions:  # type: ignore[attr-defined]
        end = at + files.length[position]  # type: ignore[attr-defined]
        found[position] = bytes(bulk[at:end])
        at = end


def _fetch_each_for_himself(
    self: SimulatedMemory, chunk: object, *, as_owner: bool = False
) -> None:
    if chunk.id not in self._cached:  # type: ignore[attr-defined]
        route = (
            self._source.whole_as_owner if as_owner or self._owns(chunk.id) else self._source.whole
        )  # type: ignore[attr-defined]
        self._cached[chunk.id] = route(chunk)  # type: ignore[attr-defined, arg-type]


def _never_allowed_again(self: Breakers, peer: str, answered: float | None) -> bool:
    return peer not in self._states


def _own_placement(view: object) -> object:
    """Each node has an order of its own."""
    members = placement.reachable(view)  # type: ignore[arg-type]
    made = placement.Placement(members)
    made._keys = made._keys + hash(view.me.id.encode()) % 1000  # type: ignore[attr-defined]
    return made


def _everybody(view: object) -> object:
    return view.members  # type: ignore[attr-defined]


def _no_end(self: PeerServer, timeout_s: float) -> bool:
    return True


def _connect_anew(self: PeerClient, member: object, request: object) -> object:
    link = self._links.get(member.id)  # type: ignore[attr-defined]
    if link is not None:
        link.connection = None
    return _begin(self, member, request)  # type: ignore[arg-type]


def _refuse_what_is_slow(self: ServedConnection, number: int, read: object) -> bool:
    return False


_steps = routing.steps
_begin = PeerClient.begin

BREAKS = [
    Break("who works never says so", ServedConnection, "report_working", nothing),
    Break("a breaker never opens", Breakers, "failed", nothing),
    Break("a breaker never closes", Breakers, "allows", _never_allowed_again),
    Break(
        "a question for what is cached is passed on", task_peers, "steps", _steps_that_always_fetch
    ),
    Break("chunks from peers are not verified", ChunkReader, "verified", _unverified),
    Break("files from peers are not verified", peer_source, "verified_file", _file_as_it_is),
    Break("batches from peers are not verified", peer_requests, "_take", _taken_as_they_are),
    Break("a master has no single flight", SimulatedMemory, "fetch", _fetch_each_for_himself),
    Break(
        "what is slow is not fetched for others",
        ServedConnection,
        "_begin_slow",
        _refuse_what_is_slow,
    ),
    Break("who is silent stays in the view", TaskMembership, "_not_answered", nothing),
    Break("the silent have a share", placement, "reachable", _everybody),
    Break("who answers is not noticed", TaskMembership, "_answered", nothing),
    Break(
        "each node has its own placement", placement.Placement, "of", staticmethod(_own_placement)
    ),
    Break("nobody goes on reading a connection", PeerConnection, "_wake_next", nothing),
    Break("who waits is not told of an end", PeerConnection, "_settle", nothing),
    Break("a connection for each question", PeerClient, "begin", _connect_anew),
    Break("a server does not end", PeerServer, "close", _no_end),
    Break("the slow workers do not end", SlowAnswers, "close", lambda *_: ()),
    Break("a loaded block is not answered", ServedConnection, "finish", nothing),
    Break(
        "an owner that can't fetch says so without asking",
        SlowAnswers,
        "_load",
        lambda *_: (None, NotCached()),
    ),
]


def found_by(broken: Break, seeds: int) -> Failure | None:
    """The first seed that fails, and how."""
    with ExitStack() as stack:
        broken.apply(stack)
        for seed in range(seeds):
            outcome = run_seed(seed)
            if isinstance(outcome, Failure):
                if "TypeError" in outcome.what or "AttributeError" in outcome.what:
                    raise ValueError(f"{broken} does not fit the code any more:\n{outcome.what}")
                return outcome
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only those whose name has this in it")
    parser.add_argument("--seeds", type=int, default=MAX_SEEDS, help="at most so many each (300)")
    parser.add_argument("--show", action="store_true", help="how each was found")
    chosen = parser.parse_args()
    missed = 0
    for broken in BREAKS:
        if chosen.k not in broken.what:
            continue
        failure = found_by(broken, chosen.seeds)
        if failure is None:
            missed += 1
            print(f"NOT FOUND in {chosen.seeds} seeds: {broken.what}", flush=True)
            continue
        last = [line for line in failure.what.splitlines() if line.strip()][-1]
        print(f"found by seed {failure.seed}: {broken.what}   [{last[:140]}]", flush=True)
        if chosen.show:
            print(failure)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
