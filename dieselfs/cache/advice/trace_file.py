"""The trace file: requests as an SSD tier's cache policies saw them, and what jobs published.

A file is a head and blocks, all little-endian:

    head   8 bytes DFSTRACE, u16 version, u16 bytes of a record, u32 0, i64 start (ns since 1970)
    block  u8 kind, 3 bytes 0, u32 length, u32 CRC-32 of the payload, payload

| kind | payload |
|---|---|
| 1 names | JSON: new names of `datasets`, `jobs` and `buckets`; their numbers count from 1 |
| 2 order | u16 length of a plan's id, the id, then the plan's keys, u32 each |
| 3 specification | JSON: what a job publishes, but for its position; they are numbered from 0 |
| 4 publication | u32 number of a specification, u32 ms, u64 position, f64 keys a second |
| 5 requests | records of 24 bytes, see `RECORD` |

A name stands in a block before its first use, and 0 is a name that is empty or for which there was
no number left. Times are milliseconds since the start. A file that was cut off is read up to its
last whole block.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from chunkstore.ssd.policies.job_specifications import JobSpecification, PlannedReads
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_events import Observed, PolicyDecision, PolicyRequest
from dieselfs.cache.advice.request_trace import Publication
from dieselfs.errors import LocalFileError

MAGIC: Final = b"DFSTRACE"
VERSION: Final = 1
MISS, HIT, ADMITTED, REFUSED = range(4)
"""The outcome of a record. The last two are decisions: they have a bucket and a key only."""
RECORD: Final = np.dtype(
    [
        ("outcome", "u1"),
        ("dataset", "u1"),
        ("epoch", "<u2"),
        ("job", "<u2"),
        ("bucket", "<u2"),
        ("time_ms", "<u4"),
        ("length", "<u4"),
        ("key", "<u8"),
    ]
)
_RECORD: Final = struct.Struct("<BBHHHIIQ")
_HEAD: Final = struct.Struct("<8sHHIq")
_BLOCK: Final = struct.Struct("<B3xII")
_PUBLICATION: Final = struct.Struct("<IIQd")
_NAMES, _ORDER, _SPECIFICATION, _PUBLISHED, _REQUESTS = range(1, 6)
_TABLES: Final = {"datasets": 0xFF, "jobs": 0xFFFF, "buckets": 0xFFFF}
"""Tables of names, with the largest number of each."""
_MOST_MS: Final = 0xFFFFFFFF
_FIELDS: Final = tuple(each.name for each in fields(JobSpecification) if each.name != "plan")
PUBLISH_S: Final = 5.0
"""A reader's position is recorded no more often; policies learn of it every 10 s."""


def head(started_ns: int) -> bytes:
    """Return the beginning of a file."""
    return _HEAD.pack(MAGIC, VERSION, RECORD.itemsize, 0, started_ns)


class TraceEncoder:
    """The encoder of one file, which knows what the file has already. Not thread-safe."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {table: {"": 0} for table in _TABLES}
        self._new: dict[str, list[str]] = {}
        self._orders: set[str] = set()
        self._specifications: dict[tuple[str, str], tuple[bytes, int]] = {}
        """(job, reader) -> its last specification and the number of that."""
        self._count = 0
        self._published_s: dict[tuple[str, str], float] = {}

    def encode(self, events: Iterable[tuple[float, Observed]]) -> bytes:
        """Return blocks for events with their times, in seconds since the start. 1 µs each."""
        records = bytearray()
        blocks: list[bytes] = []
        for time_s, event in events:
            if isinstance(event, JobSpecification):
                blocks += self._publication(time_s, event)
            else:
                records += self._record(_ms(time_s), event)
        if self._new:
            blocks.insert(0, _block(_NAMES, json.dumps(self._new).encode()))
            self._new = {}
        if records:
            blocks.append(_block(_REQUESTS, records))
        return b"".join(blocks)

    def _record(self, time_ms: int, event: PolicyRequest | PolicyDecision) -> bytes:
        bucket = self._number("buckets", event.bucket)
        if isinstance(event, PolicyDecision):
            outcome = ADMITTED if event.admitted else REFUSED
            return _RECORD.pack(outcome, 0, 0, 0, bucket, time_ms, 0, event.key)
        return _RECORD.pack(
            HIT if event.hit else MISS,
            self._number("datasets", event.dataset),
            event.epoch & 0xFFFF,
            self._number("jobs", event.job),
            bucket,
            time_ms,
            event.length,
            event.key,
        )

    def _number(self, table: str, name: str) -> int:
        numbers = self._numbers[table]
        number = numbers.get(name)
        if number is None:
            if len(numbers) > _TABLES[table]:
                return 0
            number = numbers[name] = len(numbers)
            self._new.setdefault(table, []).append(name)
        return number

    def _publication(self, time_s: float, told: JobSpecification) -> Iterator[bytes]:
        reader, plan = (told.job, told.reader), told.plan
        body = _described(told)
        known, number = self._specifications.get(reader, (b"", 0))
        if body == known and time_s - self._published_s[reader] < PUBLISH_S:
            return
        if plan is not None and plan.id not in self._orders:
            self._orders.add(plan.id)
            name = plan.id.encode()
            keys = np.asarray(plan.keys, "<u4").tobytes()
            yield _block(_ORDER, len(name).to_bytes(2, "little") + name + keys)
        if body != known:
            number, self._count = self._count, self._count + 1
            self._specifications[reader] = body, number
            yield _block(_SPECIFICATION, body)
        self._published_s[reader] = time_s
        position, rate = (0, 0.0) if plan is None else (plan.position, plan.keys_per_s)
        yield _block(_PUBLISHED, _PUBLICATION.pack(number, _ms(time_s), position, rate))


def _ms(time_s: float) -> int:
    return min(max(0, int(time_s * 1000)), _MOST_MS)


def _block(kind: int, payload: bytes | bytearray) -> bytes:
    return _BLOCK.pack(kind, len(payload), zlib.crc32(payload)) + payload


def _described(told: JobSpecification) -> bytes:
    """Return all of a specification but its plan's keys, position and rate."""
    plan = told.plan
    described: dict[str, object] = {name: getattr(told, name) for name in _FIELDS}
    described["finished"] = sorted(told.finished)
    described["plan"] = None if plan is None else {"id": plan.id, "repeats": plan.repeats}
    return json.dumps(described).encode()


