"""The warm-up of a tier with chosen chunks: node memory, an SSD, or a cache cluster.

A `WarmUpTarget` says what its tier has and how to load more. The warm-up loads the missing chunks
in their order, several units at a time, and counts what becomes of each chunk. Cached chunks are
not fetched, so a warm-up resumes where another one was stopped. Library calls (`handle`),
`dlcmd warmup`, mounts (`background_warmup`) and cache nodes (`warm_on_miss`) all use it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import ChunkStoreError
from chunkstore.progress import Advance
from dieselfs.cache.warmup.load_loop import PAUSE_S, LoadLoop
from dieselfs.cache.warmup.report import Reason, RefusedChunks, State, WarmUpReport
from dieselfs.errors import MasterGone, RegistryUnavailable, SsdUnavailable

Turn = Callable[[], AbstractContextManager[object]]
"""The context around each unit: entering it may wait."""
Outcome: TypeAlias = Literal["cached", "elsewhere", "loaded", "no room", "lost"]
"""The outcome of a unit.

It was cached already; another process or thread has loaded it, or is loading it ("elsewhere"); it
was loaded; the tier has no room for it; or the store has lost or damaged it.
"""
_WORSE: Final[tuple[Outcome, ...]] = ("cached", "elsewhere", "loaded", "no room", "lost")
"""The outcome of a chunk is the last of the outcomes of its units in this order."""
_LOST: Final = "the store has lost or damaged them: `dlcmd scrub` lists the lost files"
_STOPPED: Final = "the warm-up was stopped"
_TIER_ERRORS: Final = (SsdUnavailable, MasterGone, RegistryUnavailable)


class WarmUpEnds(Exception):
    """No other unit can be loaded either; the report gives the reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason


