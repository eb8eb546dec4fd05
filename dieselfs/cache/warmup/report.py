"""The result of a warm-up: how much was wanted, and what became of it, in whole chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Reason: TypeAlias = Literal[
    "no room", "not admitted", "lost", "store unavailable", "tier unavailable", "cancelled", "error"
]
"""The reason why a chunk was not loaded.

The tier has no room for it; a cache node refuses it; the store has lost or damaged it; the store,
or the tier itself, does not answer; the warm-up was cancelled; or it failed.
"""
State: TypeAlias = Literal["running", "done", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class RefusedChunks:
    """The chunks that were not loaded for one reason."""

    reason: Reason
    chunks: int
    bytes: int
    detail: str = ""
    """A sentence for the user: the cause, and what to do."""


@dataclass(frozen=True, slots=True)
class WarmUpReport:
    """The counts of a warm-up, while it runs or at its end.

    `chunks` is the sum of `cached_before`, `loaded`, `by_others`, `left` and the refused chunks,
    and `bytes` is the sum of their sizes.
    """

    state: State
    chunks: int
    """Chunks that were wanted."""
    bytes: int
    cached_before: int
    cached_before_bytes: int
    loaded: int
    """Chunks that were fetched into the tier.

    Node memory and cache nodes do not tell who caused a fetch: chunks that readers request at the
    same moment count too, and for a cache cluster also those that its nodes had before.
    """
    loaded_chunk_bytes: int
    """The size of the loaded chunks."""
    loaded_bytes: int
    """Bytes fetched into the tier, without the blocks of these chunks that were there before."""
    by_others: int
    """Chunks that other processes, or other threads of this one, have loaded meanwhile."""
    by_others_bytes: int
    left: int
    """Chunks that are still to be loaded; 0 at the end."""
    left_bytes: int
    refused: Sequence[RefusedChunks]
    seconds: float

    @property
    def is_all(self) -> bool:
        """True if all wanted chunks are in the tier."""
        return self.cached_before + self.loaded + self.by_others == self.chunks

    @property
    def no_room(self) -> int:
        """Chunks for which there is no room."""
        return self.refused_for("no room")

    @property
    def failed(self) -> int:
        """Chunks that the store has lost or damaged; the log names them."""
        return self.refused_for("lost")

    def refused_for(self, reason: Reason) -> int:
        """Return the number of chunks that were refused for a reason."""
        return sum(of.chunks for of in self.refused if of.reason == reason)