@dataclass(slots=True)
class TraceFile:
    """The content of one file."""

    path: Path
    started_s: float = 0.0
    """Seconds since 1970."""
    records: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, RECORD))
    """In the order in which they were recorded; `time_ms` may go back by little."""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The tables `datasets`, `jobs` and `buckets`: names by number."""
    publications: Sequence[Publication] = ()
    """Their times are seconds since the start."""
    is_cut: bool = False
    """True if the last block was cut off, and is left out."""


def read_trace(path: Path) -> TraceFile:
    """Return the content of a file; raise `LocalFileError` if it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LocalFileError(f"{path}: {error.strerror}", "name a trace file") from error
    try:
        return _Decoder(path, data).decoded()
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise LocalFileError(
            f"the trace {path} is damaged: {error}", "record it again with --record-trace"
        ) from error


class _Decoder:
    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data = path, memoryview(data)
        self._names: dict[str, list[str]] = {table: [""] for table in _TABLES}
        self._orders: dict[str, npt.NDArray[np.uint32]] = {}
        self._specifications: list[dict[str, Any]] = []
        self._publications: list[Publication] = []
        self._records: list[npt.NDArray[np.void]] = []

    def decoded(self) -> TraceFile:
        started_s = self._started_s()
        is_cut = False
        at = _HEAD.size
        while at < len(self._data) and not is_cut:
            at, is_cut = self._next_block(at)
        records = np.concatenate([np.zeros(0, RECORD), *self._records])
        for column, table in (("dataset", "datasets"), ("job", "jobs"), ("bucket", "buckets")):
            if len(records) and records[column].max() >= len(self._names[table]):
                raise ValueError(f"a request is of one of the {table} that has no name")
        return TraceFile(
            self._path, started_s, records, self._names, tuple(self._publications), is_cut
        )

    def _started_s(self) -> float:
        data = self._data
        if bytes(data[: len(MAGIC)]) != MAGIC[: len(data)] or not len(data):
            raise LocalFileError(f"{self._path} is not a trace", "name a file of --record-trace")
        if len(data) < _HEAD.size:
            raise ValueError("it ends within its head")
        _, version, record_bytes, _, started_ns = _HEAD.unpack_from(data)
        if version != VERSION or record_bytes != RECORD.itemsize:
            raise LocalFileError(
                f"the trace {self._path} has version {version}, and this release reads {VERSION}",
                "use the release of dlcmd that has recorded it",
            )
        return float(started_ns) / 1e9

    def _next_block(self, at: int) -> tuple[int, bool]:
        """Take the block at an offset; return the offset of the next, and whether it was cut."""
        if at + _BLOCK.size > len(self._data):
            return at, True
        kind, length, crc = _BLOCK.unpack_from(self._data, at)
        if not _NAMES <= kind <= _REQUESTS:
            raise ValueError(f"a block of kind {kind} at byte {at}")
        first = at + _BLOCK.size
        if first + length > len(self._data):
            return at, True
        payload = self._data[first : first + length]
        if zlib.crc32(payload) != crc:
            raise ValueError(f"the block at byte {at} has another checksum")
        self._take(kind, payload)
        return first + length, False

    def _take(self, kind: int, payload: memoryview) -> None:
        if kind == _REQUESTS:
            self._records.append(np.frombuffer(payload, RECORD))
        elif kind == _NAMES:
            for table, names in json.loads(bytes(payload)).items():
                self._names[table] += map(str, names)
        elif kind == _ORDER:
            size = int.from_bytes(payload[:2], "little")
            self._orders[str(payload[2 : 2 + size], "utf-8")] = np.frombuffer(
                payload[2 + size :], "<u4"
            )
        elif kind == _SPECIFICATION:
            self._specifications.append(json.loads(bytes(payload)))
        else:
            self._publications.append(self._published(payload))

    def _published(self, payload: memoryview) -> Publication:
        number, time_ms, position, rate = _PUBLICATION.unpack(payload)
        told = self._specifications[number]
        plan = told["plan"]
        if plan is not None:
            keys = self._orders[plan["id"]]
            plan = PlannedReads(plan["id"], keys, position, rate, bool(plan["repeats"]))
        others = {name: told[name] for name in _FIELDS if name in told}
        others["buckets"] = tuple(map(Bucket, told["buckets"]))
        others["finished"] = frozenset(map(Bucket, told["finished"]))
        return Publication(time_ms / 1000, JobSpecification(**others, plan=plan))


def new_file(path: Path) -> tuple[Path, int]:
    """Create a file of that name, or of `name.2` and so on if it exists; raise `OSError`.

    Return its path and its descriptor. A mount that starts again so never overwrites a trace.
    """
    for number in range(1, _MOST_FILES):
        named = path if number == 1 else path.with_name(f"{path.name}.{number}")
        try:
            return named, os.open(named, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            continue
    raise FileExistsError(f"there are {_MOST_FILES - 1} traces of that name")


_MOST_FILES: Final = 101
