"""The heads of many chunks, read several at a time and returned in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from chunkstore.chunk_format import ChunkHead
from chunkstore.chunk_source import ChunkRef

_READERS: Final = 16
"""The parallel reads that keep a processor busy with decoding when the object store is far away."""
_AHEAD_BYTES: Final = 8 << 20
"""The encoded bytes that are read ahead; decoded, they are about four times that.

A single head may be larger.
"""


def read_heads(
    refs: Sequence[ChunkRef], read_head: Callable[[ChunkRef], ChunkHead]
) -> Generator[ChunkHead, None, None]:
    """Yield the head of each of `refs`, in their order.

    The first error of `read_head` is raised in its place.
    """
    reading: deque[tuple[Future[ChunkHead], int]] = deque()
    ahead_bytes = 0
    pool = ThreadPoolExecutor(_READERS, "heads")
    try:
        for ref in refs:
            while reading and (
                ahead_bytes + ref.head_bytes > _AHEAD_BYTES or len(reading) >= 2 * _READERS
            ):
                future, size = reading.popleft()
                ahead_bytes -= size
                yield future.result()
            reading.append((pool.submit(read_head, ref), ref.head_bytes))
            ahead_bytes += ref.head_bytes
        while reading:
            yield reading.popleft()[0].result()
    finally:
        pool.shutdown(cancel_futures=True)
