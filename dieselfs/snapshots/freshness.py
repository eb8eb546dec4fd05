"""The age of a shown snapshot: whether the store has newer commits than the snapshot's generation.

A mount shows one generation until it is refreshed. So that nobody takes an old generation for the
newest by mistake, the mount asks the store for the next commit object from time to time. It logs
once that there is one, and its statistics always have the newest generation known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from shlex import quote
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import find_dataset
from chunkstore.errors import ChunkStoreError
from chunkstore.object_keys import commit_key
from chunkstore.stores.object_store import ObjectStore, exists

log = logging.getLogger(__name__)

POLL_S: Final = 300.0
"""Seconds between two looks at the store: 288 requests a day and mount."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """A mount's generation and the newest one that it knows of in the store."""

    generation: int
    """The generation that is shown."""
    newest_generation: int | None = None
    """The newest generation in the store at the last look; None before the first answer."""
    behind: int | None = None
    """The number of commits after the shown generation, at the last look."""
    checked_s_ago: float | None = None
    """The age of that answer in seconds."""


def newest_since(store: ObjectStore, dataset: DatasetRef, generation: int) -> int:
    """Return the newest generation of the dataset in the store; `generation` exists.

    Returns `generation` if another dataset has the name now. Costs one stat if there is nothing
    newer, and else one get and about two stats for each doubling of the distance. The log has no
    gaps, except for commits that the store has lost: then the result may be too small.
    """

    def is_committed(number: int) -> bool:
        return exists(store, commit_key(dataset.name, number))

    step = 1
    while is_committed(generation + step):
        step *= 2
    known, absent = generation + step // 2, generation + step
    if known == generation or find_dataset(store, dataset.name) != dataset:
        return generation
    while absent - known > 1:
        middle = (known + absent) // 2
        known, absent = (middle, absent) if is_committed(middle) else (known, middle)
    return known


def stale_text(dataset: DatasetRef, shown: int, newest: int, *, mountpoint: str) -> str:
    """Return the line that says that a mount shows an older generation than the store has."""
    count = newest - shown
    return (
        f"{mountpoint} shows generation {shown} of {dataset.name}, but the store is at {newest}, "
        f"{count:,} commit{'' if count == 1 else 's'} later: "
        f"`dlcmd mount --refresh {dataset.name} {quote(mountpoint)}` shows the newest snapshot"
    )


class FreshnessWatch:
    """The watch of one mounted snapshot, in a thread of its own: enter it, leave it.

    A store that does not answer is asked again at the next look, and delays nothing.
    """

    def __init__(
        self,
        store: ObjectStore,
        dataset: DatasetRef,
        generation: int,
        mountpoint: str,
        *,
        poll_s: float = POLL_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._dataset, self._generation = store, dataset, generation
        self._mountpoint = mountpoint
        self._poll_s, self._clock_s = poll_s, clock_s
        self._newest: int | None = None
        self._checked_s = 0.0
        self._warned = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="freshness", daemon=True)

    def __enter__(self) -> FreshnessWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()  # the thread is not waited for: the store may hang

    def look(self) -> None:
        """Ask the store once; log the first time that the mount is found to be older."""
        try:
            newest = newest_since(self._store, self._dataset, self._newest or self._generation)
        except ChunkStoreError as error:
            log.debug("cannot tell the newest generation of %s: %s", self._dataset.name, error)
            return
        self._newest, self._checked_s = newest, self._clock_s()
        if newest > self._generation and not self._warned:
            self._warned = True
            text = stale_text(self._dataset, self._generation, newest, mountpoint=self._mountpoint)
            log.warning("%s", text)

    def freshness(self) -> Freshness:
        """Return what is known, without asking the store."""
        newest = self._newest
        if newest is None:
            return Freshness(self._generation)
        age_s = round(self._clock_s() - self._checked_s, 1)
        return Freshness(self._generation, newest, newest - self._generation, age_s)

    def _watch(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception:
                log.exception("cannot tell the newest generation of %s", self._dataset.name)
            self._closing.wait(self._poll_s)
