"""What is fuzzed: each decoder of bytes that somebody else may have written, with sound inputs to
begin with.

A target's `run` gives the bytes to the decoder and uses all that it makes of them. It must come
back, or raise one of `refusals`; anything else is a fault, and so is memory out of proportion.
`reseal` makes the checksums of a damaged input right again, as an enemy would: without it no change
gets past the first check.
"""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import xxhash

from chunkstore.chunk_format import (
    KIND_DIRECTORY,
    KIND_FILE,
    KIND_TOMBSTONE,
    PREAMBLE_BYTES,
    DatasetRef,
    Entries,
    are_links,
    block_counts,
    decode_head,
    encode_head,
    make_versions,
)
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import Commit
from chunkstore.errors import Corrupt
from chunkstore.leases import MAX_GENERATIONS, Lease
from chunkstore.packing_settings import PackingSettings
from chunkstore.paths import check_paths
from chunkstore.tags import Tag
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.wire import frame_header, frames, local_messages
from dieselfs.cache.wire.fields import block_fields
from dieselfs.cache.wire.messages import MAX_MEMBERS, MAX_RANGES, Members, ReadFile, ReadRanges
from dieselfs.errors import PeerRefused, UsageError
from dieselfs.fuse.control.foreign_plans import ForeignPlans
from dieselfs.fuse.requests.errnos import RequestRefused
from dieselfs.prefetch.plan_file import ReadingPlan, encoded_plan, open_plan, write_plan
from metadata.errors import RecordCorrupt, SnapshotRefused
from metadata.records import (
    ENTRY,
    ChunkRecord,
    DatasetState,
    decode_entries,
    encode_entries,
    record_versions,
)
from metadata.snapshot import ROOT, Snapshot
from metadata.snapshot_format import _FILE_HASH_AT, blank_hashes
from tests.dieselfs.cache.wire import golden_frames
from tests.fuzz import path_lookups
from tests.metadata.snapshot_trees import LINKS, PETS, build

CHUNK = ChunkId(bytes(range(16)))
DATASET = DatasetRef("pets", bytes(range(16, 32)))
KEY = b"{key}f"


@dataclass(frozen=True)
class Target:
    name: str
    seeds: Sequence[bytes]
    run: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    reseal: Callable[[bytes], bytes] | None = None
    memory_bytes: int = 1 << 20
    """Allowed besides `memory_times` the input's length."""
    memory_times: int = 64
    rate: float = field(default=1.0)
    """Inputs of this target for one of the others: less where one takes long."""


def all_targets() -> list[Target]:
    return [
        chunk_heads(),
        commits(),
        tags(),
        leases(),
        entry_records(),
        chunk_records(),
        state_records(),
        snapshots(),
        path_lookup_sections(),
        packets(),
        plans(),
        foreign_plans(),
        peer_frames(),
        peer_handshakes(),
    ]


def chunk_heads() -> Target:
    return Target("chunk-head", _heads(), _use_head, (Corrupt,), _reseal_head)


def _heads() -> list[bytes]:
    draw = random.Random(1)
    found = []
    for count in (0, 1, 3, 40):
        for carried in (False, True):
            kinds = [
                draw.choice([KIND_FILE, KIND_FILE, KIND_DIRECTORY, KIND_TOMBSTONE])
                for _ in range(count)
            ]
            length = np.array(
                [draw.choice([0, 10, 300_000]) if kind == KIND_FILE else 0 for kind in kinds],
                np.uint64,
            )
            offset = np.zeros(count, np.uint64)
            np.cumsum(length[:-1], out=offset[1:])
            is_file = np.array(kinds, np.uint8) == KIND_FILE
            offset[~is_file] = 0
            hashes = np.array([draw.getrandbits(64) for _ in kinds], np.uint64)
            hashes[~is_file] = 0
            modes = [0o040755 if kind == KIND_DIRECTORY else 0o100644 for kind in kinds]
            for at in np.flatnonzero(length == 10)[::2].tolist():
                modes[at] = 0o120777
            versions = make_versions(count)
            versions["generation"] = [draw.choice([0, 5, 7]) for _ in kinds]
            versions["chunk"] = [bytes([draw.choice([1, 2])]) * 16 for _ in kinds]
            entries = Entries(
                [b"d%d/f%d" % (number % 3, number) for number in range(count)],
                np.array(kinds, np.uint8),
                np.array(modes, np.uint16),
                np.zeros(count, np.int64),
                offset,
                length,
                hashes,
                np.zeros(int(block_counts(length).sum()), np.uint64),
                versions if carried else None,
            )
            found.append(encode_head(CHUNK, DATASET, int(length.sum()), entries))
    return found


