"""What is said comes back as it was; what is not understood is refused before anything is made of
it."""

from __future__ import annotations

import json
from dataclasses import astuple, fields, replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt, Denied, NotFound, Unavailable
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.master_port import MemoryStatistics
from dieselfs.cache.ports.task_statistics import (
    FillingStatistics,
    MemberStatistics,
    TaskStatistics,
)
from dieselfs.cache.wire import local_messages
from dieselfs.cache.wire.fields import block_fields
from dieselfs.cache.wire.local_messages import (
    MAX_BLOCKS,
    MAX_NAMES,
    MAX_PACKET_BYTES,
    BadPacket,
    Message,
    decode,
    encode,
)
from dieselfs.cache.wire.task_report import MEMBERS_AT_ONCE, joined, task_fields
from dieselfs.errors import CacheFull, MasterGone, PlanTooLarge

GOLDEN = Path(__file__).parents[3] / "golden" / "local-packets.json"
WHOLE = CacheBlock(ChunkRef(ChunkId(bytes(range(16))), 64, MAX_WHOLE_BYTES))
LARGE = ChunkRef(ChunkId(b"\xff" * 16), 64, 1 << 40)
FILE = FileExtent(LARGE, 1 << 30, CACHE_BLOCK_BYTES + 1, (1 << 64) - 1)
PART = CacheBlock(LARGE, FILE, 1)
NAMES = (WHOLE.name, PART.name)


