"""Parallel small reads of a store, answered in order, with a bounded number under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

READS_AT_ONCE: Final = 16
_AHEAD: Final = 4 * READS_AT_ONCE
"""The answers that may wait for the caller: heads of 100 KiB make 6 MiB."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def read_in_parallel(
    read: Callable[[Item], Answer],
    items: Iterable[Item],
    *,
    at_once: int = READS_AT_ONCE,
    ahead: int = _AHEAD,
) -> Generator[tuple[Item, Answer], None, None]:
    """Yield (item, `read(item)`) in the order of `items`; `ahead` answers may wait for the caller.

    The first error is raised in its turn, after the reads under way have finished. A caller that
    closes the generator waits for these too, and no further read is begun.
    """
    with ThreadPoolExecutor(at_once, "parallel-read") as pool:
        waiting: deque[tuple[Item, Future[Answer]]] = deque()
        try:
            for item in items:
                waiting.append((item, pool.submit(read, item)))
                if len(waiting) > ahead:
                    first, answer = waiting.popleft()
                    yield first, answer.result()
            while waiting:
                first, answer = waiting.popleft()
                yield first, answer.result()
        finally:
            for _, answer in waiting:
                answer.cancel()
