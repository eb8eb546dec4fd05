"""What the masters and clients of a task say to each other. No I/O here; bytes are in `frames`, the law is docs/peer-protocol.md.

Requests that read are answered by `Data`, `NotCached` or `Failed`, in any order: a frame carries the number of the request that it answers.
While an answer takes long, `Working` says that it is worked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_source import ChunkRef
from dieselfs.node_memory.piece import CacheBlock
from dieselfs.peercache.held_chunks import NodeStatus
from dieselfs.peercache.members import Member

PROTOCOL_VERSION: Final = 1
MAX_RANGES: Final = 512
"""In one request: what one gathered send takes (IOV_MAX is 1,024)."""
MAX_RANGES_BYTES: Final = 8 << 20
"""That one `ReadRanges` may ask for, unless it is a single range."""
MAX_MEMBERS: Final = 1024


class ReadFile(NamedTuple):
    """One range of a chunk's payload; the chunk is at most 16 MiB. The most frequent request, and a small one.

    A named tuple is made in 0.2 µs, a frozen dataclass in 0.5, once on either side.
    """

    chunk: ChunkRef
    start: int
    length: int
    may_fetch: bool


@dataclass(frozen=True, slots=True, eq=False)
class ReadRanges:
    """Ranges of several chunks' payloads, as columns of equal length. Answered by all their bytes, in order, or by none."""

    chunks: tuple[ChunkRef, ...]
    """Of at most 16 MiB each; 1 to `MAX_RANGES`."""
    which: npt.NDArray[np.uint16]
    """Of `chunks`. 1 to `MAX_RANGES` rows."""
    start: npt.NDArray[np.uint32]
    length: npt.NDArray[np.uint32]
    may_fetch: bool


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """A whole chunk of at most 16 MiB: answered by its head and its payload."""

    chunk: ChunkRef
    may_fetch: bool


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """A piece of a file in a larger chunk."""

    block: CacheBlock
    """With a `file`: whole chunks are asked for by `ReadChunk`."""
    may_fetch: bool


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Join:
    """Asked of rank 0, which keeps the list: `MembershipRegistry.announce`."""

    member: Member


@dataclass(frozen=True, slots=True)
class Leave:
    member: str


Request: TypeAlias = ReadFile | ReadRanges | ReadChunk | ReadBlock | Ping | Join | Leave


@dataclass(frozen=True, slots=True)
class Data:
    """The bytes asked for follow the header; their number is known to who asked. Of `ReadChunk` the head, then the payload."""

    bulk: memoryview


@dataclass(frozen=True, slots=True)
class NotCached:
    """It is not held, and may not be fetched or not be kept: ask another source."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The owner could not get it either."""

    what: str
    """For a log; cut at 8 KiB."""


@dataclass(frozen=True, slots=True)
class Working:
    """The request is worked at; its answer follows."""


@dataclass(frozen=True, slots=True)
class Pong:
    status: NodeStatus


@dataclass(frozen=True, slots=True)
class Members:
    """The answer to `Join` and `Leave`."""

    members: tuple[Member, ...]


Answer: TypeAlias = Data | NotCached | Failed | Working | Pong | Members
