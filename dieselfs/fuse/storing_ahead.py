"""How much of the page cache files that are stored ahead may take, and when their copies in node memory may go.

The kernel gives page cache back when memory is short, so what is bounded is only what nobody has read yet: more of it than is read before
it is dropped again would be stored in vain. The memory that a control group allows counts like the machine's (design §6 d).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from dieselfs.free_memory import free_memory_bytes

if TYPE_CHECKING:
    from dieselfs.fuse.fast_path import FastPath
    from dieselfs.fuse.file_reader import CachedSource

SHARE_OF_FREE_MEMORY: Final = 4
"""One part in so many."""
INTERVAL_S: Final = 0.5


class StoringAhead:
    """Drives the storing of one mount's fast path."""

    def __init__(self, fast_path: FastPath, source: CachedSource, limit_bytes: int | None) -> None:
        """`limit_bytes` bounds the budget further; 0 stores nothing."""
        self._fast_path = fast_path
        self._source = source
        self._limit_bytes = limit_bytes

    def budget_bytes(self) -> int:
        share = free_memory_bytes() // SHARE_OF_FREE_MEMORY
        return share if self._limit_bytes is None else min(share, self._limit_bytes)

    async def run(self) -> None:
        """For as long as the mount lives: follow the free memory, and let go of chunks that have been consumed."""
        while True:
            self._fast_path.set_budget(self.budget_bytes())
            for chunk in self._fast_path.consumed():
                self._source.discard(chunk)
            await trio.sleep(INTERVAL_S)