class WarmUpTarget(Protocol):
    """A tier as a warm-up sees it.

    Several threads call `load` at once; one thread calls the others. All may raise the error of a
    tier that does not answer.
    """

    jobs: int
    """The number of concurrent loads, unless the caller chooses another."""

    def cached(self, chunks: Sequence[ChunkRef]) -> Container[bytes]:
        """Return the ids of those of the chunks that are cached completely."""
        ...

    def size(self, chunk: ChunkRef) -> int:
        """Return the bytes that are fetched for a chunk."""
        ...

    def fitting(self, missing: Sequence[ChunkRef]) -> tuple[int, str]:
        """Return how many of these chunks have room, from the first one on, and the limit.

        The limit is a sentence for the user.
        """
        ...

    def units(self, chunk: ChunkRef) -> Sequence[tuple[Any, int]]:
        """Return the units in which a chunk is loaded, each with its bytes; at least one."""
        ...

    def load(self, unit: Any) -> Outcome | None:
        """Load a unit; return None or "elsewhere" if it has to be tried again.

        Raises `WarmUpEnds` if no other unit can be loaded either, or the error of a store or tier
        that does not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Unit:
    chunk: ChunkRef
    unit: Any
    length: int


class _Tally:
    """Numbers of chunks, and their bytes, by a key."""

    def __init__(self) -> None:
        self.chunks: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, key: str, sizes: Iterable[int]) -> None:
        for size in sizes:
            self.chunks[key] += 1
            self.bytes[key] += size


class WarmUp:
    """One warm-up. One thread runs it, once; `run` starts others."""

    def __init__(self, target: WarmUpTarget, chunks: Sequence[ChunkRef]) -> None:
        """Find out what is cached, and what has room. Raises what the target raises."""
        self._target = target
        cached = target.cached(chunks)
        missing = [chunk for chunk in chunks if chunk.id.value not in cached]
        count, limit = target.fitting(missing)
        self._refusals: tuple[tuple[Reason, str], ...] = (("no room", limit), ("lost", _LOST))
        self._sizes = {chunk.id: target.size(chunk) for chunk in chunks}
        self._bytes = sum(self._sizes.values())
        self._tally = _Tally()
        self._tally.add(
            "cached", (self._sizes[chunk.id] for chunk in chunks if chunk.id.value in cached)
        )
        self._tally.add("no room", (self._sizes[chunk.id] for chunk in missing[count:]))
        units = {chunk: target.units(chunk) for chunk in missing[:count]}
        self._left = {chunk.id: len(of_chunk) for chunk, of_chunk in units.items()}
        self._loop = LoadLoop(
            _Unit(chunk, unit, length)
            for chunk, of_chunk in units.items()
            for unit, length in of_chunk
        )
        self._outcomes: dict[ChunkId, Outcome] = {}
        self._counting = threading.Lock()
        self._began = time.monotonic()
        self._ended: float | None = None
        self._rest: tuple[Reason, str] | None = None
        """The reason why the chunks that are left were not loaded; None while there is none."""
        self.loaded_bytes = 0
        """Bytes loaded so far."""
        self.missing = len(units)
        """Chunks that are to be loaded."""
        self.missing_bytes = sum(length for of in units.values() for _, length in of)

    def run(
        self, advance: Advance, jobs: int | None = None, turn: Turn = nullcontext
    ) -> WarmUpReport:
        """Load the missing chunks, once.

        Raises `Unavailable`, `SsdUnavailable` and other errors that end the warm-up. Loaded units
        stay, and `report` has the counts.
        """
        self._began = time.monotonic()
        try:
            self._loop.run(partial(self._load, advance, turn), jobs or self._target.jobs)
        except WarmUpEnds as end:
            self._rest = end.reason, str(end)
        except BaseException as error:
            self._rest = _reason_of(error), str(error) or type(error).__name__
            raise
        finally:
            self._ended = time.monotonic()
        if self._rest is None:
            self._rest = "cancelled", _STOPPED
        return self.report()

    def stop(self) -> None:
        """Start no further unit."""
        self._loop.stop()

    def report(self) -> WarmUpReport:
        """Return the counts so far."""
        with self._counting:
            chunks, size = Counter(self._tally.chunks), Counter(self._tally.bytes)
            loaded_bytes = self.loaded_bytes
        left = len(self._sizes) - chunks.total()
        left_bytes = self._bytes - size.total()
        refused = [
            RefusedChunks(reason, chunks[reason], size[reason], detail)
            for reason, detail in self._refusals
            if chunks[reason]
        ]
        state: State = "running"
        if self._ended is not None and self._rest is not None:
            state = "done"
            if left:
                reason, detail = self._rest
                refused.append(RefusedChunks(reason, left, left_bytes, detail))
                state = "cancelled" if reason == "cancelled" else "failed"
            left = left_bytes = 0
        return WarmUpReport(
            state=state,
            chunks=len(self._sizes),
            bytes=self._bytes,
            cached_before=chunks["cached"],
            cached_before_bytes=size["cached"],
            loaded=chunks["loaded"],
            loaded_bytes=loaded_bytes,
            loaded_chunk_bytes=size["loaded"],
            by_others=chunks["elsewhere"],
            by_others_bytes=size["elsewhere"],
            left=left,
            left_bytes=left_bytes,
            refused=tuple(refused),
            seconds=(self._ended or time.monotonic()) - self._began,
        )

    def _load(self, advance: Advance, turn: Turn, unit: _Unit, again: bool) -> bool:
        """Load a unit; False to try it again later."""
        with turn():
            outcome = None if self._loop.is_stopped else self._target.load(unit.unit)
        if outcome is None or outcome == "elsewhere":
            if again:
                time.sleep(PAUSE_S)
            return False
        if again and outcome == "cached":
            outcome = "elsewhere"
        id_ = unit.chunk.id
        with self._counting:
            worse = max(self._outcomes.get(id_, "cached"), outcome, key=_WORSE.index)
            self._outcomes[id_] = worse
            self._left[id_] -= 1
            is_done = not self._left[id_]
            if is_done:
                self._tally.add(worse, [self._sizes[id_]])
            if outcome == "loaded":
                self.loaded_bytes += unit.length
        advance(int(is_done), 0 if outcome in ("no room", "lost") else unit.length)
        return True


def _reason_of(error: BaseException) -> Reason:
    """Return the reason that an error is for the chunks that it leaves."""
    if isinstance(error, _TIER_ERRORS):
        return "tier unavailable"
    return "store unavailable" if isinstance(error, ChunkStoreError) else "error"
