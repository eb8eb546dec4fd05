"""One READ: all the bytes that exist, from memory without a thread, else through one."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt, Unavailable
from chunkstore.stores.byte_budget import ByteBudget
from chunkstore.stores.read_turn import Payer, current_turn
from dieselfs.fuse.requests import file_reader
from dieselfs.fuse.requests.file_reader import FileRange, FileReader, ReaderStatistics
from dieselfs.fuse.requests.kernel_connection import Answer, Pending
from dieselfs.fuse.requests.pending_reads import PendingReads

CONTENT = bytes(range(256)) * 4
FILE = FileExtent(ChunkRef(ChunkId(bytes(16)), 64, len(CONTENT)), 0, len(CONTENT), 0)
OTHER = FileExtent(ChunkRef(ChunkId(bytes(15) + b"1"), 64, len(CONTENT)), 0, len(CONTENT), 0)


class Source:
    def __init__(self, in_memory: bool, cut: int = 0) -> None:
        self.in_memory = in_memory
        self.cut = cut
        self.asked: list[tuple[int, int]] = []
        self.aside: list[tuple[int, int]] = []
        self.threads: set[int] = set()

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        return self._bytes(start, length) if self.in_memory or file is OTHER else None

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        self.threads.add(threading.get_ident())
        return self._bytes(start, length)

    def read_aside(self, file: FileExtent, start: int, length: int) -> memoryview:
        self.aside.append((start, length))
        return self.read(file, start, length)

    def _bytes(self, start: int, length: int) -> memoryview:
        self.asked.append((start, length))
        return memoryview(CONTENT)[start : start + length - self.cut]

    def payload(self, chunk: ChunkRef) -> memoryview:
        raise NotImplementedError

    def discard(self, chunk: ChunkId) -> None:
        raise NotImplementedError

    def statistics(self) -> None:
        return None


@pytest.fixture
def pending() -> Iterator[PendingReads]:
    pool = PendingReads(1)
    yield pool
    assert pool.drain(10)
    pool.close()


def run(answer: Answer) -> None:
    """Do what the thread of a connection does."""
    assert isinstance(answer, Pending)
    assert answer.work is not None
    answer.work()


def late(replies: SimpleQueue[Any]) -> bytes | int:
    """What was replied later."""
    answer: Sequence[bytes] | int = replies.get(timeout=60)
    return answer if isinstance(answer, int) else b"".join(answer)


def test_a_hit_crosses_no_thread(pending: PendingReads) -> None:
    source = Source(in_memory=True)
    reader = FileReader(source, pending)
    answer: Any = reader.answer_file(FILE, 10, 20, pytest.fail)
    assert answer == [CONTENT[10:30]]
    assert (source.threads, reader.statistics()) == (set(), ReaderStatistics(bytes_read=20))


def test_a_miss_is_read_when_the_thread_has_given_up_its_place(pending: PendingReads) -> None:
    source, replies = Source(in_memory=False), SimpleQueue[Any]()
    reader = FileReader(source, pending)
    answer = reader.answer_file(FILE, 10, 20, replies.put)
    assert source.threads == set()
    run(answer)
    assert late(replies) == CONTENT[10:30]
    assert source.threads == {threading.get_ident()}
    found = reader.statistics()
    assert (found.thread_reads, found.bytes_read) == (1, 20)


@pytest.mark.parametrize("in_memory", [True, False])
def test_ranges_of_many_files_and_known_bytes_are_one_answer(
    pending: PendingReads, in_memory: bool
) -> None:
    reader, replies = FileReader(Source(in_memory), pending), SimpleQueue[Any]()
    wanted = [FileRange(OTHER, 1000, 24), bytes(100), FileRange(FILE, 0, 1024), bytes(5)]
    answer: Any = reader.answer(wanted, replies.put)
    if in_memory:
        content: bytes | int = b"".join(answer)
    else:
        run(answer)
        content = late(replies)
    assert content == CONTENT[1000:] + bytes(100) + CONTENT + bytes(5)
    assert reader.statistics().bytes_read == 1048
    assert reader.statistics().thread_reads == (not in_memory)


@pytest.mark.parametrize(
    ("start", "size", "asked"),
    [
        (0, 1024, [(0, 1024)]),
        (0, 1 << 17, [(0, 1024)]),
        (1023, 4096, [(1023, 1)]),
        (1024, 4096, []),
        (1 << 40, 4096, []),
        (0, 0, []),
    ],
)
def test_the_range_ends_where_the_file_does(
    pending: PendingReads, start: int, size: int, asked: list[tuple[int, int]]
) -> None:
    source = Source(in_memory=True)
    reader = FileReader(source, pending)
    answer: Any = reader.answer_file(FILE, start, size, pytest.fail)
    assert b"".join(answer) == CONTENT[start : start + size]
    assert source.asked == asked
    assert reader.statistics().past_end == (not asked)


def test_a_failure_that_took_long_is_the_next_answer_too(
    monkeypatch: pytest.MonkeyPatch, pending: PendingReads, caplog: pytest.LogCaptureFixture
) -> None:
    class Out(Source):
        def read(self, file: FileExtent, start: int, length: int) -> memoryview:
            clock[0] += 10.0
            asked.append(start)
            raise Unavailable("out")

    clock, asked = [0.0], list[int]()
    monkeypatch.setattr(file_reader, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    reader, replies = FileReader(Out(in_memory=False), pending), SimpleQueue[Any]()
    for after_s, reads, refused in ((0.0, 1, 0), (0.5, 1, 1), (1.0, 2, 1)):
        clock[0] += after_s
        run(reader.answer_file(FILE, 10, 20, replies.put, "file 7"))
        assert late(replies) == errno.EIO
        assert (len(asked), reader.statistics().refused) == (reads, refused)
    assert "read of file 7: EIO: Unavailable: out" in caplog.text


def test_a_short_answer_is_never_passed_on(
    pending: PendingReads, caplog: pytest.LogCaptureFixture
) -> None:
    replies = SimpleQueue[Any]()
    for in_memory in (True, False):
        reader = FileReader(Source(in_memory, cut=1), pending)
        answer = reader.answer_file(FILE, 10, 20, replies.put)
        if not in_memory:
            run(answer)
        assert (answer if in_memory else late(replies)) == errno.EIO
        assert reader.statistics().bytes_read == 0
        with pytest.raises(Corrupt, match="read 19 bytes instead of 20"):
            reader.peek(FILE, 10, 20) if in_memory else reader.read(FILE, 10, 20)


def test_a_bug_is_eio_with_a_traceback(
    pending: PendingReads, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Source):
        def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
            if self.in_memory:
                raise ZeroDivisionError
            return None

        def read(self, file: FileExtent, start: int, length: int) -> memoryview:
            raise ZeroDivisionError

    replies = SimpleQueue[Any]()
    assert FileReader(Broken(True), pending).answer_file(FILE, 0, 1, replies.put) == errno.EIO
    run(FileReader(Broken(False), pending).answer_file(FILE, 0, 1, replies.put))
    assert late(replies) == errno.EIO
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_only_the_chunk_that_is_asked_for_is_loaded(pending: PendingReads) -> None:
    replies = SimpleQueue[Any]()
    source = Source(False)
    third = FileExtent(ChunkRef(ChunkId(bytes(15) + b"2"), 64, len(CONTENT)), 0, len(CONTENT), 0)
    wanted = [FileRange(FILE, 1000, 24), FileRange(FILE, 0, 8), FileRange(third, 0, 16)]
    run(FileReader(source, pending).answer(wanted, replies.put))
    assert late(replies) == CONTENT[1000:] + CONTENT[:8] + CONTENT[:16]
    assert source.aside == [(0, 16)], "what the kernel read ahead beyond the chunk's end"


def test_while_a_plan_is_followed_the_second_miss_loads_a_chunk(pending: PendingReads) -> None:
    replies = SimpleQueue[Any]()
    source = Source(False)
    reader = FileReader(source, pending, lambda: True)
    for start in (0, 8, 16):
        run(reader.answer([FileRange(FILE, start, 8)], replies.put))
        assert late(replies) == CONTENT[start : start + 8]
    assert source.aside == [(0, 8)]


def test_a_miss_in_each_epoch_loads_no_chunk(pending: PendingReads) -> None:
    """The kernel reads ahead beyond the end of the chunk before, once an epoch."""
    replies, now = SimpleQueue[Any](), 0.0
    source = Source(False)
    reader = FileReader(source, pending, lambda: True, now=lambda: now)
    for _ in range(3):
        run(reader.answer([FileRange(FILE, 0, 8)], replies.put))
        assert late(replies) == CONTENT[:8]
        now += 60.0
    assert source.aside == [(0, 8)] * 3


def test_a_large_read_loads_its_chunks_at_once(pending: PendingReads) -> None:
    """One fetch of a chunk is cheaper than one of each of its files."""
    replies = SimpleQueue[Any]()
    source = Source(False)
    wanted = [FileRange(FILE, 0, 1024)] * 16 + [FileRange(OTHER, 0, 8)]
    run(FileReader(source, pending, lambda: True).answer(wanted, replies.put))
    assert late(replies) == CONTENT * 16 + CONTENT[:8]
    assert source.aside == []


def test_a_read_that_misses_is_paid_for_by_its_caller(pending: PendingReads) -> None:
    budget = ByteBudget()
    paid: list[Payer | None] = []

    def payer_of(caller: int) -> Payer | None:
        return None if caller == 0 else lambda: budget

    class Paying(Source):
        def read(self, file: FileExtent, start: int, length: int) -> memoryview:
            paid.append(current_turn().payer)
            return super().read(file, start, length)

    reader = FileReader(Paying(in_memory=False), pending, payer_of=payer_of)
    replies = SimpleQueue[Any]()
    run(reader.answer_file(FILE, 10, 20, replies.put, caller=7))
    run(reader.answer_file(FILE, 10, 20, replies.put))
    run(reader.answer([FileRange(FILE, 0, 8)], replies.put, caller=7))
    assert [found and found() for found in paid] == [budget, None, budget]
    assert current_turn().payer is None