def _use_head(data: bytes) -> None:
    head = decode_head(data)
    entries = head.entries
    assert len(entries.kind) == len(entries.paths)
    check_paths([path for path in entries.paths if path])
    ends = entries.offset.astype(object) + entries.length.astype(object)  # exact, whatever comes
    assert not len(ends) or max(ends) <= head.payload_bytes
    for position in range(min(len(entries), 50)):
        entries.block_range(position)
    if entries.versions is not None:
        assert len(entries.versions) == len(entries)
    assert all(1 <= size <= 4095 for size in entries.length[are_links(entries.mode)].tolist())


def _reseal_head(data: bytes) -> bytes:
    if len(data) < PREAMBLE_BYTES:
        return data
    header = data[PREAMBLE_BYTES:]
    body = bytearray(data[: PREAMBLE_BYTES - 8])
    body[12:16] = struct.pack("<I", len(header))
    body[40:48] = struct.pack("<Q", xxhash.xxh3_64_intdigest(header))
    return bytes(body) + xxhash.xxh3_64_digest(bytes(body)) + header


def commits() -> Target:
    refs = [ChunkRef(ChunkId(bytes([n]) * 16), 100 + n, 1 << 22) for n in range(20)]
    seeds = [
        Commit(1, DATASET.id, 5).encode(),
        Commit(1, DATASET.id, 5, packing=PackingSettings().encode()).encode(),
        Commit(7, DATASET.id, -5, tuple(refs), (CHUNK,) * 3).encode(),
        Commit(9, DATASET.id, 5, removed=True).encode(),
    ]

    def use(data: bytes) -> None:
        for generation in (1, 7, 9):
            try:
                commit = Commit.decode(data, generation)
            except Corrupt:
                continue
            again = Commit.decode(commit.encode(), generation)
            assert again == commit
            assert all(len(chunk.value) == 16 for chunk in commit.retired)

    return Target("commit", seeds, use, (), _digest_at_the_end)


def tags() -> Target:
    seeds = [
        Tag("v1", 7, DATASET.id, -5, f"12-{'8d' * 16}").encode(),
        Tag("v1", 7, DATASET.id, 5, "").encode(),
    ]

    def use(data: bytes) -> None:
        tag = Tag.decode(data, "v1", 7)
        assert Tag.decode(tag.encode(), "v1", 7) == tag
        assert tag.gone or tag.generation >= 0

    return Target("tag", seeds, use, (Corrupt,), _digest_at_the_end)


def leases() -> Target:
    name = "0123456789abcdef" * 2
    seeds = [
        Lease(name, 7, DATASET.id, generations, host, 4711, 1_700_000_000_000_000_000).encode()
        for generations, host in (((), ""), ((3, 9), "node-1"), (tuple(range(300)), "ü" * 100))
    ]

    def use(data: bytes) -> None:
        lease = Lease.decode(data, name, 7)
        assert len(lease.generations) <= MAX_GENERATIONS
        assert lease.is_over(lease.ends_ns)

    return Target("lease", seeds, use, (Corrupt,), _digest_at_the_end)


def _digest_at_the_end(data: bytes) -> bytes:
    return data[:-8] + xxhash.xxh3_64_digest(data[:-8])


def _sealed(data: bytes) -> bytes:
    """A record of the field `f` in the map `KEY`."""
    return data[:-8] + xxhash.xxh3_64_digest(KEY + b"f" + data[:-8])


def entry_records() -> Target:
    rows = np.zeros(4, ENTRY)
    rows["mode"] = [0o100644, 0o040755, 0o100000, 0o120777]
    rows["record_version"] = record_versions(rows["mode"])
    rows["version"] = [2, 5, 8, 10]
    seeds = encode_entries(KEY, [b"f"] * 4, rows)

    def use(data: bytes) -> None:
        [row] = decode_entries(KEY, [b"f"], [data])
        assert row.nbytes == ENTRY.itemsize

    return Target("entry-record", seeds, use, (RecordCorrupt,), _sealed)


def chunk_records() -> Target:
    record = ChunkRecord(9, 5, 4096, 1 << 22, 11, 10, 2, 4242, b"\x05\x01")
    key = KEY
    seeds = [record.encode(key, CHUNK)]

    def use(data: bytes) -> None:
        found = ChunkRecord.decode(key, CHUNK.value, data)
        assert found.encode(key, CHUNK) == data

    def reseal(data: bytes) -> bytes:
        return data[:-8] + xxhash.xxh3_64_digest(key + CHUNK.value + data[:-8])

    return Target("chunk-record", seeds, use, (RecordCorrupt,), reseal)


def state_records() -> Target:
    seeds = [DatasetState(3, 5, 1, 2, 3, 4).encode(KEY, b"f")]

    def use(data: bytes) -> None:
        found = DatasetState.decode(KEY, b"f", data)
        assert DatasetState.decode(KEY, b"f", found.encode(KEY, b"f")) == found

    return Target("state-record", seeds, use, (RecordCorrupt,), _sealed)


