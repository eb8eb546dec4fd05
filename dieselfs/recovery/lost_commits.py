"""Which generation lost commits gave each chunk, from what chunks say of each other: pure (docs/decisions/0008, "Commits lost").

Certain: a chunk with a deletion, or a moved entry, of generation s is later than s; a chunk whose own file was seen with
generation s is of generation s; one whose directory was seen with s is of s or before (a directory's version follows what is put below it; one with
files below it in the same chunk is left out of this, since it may have been seen while its commit was being applied).
Then, as long as that is not contradicted: the chunks of one process follow each other as their ids do, and last the
ids of all processes, which are times by clocks that may differ. Within a generation the greater id wins, as in any commit.
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
"""The birth adds nothing."""


@dataclass(slots=True)
class _Bounds:
    """Generations that a chunk may be of, both included."""

    low: int = _FIRST
    high: int | None = None

    def follow(self, low: int | None, high: int | None) -> None:
        """Narrow them, unless that leaves nothing."""
        low = max(self.low, low or _FIRST)
        highs = [bound for bound in (self.high, high) if bound is not None]
        if not highs or low <= min(highs):
            self.low, self.high = low, min(highs, default=None)


def deal(
    unnamed: Sequence[ChunkEvidence],
    named: Mapping[ChunkId, int],
    said_by_named: Sequence[ChunkEvidence],
    missing: Collection[int],
    before: Mapping[ChunkId, int],
) -> dict[ChunkId, int]:
    """Chunk -> generation, for all of `unnamed`; none if no commit that can have named any is lost.

    `before`: generations that some of them are older than, whose sound commits retire them. `named`: the generations of the chunks that sound commits name, and `said_by_named` what the heads of these chunks say. `missing`: the
    generations without a sound commit. Any number of them may follow all that are known: whoever lost some may have lost the last.
    """
    by_id = {evidence.ref.id: evidence for evidence in unnamed}
    after = max([BIRTH_GENERATION, *missing, *named.values()]) + 1
    open_generations = {generation for generation in missing if generation >= _FIRST}
    if named and not open_generations:
        return {}
    bounds, seen = _certain(by_id, said_by_named)
    for chunk, generation in before.items():
        bounds[chunk].follow(None, generation - 1)
    dealt = {
        chunk: generation
        for chunk, generation in seen.items()
        if chunk in by_id
        and (generation in open_generations or after <= generation < after + FURTHEST)
    }
    # Chunks that have been purged since still tell where the ids of others belong.
    gone = {chunk: generation for chunk, generation in seen.items() if chunk not in by_id}
    latest = max([after, *dealt.values(), *(limits.low for limits in bounds.values())])
    open_generations.update(range(after, latest + len(by_id) + 1))
    choices = sorted(open_generations)
    anchors = {**gone, **named, **dealt}
    _follow_processes(bounds, anchors)
    _follow_paths(by_id, bounds, said_by_named)
    ids = _Ids(anchors)
    floors: dict[bytes, int] = {}
    last = BIRTH_GENERATION
    for chunk in sorted(by_id):
        process = _process(chunk)
        if chunk not in dealt:
            limits = bounds[chunk]
            limits.follow(floors.get(process), None)
            chosen = _choose(
                choices, limits, max(last, ids.newest_before(chunk)) + 1, ids.oldest_after(chunk)
            )
            dealt[chunk] = last = chosen
        floors[process] = dealt[chunk]
    return dealt


def _certain(
    by_id: Mapping[ChunkId, ChunkEvidence], said_by_named: Iterable[ChunkEvidence]
) -> tuple[dict[ChunkId, _Bounds], dict[ChunkId, int]]:
    """What chunks say of themselves and of each other: bounds of all, and the generations of those of which a file was seen, also if they are
    not there any more."""
    bounds = {chunk: _Bounds(evidence.newest_seen + 1) for chunk, evidence in by_id.items()}
    seen: dict[ChunkId, int] = {}
    highs: dict[ChunkId, int] = {}
    for evidence in itertools.chain(by_id.values(), said_by_named):
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
    """A chunk lies between the chunks of its process before and after it whose generations are known."""
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
    said_by_named: Iterable[ChunkEvidence],
) -> None:
    """A file that was seen in a chunk was not in a later one of that process and of that generation, or it would have been seen there."""
    seen: defaultdict[tuple[bytes, int], list[tuple[ChunkId, int]]] = defaultdict(list)
    for evidence in itertools.chain(by_id.values(), said_by_named):
        for version in evidence.seen:
            seen[_process(version.chunk), version.path].append((version.chunk, version.generation))
    paths = np.unique(np.fromiter((path for _, path in seen), np.uint64, len(seen)))
    for chunk, evidence in by_id.items():
        for path in evidence.own_paths[np.isin(evidence.own_paths, paths)].tolist():
            earlier = [g for c, g in seen.get((_process(chunk), path), ()) if c < chunk]
            if earlier:
                bounds[chunk].follow(max(earlier) + 1, None)


def _last_known(chain: Sequence[ChunkId], anchors: Mapping[ChunkId, int]) -> list[int | None]:
    """For each chunk the generation of the nearest one up to it of which it is known."""
    found: list[int | None] = []
    last: int | None = None
    for chunk in chain:
        last = anchors.get(chunk, last)
        found.append(last)
    return found


class _Ids:
    """The chunks whose generations are known, in the order of ids: as many of them as agree on that order. The others were made by a clock
    that went wrong."""

    def __init__(self, anchors: Mapping[ChunkId, int]) -> None:
        ids = sorted(anchors)
        chosen = _longest_ascending([anchors[chunk] for chunk in ids])
        self._ids = [ids[at] for at in chosen]
        self._generations = [anchors[chunk] for chunk in self._ids]

    def newest_before(self, chunk: ChunkId) -> int:
        at = bisect_left(self._ids, chunk)
        return self._generations[at - 1] if at else BIRTH_GENERATION

    def oldest_after(self, chunk: ChunkId) -> int | None:
        at = bisect_left(self._ids, chunk)
        return self._generations[at] if at < len(self._ids) else None


def _longest_ascending(values: Sequence[int]) -> list[int]:
    """Positions of a longest subsequence that never descends. Patience sorting: n log n."""
    ends: list[int] = []  # the least value that a subsequence of this length can end with …
    last: list[int] = []  # … and where it is
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
    """The first of the ascending `choices` from `wanted` on, if that is within the limits and not beyond `at_most`; else the nearest to
    `at_most` within the limits, or the first that is not below them."""
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
    """Machine and process: its ids grow in the order in which it made its chunks, whatever its clock does."""
    return chunk.value[4:13]
