"""The messages between the masters and clients of a task.

No I/O here; their bytes are in `frames`, and the specification is docs/peer-protocol.md. The
`tags` of a request are numbers that its connection has named (`connection_tags`), one for each
chunk of the request; () if it carries none.

`Data`, `NotCached` or `Failed` answers a request that reads. Answers come in any order: a frame
carries the number of the request that it answers. While an answer takes long, `Working` says that
the request is being worked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_source import ChunkRef
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus, PolicyStatus
from dieselfs.cache.ports.member_record import printable
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.request_tags import RequestTags

PROTOCOL_VERSION: Final = 3
"""The newest version that this release speaks."""
TAGS_VERSION: Final = 2
"""The version from which on requests may carry tags."""
POLICY_VERSION: Final = 2
"""The version from which on a server may be asked for its cache policy."""
FETCHES_VERSION: Final = 3
"""The version from which on answers say what was fetched of the store for them.

Also from then on, a cache node reads its SSD for requests that may not fetch, and may be asked how
much of a dataset it caches.
"""
MAX_RANGES: Final = 512
"""Ranges in one request: as many as one gathered send takes (IOV_MAX is 1,024)."""
MAX_RANGES_BYTES: Final = 8 << 20
"""The bytes that one `ReadRanges` may ask for, unless it is a single range."""
MAX_MEMBERS: Final = 1024
"""The members that a task has at most."""
MAX_TAGS: Final = 2048
"""The tags that a connection has named at most: 2.6 MB of names in all."""
MAX_JOB_BYTES: Final = 255
MAX_BUCKET_BYTES: Final = 1024
MAX_POLICY_BYTES: Final = 64


class ReadFile(NamedTuple):
    """A request for one range of a chunk's payload; the chunk has at most 16 MiB.

    It is the most frequent request and a small one. A named tuple is built in 0.2 µs, a frozen
    dataclass in 0.5 µs, once on either side.
    """

    chunk: ChunkRef
    start: int
    length: int
    may_fetch: bool
    tags: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ReadRanges:
    """A request for ranges of several chunks' payloads, as columns of equal length.

    The answer has all their bytes, in order, or none.
    """

    chunks: tuple[ChunkRef, ...]
    """1 to `MAX_RANGES` chunks of at most 16 MiB each."""
    which: npt.NDArray[np.uint16]
    """Positions in `chunks`. 1 to `MAX_RANGES` rows."""
    start: npt.NDArray[np.uint32]
    length: npt.NDArray[np.uint32]
    may_fetch: bool
    tags: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """A request for a whole chunk of at most 16 MiB. The answer is its head and its payload."""

    chunk: ChunkRef
    may_fetch: bool
    tags: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """A request for a cache block of a file in a larger chunk."""

    block: CacheBlock
    """A block with a `file`; `ReadChunk` asks for whole chunks."""
    may_fetch: bool
    tags: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ping:
    """A request for a sign of life and the node's status. The answer is `Pong`."""


@dataclass(frozen=True, slots=True)
class Join:
    """A request to rank 0, which keeps the member list: `MembershipRegistry.announce`."""

    member: Member


@dataclass(frozen=True, slots=True)
class Leave:
    """A request to rank 0 to end the member's lease: `MembershipRegistry.leave`."""

    member: str


@dataclass(frozen=True, slots=True)
class AskPolicy:
    """A request for the status of a cache node's policies. The answer is `PolicyReport`."""


@dataclass(frozen=True, slots=True)
class AskCached:
    """A request for the bytes of the connection's dataset that a cache node's SSD caches.

    The answer is `CachedBytes`.
    """


@dataclass(frozen=True, slots=True)
class NameTags:
    """A message that gives a number to tags, and has no answer.

    It forgets all tags with greater numbers.
    """

    tag: int
    tags: RequestTags

    @classmethod
    def of(cls, tag: int, tags: RequestTags) -> NameTags:
        """Return the message; a name that cannot be sent becomes empty."""
        job, bucket = _sendable(tags.job, MAX_JOB_BYTES), _sendable(tags.bucket, MAX_BUCKET_BYTES)
        return cls(tag, tags._replace(job=job, bucket=bucket))


def _sendable(name: str, limit: int) -> str:
    try:
        return printable(name, limit)
    except ValueError:
        return ""


Request: TypeAlias = (
    ReadFile | ReadRanges | ReadChunk | ReadBlock | Ping | Join | Leave | AskPolicy | AskCached
)
"""A message that has an answer."""
ClientMessage: TypeAlias = Request | NameTags


@dataclass(frozen=True, slots=True)
class Data:
    """The answer whose bulk, the bytes asked for, follows the header.

    The client knows their number. For `ReadChunk` the bulk is the head, then the payload.
    """

    bulk: memoryview
    fetched_bytes: int = 0
    """The bytes that were fetched of the store for this request; in version 3 and later."""


@dataclass(frozen=True, slots=True)
class NotCached:
    """The answer that the bytes are not cached, and may not be fetched or can't be kept.

    The client must ask another source.
    """

    fetched_bytes: int = 0
    """The bytes that were fetched of the store all the same, as in `Data`."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer that the owner could not get the bytes either."""

    what: str
    """The reason, for a log; cut at 8 KiB."""


@dataclass(frozen=True, slots=True)
class Working:
    """The notice that the request is being worked at; its answer follows."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to `Ping`."""

    status: NodeStatus


@dataclass(frozen=True, slots=True)
class Members:
    """The answer to `Join` and `Leave`."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """The answer to `AskPolicy`."""

    status: PolicyStatus


@dataclass(frozen=True, slots=True)
class CachedBytes:
    """The answer to `AskCached`."""

    cached_bytes: int


Answer: TypeAlias = (
    Data | NotCached | Failed | Working | Pong | Members | PolicyReport | CachedBytes
)