def snapshots() -> Target:
    """What passes the verification may be shown to a kernel: names, listings and places must all
    hold."""
    folder = tempfile.TemporaryDirectory(prefix="dieselfs-fuzz-")
    path = Path(folder.name, "it.snapshot")

    def use(data: bytes, kept: object = folder) -> None:
        path.unlink(missing_ok=True)  # a map of the one before must keep its content
        path.write_bytes(data)
        try:
            Snapshot.verify(path)
        except SnapshotRefused:
            with Snapshot.open(path) as snapshot:
                _ask_everything(snapshot, sound=False)
        else:
            with Snapshot.open(path) as snapshot:
                _ask_everything(snapshot, sound=True)

    seeds = [build(tree, Path(folder.name, "seed")).read_bytes() for tree in (PETS, LINKS)]
    return Target(
        "snapshot", seeds, use, (SnapshotRefused,), _reseal_snapshot, 32 << 20, 64, rate=0.2
    )


def _ask_everything(snapshot: Snapshot, *, sound: bool) -> None:
    errors = () if sound else (SnapshotRefused, IndexError)

    def ask(question: Callable[[], object]) -> None:
        try:
            question()
        except errors:
            pass

    def list_directory(inode: int) -> None:
        for number, (name, child) in enumerate(snapshot.children(inode)):
            if sound:
                assert name
                assert b"/" not in name
                assert snapshot.lookup(inode, name) == child
            if number > 100:
                break

    def place(inode: int) -> None:
        extent = snapshot.extent(inode)
        if sound:
            assert extent.offset + extent.length <= extent.chunk.payload_bytes

    for inode in range(ROOT, ROOT + min(snapshot.directory_count, 50)):
        ask(lambda inode=inode: list_directory(inode))  # type: ignore[misc]
    for inode in range(min(snapshot.file_count, 50)):
        ask(lambda inode=inode: place(inode))  # type: ignore[misc]
        ask(lambda inode=inode: snapshot.path_of(inode))  # type: ignore[misc]
    known = [*PETS.files, *PETS.directories]
    ask(lambda: snapshot.resolve_many(known))
    ask(lambda: snapshot.paths.files(known))
    ask(lambda: snapshot.paths_text(np.arange(snapshot.file_count), b"\0"))


def _reseal_snapshot(data: bytes) -> bytes:
    """Length of the file and both hashes, for a header that is as long as it says."""
    length = int.from_bytes(data[12:16], "little")
    if not _FILE_HASH_AT + 32 < length <= len(data):
        return data
    header = (
        data[: _FILE_HASH_AT - 8] + len(data).to_bytes(8, "little") + data[_FILE_HASH_AT:length]
    )
    digest = xxhash.xxh3_128_digest(blank_hashes(header) + data[length:])
    body = header[:_FILE_HASH_AT] + digest + header[_FILE_HASH_AT + 16 : -8]
    return body + xxhash.xxh3_64_digest(body) + data[length:]


def path_lookup_sections() -> Target:
    return Target("path-lookup", path_lookups.seeds(), path_lookups.use, (ValueError,))


def packets() -> Target:
    block = CacheBlock(ChunkRef(CHUNK, 64, 1 << 22))
    said: list[local_messages.Message] = [
        local_messages.JoinAsMember(b"m" * 16, 1 << 30),
        local_messages.OpenRequests(b"m" * 16),
        local_messages.Mapped((block.name,) * 5),
        local_messages.Fetch(block_fields(block), ahead=True),
        local_messages.Prefetch((block_fields(block),) * 3),
        local_messages.Expect((block.name,) * 9, is_last=True),
        local_messages.RequestFailed("Corrupt", "what", "hint"),
        local_messages.EventsReported(((True, block.name),)),
        local_messages.FollowPlan("/dev/shm/x/plans/1"),
    ]
    seeds = [local_messages.encode(message) for message in said]

    def use(data: bytes) -> None:
        message = local_messages.decode(data)
        assert local_messages.decode(local_messages.encode(message)) == message

    return Target("packet", seeds, use, (local_messages.BadPacket,), memory_times=256)


def plans() -> Target:
    folder = tempfile.TemporaryDirectory(prefix="dieselfs-fuzz-")
    plan = ReadingPlan(
        "12-abcdef", np.arange(20, dtype=np.uint32), np.array([0, 7, 20]), "/snapshots/x"
    )
    written = write_plan(Path(folder.name), plan, position=3, after="0123456789abcdef")
    seeds = [written.path.read_bytes()]
    path = Path(folder.name, "plan")

    def use(data: bytes, kept: object = folder) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        found = open_plan(path)
        assert int(found.plan.group_start[-1]) == len(found.plan)
        assert found.position >= 0
        assert isinstance(found.plan.snapshot_path, str)

    return Target("plan", seeds, use, (UsageError,), memory_bytes=4 << 20)


