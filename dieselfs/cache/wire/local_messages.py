"""The messages between members and the master of a task: one msgpack array a packet. No I/O.

The array is `[kind, field, ...]`. A member has one connection for *cache events*, which is its
membership: the member sends notices, the master sends evictions, and nothing is answered. All other
connections carry *requests*, one at a time, and each is answered.

Every length is bounded before anything is built from it. A packet that is not understood raises
`BadPacket`, and the connection is closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, Final, TypeAlias

import msgpack

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef, FileExtent
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
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, CacheBlock
from dieselfs.cache.ports.master_port import MemoryStatistics
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.wire import task_report
from dieselfs.errors import (
    CacheFull,
    DieselFSError,
    LocalFileError,
    MasterGone,
    NotYetSupported,
    PlanTooLarge,
)

MAX_PACKET_BYTES: Final = 64 << 10
MAX_NAMES: Final = 512
"""The most names in one message; a block's name has at most 63 characters."""
MAX_BLOCKS: Final = 256
MEMBER_ID_BYTES: Final = 16

_MAX_TEXT_BYTES: Final = 8 << 10
_MAX_INTEGER: Final = (1 << 63) - 1
_NAME: Final = re.compile(r"[-\w]{22}(\.\d{1,19}\.\d{1,19})?", re.ASCII)


class BadPacket(ValueError):
    """Not a message, or not within its bounds: the other side does not run this program."""


@dataclass(frozen=True, slots=True)
class JoinAsMember:
    """The first packet of a cache event connection. It is answered."""

    member: bytes
    budget_bytes: int | None
    """The budget that this member asks for; None: it asks for none."""


@dataclass(frozen=True, slots=True)
class OpenRequests:
    """The first packet of a member's request connection. It is answered."""

    member: bytes


# Notices: sent on the cache event connection, not answered.


@dataclass(frozen=True, slots=True)
class Mapped:
    """A notice: the member maps these blocks from now on."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unmapped:
    """A notice: the member has unmapped these blocks."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """A notice: evict this block if it is cached."""

    name: str


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """A notice: the first `used` of the expected uses are over."""

    used: int


# Requests.


@dataclass(frozen=True, slots=True)
class Fetch:
    """A request: answer when the block's file is in the folder."""

    block: CacheBlock
    ahead: bool


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A request: fetch these blocks in the background."""

    blocks: tuple[CacheBlock, ...]


@dataclass(frozen=True, slots=True)
class Expect:
    """A request: a part of the list of expected uses.

    The list counts when its last part has come, on the same connection.
    """

    names: tuple[str, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class SetBudget:
    """A request: the budget that the member asks for."""

    budget_bytes: int


@dataclass(frozen=True, slots=True)
class FollowPlan:
    """A request: prefetch for the reader of this plan file."""

    plan: str


@dataclass(frozen=True, slots=True)
class GetStatistics:
    """A request for `MemoryStatistics`."""


@dataclass(frozen=True, slots=True)
class GetTask:
    """A request for the statistics of the node's part in its task's peer cache."""

    first: int
    """The first member to report: members are reported in batches."""


@dataclass(frozen=True, slots=True)
class SuspectPeer:
    """A request: the member asked this peer of the task, and the peer failed."""

    peer: str


# Answers.


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to a request that returns nothing."""


