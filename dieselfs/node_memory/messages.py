"""What members and the master of a task say to each other: one msgpack array a packet, `[kind, field, ...]`. No I/O here.

A member has one connection for *news*, which is its membership: notices go up, what was evicted comes down, and nothing is answered. All
others carry *requests*, one at a time, each answered. Every length is bounded before anything is made of it; whatever is not
understood raises `BadPacket`, and the connection is closed.
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
from dieselfs.errors import (
    CacheFull,
    DieselFSError,
    LocalFileError,
    MasterGone,
    NotYetSupported,
    PlanTooLarge,
)
from dieselfs.node_memory import task_report
from dieselfs.node_memory.master_port import MemoryStatistics
from dieselfs.node_memory.piece import CACHE_BLOCK_BYTES, CacheBlock
from dieselfs.peercache.task_statistics import TaskStatistics

MAX_PACKET_BYTES: Final = 64 << 10
MAX_NAMES: Final = 512
"""In one message: a name of a piece has at most 63 characters."""
MAX_BLOCKS: Final = 256
MEMBER_ID_BYTES: Final = 16

_MAX_TEXT_BYTES: Final = 8 << 10
_MAX_INTEGER: Final = (1 << 63) - 1
_NAME: Final = re.compile(r"[-\w]{22}(\.\d{1,19}\.\d{1,19})?", re.ASCII)


class BadPacket(ValueError):
    """Not a message, or not within its bounds: the other side is not one of ours."""


@dataclass(frozen=True, slots=True)
class JoinAsMember:
    """The first packet of a news connection. Answered."""

    member: bytes
    budget_bytes: int | None
    """What this member wants the budget to be; None: it has no wish."""


@dataclass(frozen=True, slots=True)
class OpenRequests:
    """The first packet of a member's request connection. Answered."""

    member: bytes


# Notices, on the news connection, are not answered.


@dataclass(frozen=True, slots=True)
class Mapped:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unmapped:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    name: str


@dataclass(frozen=True, slots=True)
class PlanProgress:
    used: int


# Requests.


@dataclass(frozen=True, slots=True)
class Fetch:
    block: CacheBlock
    ahead: bool


@dataclass(frozen=True, slots=True)
class Prefetch:
    blocks: tuple[CacheBlock, ...]


@dataclass(frozen=True, slots=True)
class Expect:
    """A part of the list; it counts when the last has come, on the same connection."""

    names: tuple[str, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class SetBudget:
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class FollowPlan:
    plan: str


@dataclass(frozen=True, slots=True)
class GetStatistics:
    pass


@dataclass(frozen=True, slots=True)
class GetTask:
    """What the node's part in its task's peer cache does."""

    first: int
    """Of its members: they are told a part at a time."""


@dataclass(frozen=True, slots=True)
class SuspectPeer:
    """A peer of the task that the member has asked in vain."""

    peer: str


# Answers.


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class StillWorking:
    """No answer, but a sign that one is being worked at: a store that is out may keep it waiting for minutes."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    error: str
    """The name of a class in `_ERRORS`."""
    text: str
    hint: str


@dataclass(frozen=True, slots=True)
class StatisticsReported:
    statistics: MemoryStatistics


@dataclass(frozen=True, slots=True)
class TaskReported:
    """Without members past the last one."""

    statistics: TaskStatistics | None
    """None: it has no part in any. Encoded with members from `first` on, decoded with those that were."""
    first: int = 0


# What the master tells.


@dataclass(frozen=True, slots=True)
class EventsReported:
    """In the order in which it happened."""

    items: tuple[tuple[bool, str], ...]
    """(evicted, the piece's name); not evicted: arrived."""


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
    """One packet of at most `MAX_PACKET_BYTES`."""
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
    """The message of one packet. Raises `BadPacket`."""
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
    except Exception as error:  # of many kinds: msgpack's, a wrong number of fields, wrong types
        raise BadPacket(f"not a message: {error!r}") from None


def failure(error: Exception) -> RequestFailed | None:
    """An error as a message; None if it is of no class that travels."""
    hint = getattr(error, "hint", None) or ""
    for ancestor in type(error).__mro__:
        name = _ERROR_NAMES.get(ancestor)
        if name is not None:
            return RequestFailed(name, _cut(str(error)), _cut(hint))
    return None


def error_of(failed: RequestFailed) -> ChunkStoreError | DieselFSError:
    """The error that a message tells of: of the same class, with the same text."""
    made = _ERRORS[failed.error]
    if issubclass(made, DieselFSError):
        return made(failed.text, failed.hint or None)
    return made(failed.text)


def batches(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """As many at a time as one message holds."""
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
"""What errors are called on the wire, which does not change with the classes' names."""
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
        raise BadPacket("not a piece")
    chunk = ChunkRef(ChunkId(chunk_id), _integer(flat[1]), _integer(flat[2]))
    if len(flat) == 3:
        if chunk.payload_bytes > MAX_WHOLE_BYTES:
            raise BadPacket("a chunk of this size is no piece")
        return CacheBlock(chunk)
    offset, length, number = _integer(flat[3]), _integer(flat[4]), _integer(flat[6])
    if offset + length > chunk.payload_bytes or number * CACHE_BLOCK_BYTES >= length:
        raise BadPacket("a piece that lies outside of its chunk")
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
        raise BadPacket("not the name of a piece")
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
        raise BadPacket("not an error that travels")
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
