"""The requests of chunks that readers read by parts, as cache policies see them.

Readers often read a chunk by many small ranges. All of them are one request: it ends when as many
bytes were read as the chunk has, and the policy is asked once in it. So a part after the first one
needs no lock, no key and no bucket: it is one look-up.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_counts import PolicyCounts
from chunkstore.ssd.reader_tags import BLOCK_BYTES, WHOLE_BYTES, ChunkRead

MAX_REQUESTS: Final = 1 << 16
"""Requests that are remembered, in 25 MiB at most."""


@dataclass(slots=True)
class OngoingRequest:
    """A request of one reader, of a chunk's object up to 32 MiB or of a block beyond."""

    bucket: Bucket
    key: int
    """The key of the first segment (`policies.tags.key_of`)."""
    counts: PolicyCounts
    """The counts to which its reads are added."""
    left: int = 0
    """Bytes that are still to be read."""
    admitted: bool | None = None
    """The decision about it; None: there is none yet."""


class OngoingRequests:
    """The requests that were begun by a part. Thread-safe.

    Each step is one operation of a dictionary. Two threads that read at the same time may both
    subtract from what is left, of which one result may be lost; the request ends later then.
    """

    def __init__(self, limit: int = MAX_REQUESTS) -> None:
        self._limit = limit
        self._of: OrderedDict[tuple[str, bytes, int], OngoingRequest] = OrderedDict()

    def of(self, read: ChunkRead) -> OngoingRequest | None:
        """Return the request to which a read belongs, if it was begun and has not ended."""
        return self._of.get(_name(read))

    def goes_on(self, read: ChunkRead) -> OngoingRequest | None:
        """Return the request with which a read goes on; None: it begins one."""
        name = _name(read)
        if read.length >= read.size:
            self._of.pop(name, None)
            return None
        found = self._of.get(name)
        if found is not None:
            found.left -= read.length
            if found.left <= 0:
                self._of.pop(name, None)
        return found

    def begin(self, read: ChunkRead, request: OngoingRequest) -> bool:
        """Remember the request if its other parts follow.

        Return False if another thread has just begun the same.
        """
        if read.length >= read.size:
            return True
        request.left = read.size - read.length
        found = self._of.setdefault(_name(read), request)
        if found is not request:
            found.left -= read.length
            return False
        if len(self._of) > self._limit:
            self._of.popitem(last=False)
        return True


def _name(read: ChunkRead) -> tuple[str, bytes, int]:
    start = read.start
    return read.tags.job, read.chunk, 0 if start < WHOLE_BYTES else start // BLOCK_BYTES
