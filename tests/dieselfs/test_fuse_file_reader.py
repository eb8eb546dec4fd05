"""One read: all the bytes that exist, from memory without a thread, else through one."""

import threading
from types import SimpleNamespace

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt, Unavailable
from dieselfs.fuse import file_reader
from dieselfs.fuse.file_reader import FileReader, ReaderStatistics
from dieselfs.worker_threads import WorkerThreads

CONTENT = bytes(range(256)) * 4
FILE = FileExtent(ChunkRef(ChunkId(bytes(16)), 64, len(CONTENT)), 0, len(CONTENT), 0)


class Source:
    def __init__(self, in_memory: bool, cut: int = 0) -> None:
        self.in_memory = in_memory
        self.cut = cut
        self.asked: list[tuple[int, int]] = []
        self.threads: set[int] = set()

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        return self._bytes(start, length) if self.in_memory else None

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        self.threads.add(threading.get_ident())
        return self._bytes(start, length)

    def _bytes(self, start: int, length: int) -> memoryview:
        self.asked.append((start, length))
        return memoryview(CONTENT)[start : start + length - self.cut]

    def payload(self, chunk: ChunkRef) -> memoryview:
        raise NotImplementedError

    def statistics(self) -> None:
        return None


async def test_a_hit_crosses_no_thread() -> None:
    source = Source(in_memory=True)
    reader = FileReader(source, WorkerThreads(1))
    assert await reader.read(FILE, 10, 20) == CONTENT[10:30]
    assert (source.threads, reader.statistics()) == (set(), ReaderStatistics(bytes_read=20))


async def test_a_miss_is_read_in_another_thread() -> None:
    source = Source(in_memory=False)
    reader = FileReader(source, WorkerThreads(1))
    assert await reader.read(FILE, 10, 20) == CONTENT[10:30]
    assert source.threads
    assert threading.get_ident() not in source.threads
    found = reader.statistics()
    assert (found.thread_reads, found.bytes_read) == (1, 20)


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
async def test_the_range_ends_where_the_file_does(
    start: int, size: int, asked: list[tuple[int, int]]
) -> None:
    source = Source(in_memory=True)
    reader = FileReader(source, WorkerThreads(1))
    assert await reader.read(FILE, start, size) == CONTENT[start : start + size]
    assert source.asked == asked
    assert reader.statistics().past_end == (not asked)


async def test_a_failure_that_took_long_is_the_next_answer_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Out(Source):
        def read(self, file: FileExtent, start: int, length: int) -> memoryview:
            clock[0] += 10.0
            raise Unavailable("out")

    clock = [0.0]
    monkeypatch.setattr(file_reader, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    reader = FileReader(Out(in_memory=False), WorkerThreads(1))
    for after_s, thread_reads, refused in ((0.0, 1, 0), (0.5, 1, 1), (1.0, 2, 1)):
        clock[0] += after_s
        with pytest.raises(Unavailable):
            await reader.read(FILE, 10, 20)
        found = reader.statistics()
        assert (found.thread_reads, found.refused) == (thread_reads, refused)


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_short_answer_is_never_passed_on(in_memory: bool) -> None:
    reader = FileReader(Source(in_memory, cut=1), WorkerThreads(1))
    with pytest.raises(Corrupt, match="19 bytes came for 20"):
        await reader.read(FILE, 10, 20)
