"""The generations that lost commits gave to chunks, from the evidence in chunks about each other.

The computation is pure (docs/decisions/0008, "Commits lost"). These facts are certain: a chunk with
a tombstone, or a moved entry, of generation s is later than s. A chunk whose own file was seen with
generation s is of generation s. A chunk whose directory was seen with s is of s or before, since a
directory's version follows what is put below it; a directory with files below it in the same chunk
does not count, since it may have been seen while its commit was being applied.

These rules apply as long as nothing contradicts them: the chunks of one process follow each other
as their ids do; last come the ids of all processes, which are times by clocks that may differ.
Within a generation the greater id wins, as in any commit.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from chunkstore.chunk_id import ChunkId
from chunkstore.commit_log import BIRTH_GENERATION
from dieselfs.recovery.chunk_evidence import FURTHEST, ChunkEvidence

_FIRST: Final = BIRTH_GENERATION + 1
"""The first generation that can add chunks: the birth commit adds nothing."""


@dataclass(slots=True)
class _Bounds:
    """The first and last generation that a chunk may be of, both included."""

    low: int = _FIRST
    high: int | None = None

    def follow(self, low: int | None, high: int | None) -> None:
        """Narrow the bounds, unless that leaves nothing."""
        low = max(self.low, low or _FIRST)
        highs = [bound for bound in (self.high, high) if bound is not None]
        if not highs or low <= min(highs):
            self.low, self.high = low, min(highs, default=None)


def assign_generations(
    unnamed: Sequence[ChunkEvidence],
    named: Mapping[ChunkId, int],
    named_evidence: Sequence[ChunkEvidence],
    missing: Collection[int],
    before: Mapping[ChunkId, int],
) -> dict[ChunkId, int]:
    """Return chunk -> generation for all of `unnamed`.

    The result is empty if no lost commit can have named any of them. `named` holds the generations
    of the chunks that sound commits name, and `named_evidence` the evidence in the heads of these
    chunks. `missing` holds the generations without a sound commit. `before` holds generations that
    some chunks are older than, because sound commits of those generations retire them. Any number
    of lost generations may follow all that are known: if some commits were lost, the last ones may
    be lost too.
    """
    by_id = {evidence.ref.id: evidence for evidence in unnamed}
    after = max([BIRTH_GENERATION, *missing, *named.values()]) + 1
    open_generations = {generation for generation in missing if generation >= _FIRST}
    if named and not open_generations:
        return {}
    bounds, seen = _certain(by_id, named_evidence)
    for chunk, generation in before.items():
        bounds[chunk].follow(None, generation - 1)
    assigned = {
        chunk: generation
        for chunk, generation in seen.items()
        if chunk in by_id
        and (generation in open_generations or after <= generation < after + FURTHEST)
    }
    # Chunks that have been purged since still show where the ids of others belong.
    purged = {chunk: generation for chunk, generation in seen.items() if chunk not in by_id}
    latest = max([after, *assigned.values(), *(limits.low for limits in bounds.values())])
    open_generations.update(range(after, latest + len(by_id) + 1))
    choices = sorted(open_generations)
    anchors = {**purged, **named, **assigned}
    _follow_processes(bounds, anchors)
    _follow_paths(by_id, bounds, named_evidence)
    ids = _Ids(anchors)
    floors: dict[bytes, int] = {}
    last = BIRTH_GENERATION
    for chunk in sorted(by_id):
        process = _process(chunk)
        if chunk not in assigned:
            limits = bounds[chunk]
            limits.follow(floors.get(process), None)
            chosen = _choose(
                choices, limits, max(last, ids.newest_before(chunk)) + 1, ids.oldest_after(chunk)
            )
            assigned[chunk] = last = chosen
        floors[process] = assigned[chunk]
    return assigned


def _certain(
    by_id: Mapping[ChunkId, ChunkEvidence], named_evidence: Iterable[ChunkEvidence]
) -> tuple[dict[ChunkId, _Bounds], dict[ChunkId, int]]:
    """Return the bounds of all chunks, and the generations of the chunks of which a file was seen.

    Both follow from the evidence of chunks about themselves and each other. The second result
    includes chunks that no longer exist.
    """
    bounds = {chunk: _Bounds(evidence.newest_seen + 1) for chunk, evidence in by_id.items()}
    seen: dict[ChunkId, int] = {}
    highs: dict[ChunkId, int] = {}
    for evidence in itertools.chain(by_id.values(), named_evidence):
        for version in evidence.seen:
            chunk, generation = version.chunk, version.generation
            target = by_id.get(chunk)
            if version.by_moved_file or (target and target.has_own_file_at(version.position)):
                seen[chunk] = max(seen.get(chunk, 0), generation)
            elif target and target.has_bare_directory_at(version.position):
                highs[chunk] = min(highs.get(chunk, generation), generation)
    for chunk, limits in bounds.items():
        limits.low = max(limits.low, _FIRST)
        limits.follow(None, highs.get(chunk))
    return bounds, seen


def _follow_processes(bounds: Mapping[ChunkId, _Bounds], anchors: Mapping[ChunkId, int]) -> None:
    """Bound each chunk by the nearest chunks of its process whose generations are known."""
    chains: defaultdict[bytes, list[ChunkId]] = defaultdict(list)
    for chunk in sorted({*bounds, *anchors}):
        chains[_process(chunk)].append(chunk)
    for chain in chains.values():
        before = _last_known(chain, anchors)
        after = _last_known(list(reversed(chain)), anchors)
        for chunk, low, high in zip(chain, before, reversed(after), strict=True):
            if chunk not in anchors:
                bounds[chunk].follow(low, high)


def _follow_paths(
    by_id: Mapping[ChunkId, ChunkEvidence],
    bounds: Mapping[ChunkId, _Bounds],
    named_evidence: Iterable[ChunkEvidence],
) -> None:
    """Bound chunks from below by the files seen in earlier chunks of their process.

    A file that was seen in a chunk was not in a later chunk of that process and generation.
    Otherwise it would have been seen in the later one.
    """
    seen: defaultdict[tuple[bytes, int], list[tuple[ChunkId, int]]] = defaultdict(list)
    for evidence in itertools.chain(by_id.values(), named_evidence):
        for version in evidence.seen:
            seen[_process(version.chunk), version.path].append((version.chunk, version.generation))
    paths = np.unique(np.fromiter((path for _, path in seen), np.uint64, len(seen)))
    for chunk, evidence in by_id.items():
        for path in evidence.own_paths[np.isin(evidence.own_paths, paths)].tolist():
            earlier = [g for c, g in seen.get((_process(chunk), path), ()) if c < chunk]
            if earlier:
                bounds[chunk].follow(max(earlier) + 1, None)


def _last_known(chain: Sequence[ChunkId], anchors: Mapping[ChunkId, int]) -> list[int | None]:
    """Return for each chunk the known generation of the nearest chunk up to it."""
    found: list[int | None] = []
    last: int | None = None
    for chunk in chain:
        last = anchors.get(chunk, last)
        found.append(last)
    return found


class _Ids:
    """The chunks whose generations are known, in the order of ids.

    It holds as many of them as agree on that order. The others were made by a wrong clock.
    """

    def __init__(self, anchors: Mapping[ChunkId, int]) -> None:
        ids = sorted(anchors)
        chosen = _longest_ascending([anchors[chunk] for chunk in ids])
        self._ids = [ids[at] for at in chosen]
        self._generations = [anchors[chunk] for chunk in self._ids]

    def newest_before(self, chunk: ChunkId) -> int:
        """Return the generation of the last known chunk before this id."""
        at = bisect_left(self._ids, chunk)
        return self._generations[at - 1] if at else BIRTH_GENERATION

    def oldest_after(self, chunk: ChunkId) -> int | None:
        """Return the generation of the first known chunk after this id, None if there is none."""
        at = bisect_left(self._ids, chunk)
        return self._generations[at] if at < len(self._ids) else None


def _longest_ascending(values: Sequence[int]) -> list[int]:
    """Return positions of a longest subsequence that never descends. Patience sorting: n log n."""
    ends: list[int] = []  # the least last value of a subsequence of each length
    last: list[int] = []  # the positions of those values
    before: list[int] = []
    for at, value in enumerate(values):
        length = bisect_right(ends, value)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [value]
        last[length : length + 1] = [at]
    chosen: list[int] = []
    at = last[-1] if last else -1
    while at >= 0:
        chosen.append(at)
        at = before[at]
    return chosen[::-1]


def _choose(choices: Sequence[int], limits: _Bounds, wanted: int, at_most: int | None) -> int:
    """Return the first of the ascending `choices` from `wanted` on, if the limits allow it.

    It must be within `limits` and not beyond `at_most`. Otherwise the result is the choice within
    the limits that is nearest to `at_most`, or the first one that is not below the limits.
    """
    start = bisect_left(choices, limits.low)
    end = len(choices) if limits.high is None else bisect_right(choices, limits.high)
    if start >= end:
        return choices[start]
    first = max(start, bisect_left(choices, wanted))
    if first < end and (at_most is None or choices[first] <= at_most):
        return choices[first]
    nearest = end if at_most is None else bisect_right(choices, at_most)
    return choices[min(max(nearest - 1, start), end - 1)]


def _process(chunk: ChunkId) -> bytes:
    """Return the machine and process in a chunk's id.

    The ids of a process grow in the order in which it made its chunks, whatever its clock does.
    """
    return chunk.value[4:13]