def foreign_plans() -> Target:
    """What a program writes into the control directory, in requests of 4 KiB."""
    order = np.arange(3000, dtype=np.uint32)
    plan = ReadingPlan("12-abcdef", order, np.array([0, 700, 3000]), "/snapshots/x")
    seeds = [b"".join(encoded_plan(plan, position=3, after="0123456789abcdef"))]
    snapshot: Any = SimpleNamespace(id="12-abcdef", file_count=3000)
    name = b"0123456789abcdef.plan"

    def use(data: bytes) -> None:
        told = ForeignPlans(snapshot)
        told.open(1, name, 1000)
        try:
            for start in range(0, len(data), 4096):
                told.write(1, start, memoryview(data)[start : start + 4096])
            found = told.find(name, 1000)
            if found is not None:
                assert int(found.plan.inodes.max(initial=0)) < 3000
                assert int(found.plan.group_start[-1]) == len(found.plan) <= 6001
        finally:
            told.forget(1)
            assert told.statistics().bytes == 0

    return Target("foreign plan", seeds, use, (RequestRefused,), memory_bytes=4 << 20)


def peer_frames() -> Target:
    golden = golden_frames.golden_frames() | golden_frames.golden_frames_of_version_2()
    kinds = *golden_frames.REQUESTS, *golden_frames.TAGGED, *golden_frames.ANSWERS, "PolicyReport"
    seeds = [golden[name] for name in kinds]

    def use(data: bytes) -> None:
        header_bytes, bulk_bytes, checksum = frame_header.decode_prefix(data)
        header = memoryview(data)[frame_header.PREFIX_BYTES :][:header_bytes]
        bulk = memoryview(data)[frame_header.PREFIX_BYTES + header_bytes :]
        if len(bulk) != bulk_bytes:
            raise frame_header.BadFrame("cut")
        try:
            number, request = frames.decode_request(header, checksum)
        except frame_header.BadFrame:
            lead, number = frame_header.decode_lead(header, checksum, bulk_bytes)
            answer = frames.decode_answer(lead, header, bulk)
            again = frames.encode_answer(number, answer, bulk_bytes) + bulk
            assert not isinstance(answer, Members) or len(answer.members) <= MAX_MEMBERS
        else:
            again = frames.encode_request(number, request)
            if isinstance(request, ReadFile):
                assert request.start + request.length <= request.chunk.payload_bytes
            elif isinstance(request, ReadRanges):
                assert 0 < len(request.length) <= MAX_RANGES
                for place, start, length in zip(
                    request.which.tolist(),
                    request.start.tolist(),
                    request.length.tolist(),
                    strict=True,
                ):
                    assert start + length <= request.chunks[place].payload_bytes
                assert len(request.tags) in (0, len(request.chunks))
        # Numbers and texts may have come in a longer form than ours; said again they are as short
        # as they get.
        assert len(again) <= len(data)

    return Target("peer-frame", seeds, use, (frame_header.BadFrame,), _reseal_frame)


def _reseal_frame(data: bytes) -> bytes:
    """Lengths and checksum; the header keeps its length if there is so much."""
    rest = data[frame_header.PREFIX_BYTES :]
    header = rest[: int.from_bytes(data[:4], "little")]
    bulk_bytes = len(rest) - len(header)
    checksum = xxhash.xxh3_64_intdigest(header, bulk_bytes)
    return struct.pack("<IIQ", len(header), bulk_bytes, checksum) + rest


def peer_handshakes() -> Target:
    """Somebody who knows all but the secret: what it makes is refused, or it is what the other side
    has made."""
    true = golden_frames.session(golden_frames.client(), golden_frames.server())
    refusing = golden_frames.server(task="another")
    try:
        refusing.challenge(true["hello"])
    except PeerRefused:
        pass

    def use(data: bytes) -> None:
        fresh, challenged = golden_frames.server(), golden_frames.server()
        challenged.challenge(true["hello"])
        asking, proved = golden_frames.client(), golden_frames.client()
        proved.prove(true["challenge"])
        for read, only in (
            (fresh.challenge, None),
            (asking.prove, None),
            (challenged.welcome, true["proof"]),
            (proved.check_welcome, true["welcome"]),
        ):
            try:
                read(data)
            except (frame_header.BadFrame, PeerRefused):
                pass
            else:
                assert only is None or _content(data) == _content(only)

    seeds = [*true.values(), refusing.refusal]
    return Target("peer-handshake", seeds, use, (), _reseal_frame, rate=0.5)


def _content(frame: bytes) -> bytes:
    """The 32 bytes of a proof."""
    return frame[-32:]
