"""The pages of a cloud store's listing, bounded in time and checked for keys that come again.

obstore follows continuation tokens by itself, and a looping proxy answers with the same token for
ever. Keys of a listing ascend, so a page that came before is noticed at its first key. Pages
without any key are bounded by time: their requests are cancelled, which only obstore's asynchronous
calls can be. Each runs in an event loop of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from chunkstore.errors import Unavailable, Untrusted

T = TypeVar("T")

PAGE_ENTRIES: Final = 1000
"""The keys that are requested at a time: one answer of an S3 store."""
PAGE_TIMEOUT_S: Final = 19.0
"""Longer than one request may take, and below the 20 s of `chunkstore.stores.deadline`."""


class ListingCheck:
    """A check that the keys of one listing ascend.

    Most stores order keys by their bytes. Those that keep folders order them folder by folder, so
    that `a/x` comes before `a-b`. A listing is refused when it is in neither order.
    """

    def __init__(self, what: str, *, ordered: bool) -> None:
        """Without an order, each key is kept in memory, some 100 bytes, to find repeated ones."""
        self._what = what
        self._ordered = ordered
        self._last = ""
        self._by_bytes = self._by_folder = True
        self._seen: set[str] = set()
        self.keys = 0
        """The keys that were checked."""

    def check(self, key: str, size_bytes: int) -> None:
        """Check the next key; raise `Untrusted` if it came before, or comes in no order."""
        fits = self._ascends if self._ordered else self._is_new
        # obstore leaves out the slash at the end of a folder's marker, which is empty.
        if not fits(key) and not (size_bytes == 0 and fits(key := f"{key}/")):
            raise Untrusted(
                f"{self._what} is wrong: key {key!r} comes after {self._last!r}; check the "
                "store, and proxies and caches in front of it"
            )
        self.keys += 1
        self._last = key

    def _ascends(self, key: str) -> bool:
        if not self.keys:
            return True
        by_bytes = self._by_bytes and key > self._last
        by_folder = self._by_folder and key.split("/") > self._last.split("/")
        if by_bytes or by_folder:
            self._by_bytes, self._by_folder = by_bytes, by_folder
        return by_bytes or by_folder

    def _is_new(self, key: str) -> bool:
        known = len(self._seen)
        self._seen.add(key)
        return len(self._seen) > known


def next_page(stream: Any) -> Sequence[Any]:
    """Return the next entries of obstore's listing; none at its end."""

    async def act() -> Sequence[Any]:
        try:
            page: Sequence[Any] = await anext(stream)
        except StopAsyncIteration:
            return ()
        return page

    return awaited(act)


def awaited(start: Callable[[], Awaitable[T]]) -> T:
    """Return the result of an asynchronous call; raise `Unavailable` if it takes too long.

    In a thread with a running event loop, which cannot run another, it takes a thread of its own.
    """
    import asyncio  # costs 30 ms, which only listings need pay

    timeout_s = PAGE_TIMEOUT_S

    async def act() -> T:
        return await asyncio.wait_for(start(), timeout_s)

    def run() -> T:
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(act())
        except TimeoutError as error:
            raise Unavailable(
                f"the store listed no new key in {timeout_s:g} s: check it, and proxies and caches "
                "in front of it"
            ) from error
        finally:
            loop.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    return _in_thread(run)


def _in_thread(run: Callable[[], T]) -> T:
    outcome: list[tuple[T | None, BaseException | None]] = []

    def act() -> None:
        try:
            outcome.append((run(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=act, name="listing")
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]
