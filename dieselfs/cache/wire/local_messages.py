"""The messages between members and the master of a task: one msgpack array a packet. No I/O.

The array is `[kind, field, ...]`. A member has one connection for *cache events*, which is its
membership: the member sends notices, the master sends evictions, and nothing is answered. All other
connections carry *requests*, one at a time, and each is answered.

Every length is bounded before anything is built from it. A packet that is not understood raises
`BadPacket`, and the connection is closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Annotated, Final, TypeAlias, TypeVar, Union

from msgspec import Meta, Struct, msgpack

from chunkstore.errors import (
    AlreadyExists,
    BadSource,
    ChunkStoreError,
    Corrupt,
    Denied,
    InvalidPath,
    NotFound,
    StoreFull,
    Unavailable,
)
from dieselfs.cache.ports.master_port import MemoryStatistics
from dieselfs.cache.wire.fields import BlockFields, Count, Key, Text, check_block, cut
from dieselfs.cache.wire.task_report import TaskFields
from dieselfs.errors import (
    CacheFull,
    DieselFSError,
    LocalFileError,
    MasterGone,
    NotYetSupported,
    PlanTooLarge,
)

T = TypeVar("T")

MAX_PACKET_BYTES: Final = 64 << 10
MAX_NAMES: Final = 512
"""The most names in one message; a block's name has at most 63 characters."""
MAX_BLOCKS: Final = 256
MEMBER_ID_BYTES: Final = 16

_ERRORS: Final[dict[str, type[ChunkStoreError] | type[DieselFSError]]] = {
    "NoRoom": CacheFull,
    **{
        made.__name__: made
        for made in (
            *(Unavailable, Corrupt, NotFound, AlreadyExists, StoreFull, Denied, InvalidPath),
            *(BadSource, ChunkStoreError, PlanTooLarge, MasterGone, LocalFileError),
            NotYetSupported,
        )
    },
}
"""The names of errors on the wire. They do not change with the names of the classes."""
_ERROR_NAMES: Final = {made: name for name, made in _ERRORS.items()}

_COUNTS: Final = len(fields(MemoryStatistics))
Counts: TypeAlias = Annotated[tuple[Count, ...], Meta(min_length=_COUNTS, max_length=_COUNTS)]
"""The fields of `MemoryStatistics`."""
ErrorName: TypeAlias = Annotated[str, Meta(pattern=rf"\A({'|'.join(_ERRORS)})\Z")]
Name: TypeAlias = Annotated[str, Meta(pattern=r"(?a)\A[-\w]{22}(\.\d{1,19}\.\d{1,19})?\Z")]
"""The name of a block, which becomes the name of a file."""
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=MAX_NAMES)]


class BadPacket(ValueError):
    """Not a message, or not within its bounds: the other side does not run this program."""


class Message(Struct, array_like=True, forbid_unknown_fields=True):
    """One packet. The tag of its class is its kind."""


class JoinAsMember(Message, tag=0):
    """The first packet of a cache event connection. It is answered."""

    member: Key
    budget_bytes: Count | None
    """The budget that this member asks for; None: it asks for none."""


class JoinForJob(Message, tag=21):
    """The same, of a member whose job pays for what it asks for."""

    member: Key
    budget_bytes: Count | None
    job: Text
    """Empty for the partition of readers without a job."""


class OpenRequests(Message, tag=1):
    """The first packet of a member's request connection. It is answered."""

    member: Key


# Notices: sent on the cache event connection, not answered.


class Mapped(Message, tag=2):
    """A notice: the member maps these blocks from now on."""

    names: Names


class Unmapped(Message, tag=3):
    """A notice: the member has unmapped these blocks."""

    names: Names


class Discard(Message, tag=4):
    """A notice: evict this block if it is cached."""

    name: Name


class PlanProgress(Message, tag=5):
    """A notice: the first `used` of the expected uses are over."""

    used: Count


# Requests.


class Fetch(Message, tag=6):
    """A request: answer when the block's file is in the folder."""

    block: BlockFields
    ahead: bool

    def __post_init__(self) -> None:
        check_block(self.block)


