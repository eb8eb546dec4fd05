"""The heap of a process that serves for days: few arenas, and free pages that go back.

glibc gives threads arenas of their own, up to eight a core. Each arena keeps the most that it ever
had, up to twice the size of a chunk beyond what is in use. So a server with many threads keeps the
sum of the peaks of all its arenas, and `malloc_trim` does not release the end of any but the main
one. With one arena a process keeps the peak of their sum, and all of it can be released.

With another C library than glibc it changes nothing.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Final

_RELEASE_EVERY_S: Final = 60.0
"""The time between two releases: the pages that are taken again cost a page fault each."""
_M_ARENA_MAX: Final = -8
"""From malloc.h."""
_libc = ctypes.CDLL(None)


def use_one_arena() -> None:
    """Have all threads allocate from the main arena. Call it before threads are started.

    The interpreter's lock is held for most allocations, so threads rarely wait for the arena.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, 1)


def release_free_pages() -> None:
    """Return the heap's free pages to the system.

    Takes 0.1 ms if there are none, and 0.2 ms of CPU time for each MiB that is released. Other
    threads run meanwhile, until they allocate.
    """
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(ctypes.c_size_t(0))


def keep_heap_small() -> None:
    """Use one arena, and release its free pages each minute in a thread of its own.

    Call it before other threads are started, and not before a fork.
    """
    use_one_arena()
    threading.Thread(target=_release_regularly, name="heap", daemon=True).start()


def _release_regularly() -> None:
    while True:
        time.sleep(_RELEASE_EVERY_S)
        release_free_pages()