@dataclass(frozen=True, slots=True)
class StillWorking:
    """A sign that a request is still being handled; it is no answer.

    A store that is out may delay the answer for minutes.
    """


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The answer to a request that raised an error."""

    error: str
    """The key of a class in `_ERRORS`."""
    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class StatisticsReported:
    """The answer to `GetStatistics`."""

    statistics: MemoryStatistics


@dataclass(frozen=True, slots=True)
class TaskReported:
    """The answer to `GetTask`. Past the last member it has no members."""

    statistics: TaskStatistics | None
    """The statistics; None if the node has no part in a peer cache.

    `encode` takes all members and sends those from `first` on; `decode` returns the ones that were
    sent.
    """
    first: int = 0


# Cache events, which the master sends.


@dataclass(frozen=True, slots=True)
class EventsReported:
    """The cache events, in the order in which they happened."""

    items: tuple[tuple[bool, str], ...]
    """(True for evicted or False for inserted, the block's name)."""


Message: TypeAlias = (
    JoinAsMember
    | OpenRequests
    | Mapped
    | Unmapped
    | Discard
    | PlanProgress
    | Fetch
    | Prefetch
    | Expect
    | SetBudget
    | FollowPlan
    | GetStatistics
    | GetTask
    | SuspectPeer
    | Done
    | StillWorking
    | RequestFailed
    | StatisticsReported
    | TaskReported
    | EventsReported
)


def encode(message: Message) -> bytes:
    """Return the message as one packet of at most `MAX_PACKET_BYTES`."""
    match message:
        case Fetch(block, ahead):
            body: list[object] = [_flat(block), ahead]
        case Prefetch(blocks):
            body = [[_flat(block) for block in blocks]]
        case StatisticsReported(statistics):
            body = [astuple(statistics)]
        case TaskReported(statistics, first):
            body = [None if statistics is None else task_report.flat(statistics, first), first]
        case _:
            body = [getattr(message, field.name) for field in fields(message)]
    packet: bytes = msgpack.packb([_KIND[type(message)], *body])
    assert len(packet) <= MAX_PACKET_BYTES
    return packet


def decode(packet: bytes) -> Message:
    """Return the message of one packet. Raises `BadPacket`."""
    if len(packet) > MAX_PACKET_BYTES:
        raise BadPacket("a packet is too long")
    try:
        kind, *body = msgpack.unpackb(
            packet,
            max_str_len=_MAX_TEXT_BYTES,
            max_bin_len=MEMBER_ID_BYTES,
            max_array_len=MAX_NAMES,
            max_map_len=0,
            max_ext_len=0,
        )
        return _READERS[kind](*body)
    except BadPacket:
        raise
    except Exception as error:  # msgpack's errors, a wrong number of fields, wrong types
        raise BadPacket(f"not a message: {error!r}") from None


def failure(error: Exception) -> RequestFailed | None:
    """Return an error as a message, or None if messages cannot carry its class."""
    hint = getattr(error, "hint", None) or ""
    for ancestor in type(error).__mro__:
        name = _ERROR_NAMES.get(ancestor)
        if name is not None:
            return RequestFailed(name, _cut(str(error)), _cut(hint))
    return None


def error_of(failed: RequestFailed) -> ChunkStoreError | DieselFSError:
    """Return the error that a message carries: of the same class, with the same text."""
    made = _ERRORS[failed.error]
    if issubclass(made, DieselFSError):
        return made(failed.text, failed.hint or None)
    return made(failed.text)


def batches(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the names in batches that fit into one message."""
    for start in range(0, len(names), MAX_NAMES):
        yield tuple(names[start : start + MAX_NAMES])


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


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:_MAX_TEXT_BYTES].decode("utf-8", "ignore")


def _flat(block: CacheBlock) -> list[object]:
    chunk, file = block.chunk, block.file
    body: list[object] = [chunk.id.value, chunk.head_bytes, chunk.payload_bytes]
    return body if file is None else [*body, file.offset, file.length, file.hash, block.number]


def _block(value: object) -> CacheBlock:
    flat = _array(value, 7)
    chunk_id = flat[0]
    if not isinstance(chunk_id, bytes) or len(flat) not in (3, 7):
        raise BadPacket("not a block")
    chunk = ChunkRef(ChunkId(chunk_id), _integer(flat[1]), _integer(flat[2]))
    if len(flat) == 3:
        if chunk.payload_bytes > MAX_WHOLE_BYTES:
            raise BadPacket("a chunk of this size is not a block")
        return CacheBlock(chunk)
    offset, length, number = _integer(flat[3]), _integer(flat[4]), _integer(flat[6])
    if offset + length > chunk.payload_bytes or number * CACHE_BLOCK_BYTES >= length:
        raise BadPacket("a block lies outside of its chunk")
    return CacheBlock(
        chunk, FileExtent(chunk, offset, length, _integer(flat[5], (1 << 64) - 1)), number
    )


def _array(value: object, limit: int) -> list[object]:
    if not isinstance(value, list) or len(value) > limit:
        raise BadPacket(f"not an array of up to {limit}")
    return value


def _integer(value: object, limit: int = _MAX_INTEGER) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise BadPacket("not an integer within its bounds")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadPacket("not a flag")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadPacket("not a text")
    return value


def _name(value: object) -> str:
    text = _text(value)
    if not _NAME.fullmatch(text):  # it becomes the name of a file
        raise BadPacket("not the name of a block")
    return text


def _names(value: object) -> tuple[str, ...]:
    return tuple(map(_name, _array(value, MAX_NAMES)))


def _member(value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != MEMBER_ID_BYTES:
        raise BadPacket("not a member's id")
    return value


def _budget(value: object) -> int | None:
    return None if value is None else _integer(value)


def _error_name(value: object) -> str:
    text = _text(value)
    if text not in _ERRORS:
        raise BadPacket("not an error that can be sent")
    return text


def _statistics(value: object) -> MemoryStatistics:
    return MemoryStatistics(*map(_integer, _array(value, len(fields(MemoryStatistics)))))


def _task_statistics(value: object) -> TaskStatistics | None:
    return None if value is None else task_report.read(value)


def _events(value: object) -> tuple[tuple[bool, str], ...]:
    items = (_array(item, 2) for item in _array(value, MAX_NAMES))
    return tuple((_flag(evicted), _name(name)) for evicted, name in items)


def _reader(made: Callable[..., Message], *readers: Callable[[object], Any]) -> _Reader:
    def read(*body: object) -> Message:
        return made(*(reader(value) for reader, value in zip(readers, body, strict=True)))

    return read


_Reader: TypeAlias = Callable[..., Message]
_TABLE: Final[tuple[tuple[type[Message], tuple[Callable[[object], Any], ...]], ...]] = (
    (JoinAsMember, (_member, _budget)),
    (OpenRequests, (_member,)),
    (Mapped, (_names,)),
    (Unmapped, (_names,)),
    (Discard, (_name,)),
    (PlanProgress, (_integer,)),
    (Fetch, (_block, _flag)),
    (Prefetch, (lambda value: tuple(map(_block, _array(value, MAX_BLOCKS))),)),
    (Expect, (_names, _flag)),
    (SetBudget, (_integer,)),
    (FollowPlan, (_text,)),
    (GetStatistics, ()),
    (Done, ()),
    (RequestFailed, (_error_name, _text, _text)),
    (StatisticsReported, (_statistics,)),
    (EventsReported, (_events,)),
    (StillWorking, ()),
    (GetTask, (_integer,)),
    (TaskReported, (_task_statistics, _integer)),
    (SuspectPeer, (_text,)),
)
_KIND: Final = {made: kind for kind, (made, _) in enumerate(_TABLE)}
_READERS: Final = {_KIND[made]: _reader(made, *readers) for made, readers in _TABLE}