class Prefetch(Message, tag=7):
    """A request: fetch these blocks in the background."""

    blocks: Annotated[tuple[BlockFields, ...], Meta(max_length=MAX_BLOCKS)]

    def __post_init__(self) -> None:
        for block in self.blocks:
            check_block(block)


class Expect(Message, tag=8):
    """A request: a part of the list of expected uses.

    The list counts when its last part has come, on the same connection.
    """

    names: Names
    is_last: bool


class SetBudget(Message, tag=9):
    """A request: the budget that the member asks for."""

    budget_bytes: Count


class SetQuota(Message, tag=20):
    """A request: what the member knows of the dataset's quota, and what its plan needs."""

    quota_bytes: Count | None
    window_bytes: Count


class FollowPlan(Message, tag=10):
    """A request: prefetch for the reader of this plan file."""

    plan: Text


class GetStatistics(Message, tag=11):
    """A request for `MemoryStatistics`."""


class ScrubMemory(Message, tag=22):
    """A request to verify all cached blocks. A master of a former release closes the connection."""


class GetTask(Message, tag=17):
    """A request for the statistics of the node's part in its task's peer cache."""

    first: Count
    """The first member to report: members are reported in batches."""


class SuspectPeer(Message, tag=19):
    """A request: the member asked this peer of the task, and the peer failed."""

    peer: Text


# Answers.


class Done(Message, tag=12):
    """The answer to a request that returns nothing."""


class StillWorking(Message, tag=16):
    """A sign that a request is still being handled; it is no answer.

    A store that is out may delay the answer for minutes.
    """


class RequestFailed(Message, tag=13):
    """The answer to a request that raised an error."""

    error: ErrorName
    text: Text
    hint: Text


class StatisticsReported(Message, tag=14):
    """The answer to `GetStatistics`."""

    counts: Counts


class MemoryScrubbed(Message, tag=23):
    """The answer to `ScrubMemory`."""

    blocks: Count
    size_bytes: Count
    damaged: Names
    """The names of the damaged blocks, or of the first `MAX_NAMES` of them."""


class TaskReported(Message, tag=18):
    """The answer to `GetTask`. Past the last member it has no members."""

    statistics: TaskFields | None
    """The statistics with some of the members; None if the node has no part in a peer cache."""
    first: Count = 0


# Cache events, which the master sends.


class EventsReported(Message, tag=15):
    """The cache events, in the order in which they happened."""

    items: Annotated[tuple[tuple[bool, Name], ...], Meta(max_length=MAX_NAMES)]
    """(True for evicted or False for inserted, the block's name)."""


_DECODER: Final[msgpack.Decoder[Message]] = msgpack.Decoder(
    Union[tuple(Message.__subclasses__())]  # noqa: UP007  # not known to a type checker
)


def encode(message: Message) -> bytes:
    """Return the message as one packet of at most `MAX_PACKET_BYTES`."""
    packet = msgpack.encode(message)
    assert len(packet) <= MAX_PACKET_BYTES
    return packet


def decode(packet: bytes) -> Message:
    """Return the message of one packet. Raises `BadPacket`."""
    if len(packet) > MAX_PACKET_BYTES:
        raise BadPacket("a packet is too long")
    try:
        return _DECODER.decode(packet)
    except ValueError as error:  # msgspec's errors, and those of texts
        raise BadPacket(f"not a message: {error}") from None


def failure(error: Exception) -> RequestFailed | None:
    """Return an error as a message, or None if messages cannot carry its class."""
    hint = getattr(error, "hint", None) or ""
    for ancestor in type(error).__mro__:
        name = _ERROR_NAMES.get(ancestor)
        if name is not None:
            return RequestFailed(name, cut(str(error)), cut(hint))
    return None


def error_of(failed: RequestFailed) -> ChunkStoreError | DieselFSError:
    """Return the error that a message carries: of the same class, with the same text."""
    made = _ERRORS[failed.error]
    if issubclass(made, DieselFSError):
        return made(failed.text, failed.hint or None)
    return made(failed.text)


def batches(items: Sequence[T], limit: int = MAX_NAMES) -> Iterator[tuple[T, ...]]:
    """Yield names, or other items, in batches that fit into one message."""
    for start in range(0, len(items), limit):
        yield tuple(items[start : start + limit])