@pytest.mark.parametrize(
    "message",
    [
        local_messages.JoinAsMember(b"m" * 16, None),
        local_messages.JoinAsMember(b"m" * 16, 1 << 40),
        local_messages.JoinForJob(b"m" * 16, None, ""),
        local_messages.OpenRequests(b"m" * 16),
        local_messages.Mapped(NAMES),
        local_messages.Unmapped((PART.name,) * MAX_NAMES),
        local_messages.Discard(WHOLE.name),
        local_messages.PlanProgress(7),
        local_messages.Fetch(block_fields(WHOLE), ahead=False),
        local_messages.Fetch(block_fields(PART), ahead=True),
        local_messages.Prefetch((block_fields(WHOLE), block_fields(PART)) * (MAX_BLOCKS // 2)),
        local_messages.Expect(NAMES, is_last=True),
        local_messages.SetBudget(0),
        local_messages.SetQuota(None, 0),
        local_messages.FollowPlan("/dev/shm/dieselfs-0/task/plans/1"),
        local_messages.GetStatistics(),
        local_messages.Done(),
        local_messages.RequestFailed("Corrupt", "…", ""),
        local_messages.StatisticsReported(astuple(MemoryStatistics(1, 2, 3, members=4))),
        local_messages.ScrubMemory(),
        local_messages.MemoryScrubbed(1 << 40, 1 << 60, (PART.name,) * MAX_NAMES),
        local_messages.GetTask(48),
        local_messages.TaskReported(None),
        local_messages.TaskReported(
            task_fields(TaskStatistics("task", "on-demand", trouble="port in use"), 0)
        ),
        local_messages.EventsReported(((True, WHOLE.name), (False, PART.name)) * (MAX_NAMES // 2)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_is_said_is_heard(message: Message) -> None:
    assert decode(encode(message)) == message


def member_of(number: int) -> MemberStatistics:
    id = f"{number:04d}".ljust(64, "x")
    status = NodeStatus(*[(1 << 60) + number] * len(fields(NodeStatus)))
    answered_s = None if number % 2 else 0.25
    return MemberStatistics(id, "h" * 253 + ":65535", 1 << 40, "n" * 255, "up", answered_s, status)


def test_a_tasks_statistics_are_told_a_part_of_the_members_at_a_time() -> None:
    whole = TaskStatistics(
        "t" * 64,
        "oneshot",
        tuple(map(member_of, range(2 * MEMBERS_AT_ONCE + 1))),
        FillingStatistics(9, 8, 7, 6, 5, 0.5, True),
        (("read.files_from_peers", 1 << 60), ("connections", 0)),
        "é" * 5000,
    )
    parts = []
    for first in range(0, len(whole.members), MEMBERS_AT_ONCE):
        packet = encode(local_messages.TaskReported(task_fields(whole, first), first))
        assert len(packet) <= MAX_PACKET_BYTES
        heard = decode(packet)
        assert isinstance(heard, local_messages.TaskReported)
        assert heard.statistics is not None
        parts.append(heard.statistics)
    assert [len(part.members) for part in parts] == [MEMBERS_AT_ONCE, MEMBERS_AT_ONCE, 1]
    assert joined(parts) == replace(whole, trouble=parts[0].trouble)
    assert whole.trouble.startswith(parts[0].trouble)


@pytest.mark.parametrize(
    "body",
    [
        [7, 0],
        [["task", "sometimes", [], None, [], ""], 0],
        [["task", "oneshot", [["id", "a:1", 1, "", "up", None, [1, 2]]], None, [], ""], 0],
        [["task", "oneshot", [["id", "a:1", 1, "", "gone", None, [0] * 9]], None, [], ""], 0],
        [["task", "oneshot", [], [1, 2, 3], [], ""], 0],
        [["task", "oneshot", [], None, [["name", "1"]], ""], 0],
        [["task", "oneshot", [], None, [], ""], -1],
    ],
)
def test_what_are_no_statistics_of_a_task_is_refused(body: list[object]) -> None:
    kind = msgpack.unpackb(encode(local_messages.TaskReported(None)))[0]
    with pytest.raises(BadPacket):
        decode(msgpack.packb([kind, *body]))


@pytest.mark.parametrize(
    "error",
    [
        Corrupt("checksum of a file is wrong"),
        NotFound("datasets/d/chunks/1"),
        Unavailable("x" * 100_000),
        Denied("\udcff"),
        CacheFull("full", "give it more"),
        PlanTooLarge("too large", "a group size of 3 fits"),
        MasterGone("it has ended"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_arrives_as_the_same_class_with_its_text_and_hint(error: Exception) -> None:
    sent = local_messages.failure(error)
    assert sent is not None
    heard = decode(encode(sent))
    assert isinstance(heard, local_messages.RequestFailed)
    found = local_messages.error_of(heard)
    assert type(found) is type(error)
    assert str(found)[:8000] == str(error)[:8000].encode("utf-8", "replace").decode()
    assert getattr(found, "hint", None) == getattr(error, "hint", None)


def test_an_error_of_a_class_that_nobody_knows_travels_as_what_it_derives_from() -> None:
    class Vanished(NotFound):
        pass

    sent = local_messages.failure(Vanished("gone"))
    assert sent == local_messages.RequestFailed("NotFound", "gone", "")
    assert local_messages.failure(ZeroDivisionError()) is None


FETCH, MAPPED, PREFETCH, PROGRESS, FAILED, NEWS = (
    msgpack.unpackb(encode(message))[0]
    for message in (
        local_messages.Fetch(block_fields(WHOLE), ahead=False),
        local_messages.Mapped(()),
        local_messages.Prefetch(()),
        local_messages.PlanProgress(0),
        local_messages.RequestFailed("CacheFull", "", ""),
        local_messages.EventsReported(()),
    )
)
ID = WHOLE.chunk.id.value


@pytest.mark.parametrize(
    "said",
    [
        [],
        {},
        "x",
        [FETCH],
        [99],
        [-1],
        [FETCH, [ID, 64, 1000], False, 1],
        [FETCH, [ID, 64, 1000], 1],
        [FETCH, [ID[:15], 64, 1000], False],
        [FETCH, [ID, -1, 1000], False],
        [FETCH, [ID, 64, 1 << 63], False],
        [FETCH, [ID, 64, MAX_WHOLE_BYTES + 1], False],
        [FETCH, [ID, 64, 1000, 0, 1001, 0, 0], False],
        [FETCH, [ID, 64, 1000, 0, 1000, 0, 1], False],
        [FETCH, [ID, 64, 1000, 0, 1000, -1, 0], False],
        [MAPPED, ["../../../../etc/passwd"]],
        [MAPPED, [WHOLE.name + "\n"]],
        [MAPPED, [WHOLE.name] * (MAX_NAMES + 1)],
        [MAPPED, WHOLE.name],
        [PREFETCH, [[ID, 64, 1000]] * (MAX_BLOCKS + 1)],
        [PROGRESS, True],
        [PROGRESS, 1.5],
        [FAILED, "SystemExit", "", ""],
        [NEWS, [[True, WHOLE.name, 1]]],
        [NEWS, [[1, WHOLE.name]]],
    ],
    ids=lambda said: repr(said)[:40],
)
def test_what_is_no_message_is_refused(said: object) -> None:
    with pytest.raises(BadPacket):
        decode(msgpack.packb(said))


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",  # an array of 4 G elements
        b"\xdb\xff\xff\xff\xff",  # a text of 4 GB
        b"\xc6\xff\xff\xff\xff",  # bytes
        b"\x91" * 10_000,  # nested without end
        bytes(MAX_PACKET_BYTES + 1),
        encode(local_messages.Done()) * 2,
    ],
    ids=lambda packet: repr(packet)[:30],
)
def test_bytes_that_are_no_packet_are_refused(packet: bytes) -> None:
    with pytest.raises(BadPacket):
        decode(packet)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(packet: bytes) -> None:
    try:
        message = decode(packet)
    except BadPacket:
        return
    assert decode(encode(message)) == message


MEMBER = MemberStatistics(
    *("node-1", "10.0.0.1:7000", 16384, "gpu 1", "up", 0.25), NodeStatus(1, 2, 3, 4, 5, 6, 7, 8, 9)
)
TASK = TaskStatistics(
    "run1",
    "oneshot",
    (MEMBER, replace(MEMBER, id="node-2", state="me", answered_s=None)),
    FillingStatistics(9, 8, 7, 6, 5, 0.5, True),
    (("read.files_from_peers", 1 << 60),),
    "é",
)
SMALL = CacheBlock(replace(WHOLE.chunk, payload_bytes=1 << 22))
GOLDEN_MESSAGES = [
    local_messages.JoinAsMember(b"m" * 16, None),
    local_messages.JoinAsMember(b"m" * 16, 1 << 40),
    local_messages.JoinForJob(b"m" * 16, None, "resnet"),
    local_messages.OpenRequests(b"m" * 16),
    local_messages.Mapped(NAMES),
    local_messages.Unmapped(()),
    local_messages.Discard(WHOLE.name),
    local_messages.PlanProgress(300),
    local_messages.Fetch(block_fields(SMALL), False),
    local_messages.Fetch(block_fields(PART), True),
    local_messages.Prefetch((block_fields(SMALL), block_fields(PART))),
    local_messages.Expect((WHOLE.name,), True),
    local_messages.SetBudget(1 << 33),
    local_messages.SetQuota(1 << 33, 0),
    local_messages.SetQuota(None, 300),
    local_messages.FollowPlan("/dev/shm/é"),
    local_messages.GetStatistics(),
    local_messages.GetTask(48),
    local_messages.SuspectPeer("node-2"),
    local_messages.Done(),
    local_messages.StillWorking(),
    local_messages.RequestFailed("NoRoom", "full", "more"),
    local_messages.StatisticsReported(tuple(range(17))),
    local_messages.TaskReported(None),
    local_messages.TaskReported(task_fields(TASK, 0), 0),
    local_messages.TaskReported(task_fields(TASK, 1), 1),
    local_messages.EventsReported(((True, WHOLE.name), (False, PART.name))),
    local_messages.ScrubMemory(),
    local_messages.MemoryScrubbed(3, 1 << 40, (WHOLE.name, PART.name)),
]


def test_golden_bytes() -> None:
    """A master and the processes of its node may be of two releases."""
    assert [encode(message).hex() for message in GOLDEN_MESSAGES] == json.loads(GOLDEN.read_text())


def test_long_lists_go_by_parts() -> None:
    names = [WHOLE.name] * (2 * MAX_NAMES + 1)
    parts = list(local_messages.batches(names))
    assert [len(part) for part in parts] == [MAX_NAMES, MAX_NAMES, 1]
    assert list(local_messages.batches([])) == []
