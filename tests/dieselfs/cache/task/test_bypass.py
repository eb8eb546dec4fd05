"""What a process knows of its node's memory being full, by a clock of its own; and what readers of
a full memory do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.shared_source import OwnNode
from dieselfs.cache.task.bypass import FULL_S, LOOK_S, CacheBypass
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.errors import CacheFull
from tests.dieselfs.cache.logged_source import (
    CHUNK_BYTES,
    LoggedSource,
    chunk,
    content,
    extent,
)
from tests.dieselfs.cache.processes import opened
from tests.eventually import eventually


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Folder:
    """Says when it has changed."""

    def __init__(self) -> None:
        self.changed_ns = 1000
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return self.changed_ns


def test_when_it_is_asked_again() -> None:
    clock = Clock()
    full = CacheBypass(Folder(), clock)
    assert not full.is_full()
    assert full.may_ask()
    assert full.may_ask(), "nothing is known"
    full.note_full()
    assert full.is_full()
    assert not full.may_ask()
    clock.now += FULL_S
    assert not full.is_full()
    assert [full.may_ask(), full.may_ask()] == [True, False], "one asks"
    assert full.is_full()
    full.note_room()
    assert not full.is_full()
    assert full.may_ask()


def test_when_the_folder_is_looked_into_again() -> None:
    clock, folder = Clock(), Folder()
    full = CacheBypass(folder, clock)
    full.note_full()
    full.note_absent(b"a")
    full.is_absent(b"a")  # the first look
    full.note_absent(b"a")
    for _ in range(5):
        assert full.is_absent(b"a")
        assert not full.is_absent(b"b")
    assert folder.looks == 1
    clock.now += LOOK_S
    assert full.is_absent(b"a"), "nothing has come in"
    assert folder.looks == 2
    folder.changed_ns += 1
    assert full.is_absent(b"a"), "looked a moment ago"
    clock.now += LOOK_S
    assert not full.is_absent(b"a")
    full.note_absent(b"a")
    assert full.is_absent(b"a")
    full.note_room()
    assert not full.is_absent(b"a")


def test_a_folder_that_has_just_changed_is_looked_into_again() -> None:
    """Its time does not tell two changes in a tick apart."""
    clock, folder = Clock(), Folder()
    full = CacheBypass(folder, clock)
    full.note_full()
    for _ in range(3):
        folder.changed_ns = time.time_ns() + 10**12  # in the future: younger than any tick
        full.note_absent(b"a")
        clock.now += LOOK_S
        assert not full.is_absent(b"a")


def test_a_folder_that_has_gone() -> None:
    clock = Clock()

    def gone() -> int:
        raise FileNotFoundError

    full = CacheBypass(gone, clock)
    full.note_full()
    full.note_absent(b"a")
    assert full.is_absent(b"a")


class Shared(LoggedSource):
    """Implements `SharedSource`: chunks of even numbers are other nodes'. Serves one process."""

    def __init__(self, source: LoggedSource) -> None:
        super().__init__(source.log)
        self.batches: list[int] = []
        self.ours: set[int] = set()
        """Of even numbers all the same."""

    def whole(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        return memoryview(bytes(chunk.head_bytes)), self.payload(chunk)

    whole_as_owner = whole

    def read_as_owner(self, file: FileExtent, start: int, length: int) -> memoryview:
        return self.read(file, start, length)

    def read_many(self, files: Sequence[FileExtent]) -> list[bytes]:
        self.batches.append(len(files))
        return [bytes(content(file.chunk)[file.offset :][: file.length]) for file in files]

    def owner_is_elsewhere(self, chunk: ChunkId) -> bool:
        number = int.from_bytes(chunk.value, "big")
        return number % 2 == 0 and number not in self.ours

    def serve(self, node: OwnNode) -> None:
        pass

    def is_reading_store(self, chunk: ChunkId, block: CacheBlock | None = None) -> bool:
        return True


@pytest.fixture
def shared(source: LoggedSource) -> Shared:
    return Shared(source)


@pytest.fixture
def memory(folder: TaskFolder, shared: Shared) -> Iterator[NodeMemory]:
    """Has room for a chunk and a half."""
    with opened(folder, shared, lead=True, budget_bytes=CHUNK_BYTES * 3 // 2) as memory:
        memory._blocks.bypass = CacheBypass(memory._blocks._folder_changed_ns, Clock())
        yield memory


def clock_of(memory: NodeMemory) -> Clock:
    clock = memory._blocks.bypass._now
    assert isinstance(clock, Clock)
    return clock


def not_kept(memory: NodeMemory) -> int:
    node = memory.statistics().node
    assert node is not None
    return node.not_kept


def test_a_full_master_is_asked_for_others_chunks_once_a_second(
    memory: NodeMemory, shared: Shared
) -> None:
    memory.map(CacheBlock(chunk(1)))
    for number in (2, 4, 6, 2, 4, 6):
        file = extent(chunk(number), 100, 50)
        assert memory.read(file, 0, 50) == content(chunk(number))[100:150]
    assert not_kept(memory) == 1
    assert shared.ranges == 6
    clock_of(memory).now += FULL_S
    for number in (2, 4, 6):
        memory.read(extent(chunk(number)), 0, 10)
        memory.peek(extent(chunk(number)), 0, 10)
    assert not_kept(memory) == 2
    found = memory.statistics()
    assert (found.hits, found.misses, found.fallbacks) == (0, 1 + 9, 9)


def test_a_full_master_is_asked_for_own_chunks_each_time(memory: NodeMemory) -> None:
    memory.map(CacheBlock(chunk(1)))
    for number in (2, 3, 5, 2):
        memory.read(extent(chunk(number)), 0, 10)
    assert not_kept(memory) == 3


def test_what_was_anothers_until_now_is_asked_of_the_master_once(
    memory: NodeMemory, shared: Shared
) -> None:
    memory.map(CacheBlock(chunk(1)))
    for number in (2, 4):
        memory.read(extent(chunk(number)), 0, 10)
    asked = not_kept(memory)
    shared.ours = {4, 6}
    assert memory.take_over(chunk(6)) is None, "it was not read as another's"
    assert not_kept(memory) == asked
    memory.set_budget(10 * CHUNK_BYTES)
    memory._blocks.bypass.note_absent(
        chunk(4).id.value
    )  # the folder has changed a moment ago, perhaps
    assert memory.take_over(chunk(4)) == content(chunk(4))
    assert memory.read(extent(chunk(4)), 0, 10) == content(chunk(4))[:10]
    assert memory.is_bypassed(chunk(2))


def test_what_came_into_the_folder_is_found_soon(
    memory: NodeMemory, shared: Shared, folder: TaskFolder
) -> None:
    memory.map(CacheBlock(chunk(1)))
    file = extent(chunk(2))
    memory.read(file, 0, 10)

    def is_seen() -> bool:
        """Whether the folder's time is taken for known."""
        clock_of(memory).now += LOOK_S
        memory._blocks.bypass.note_full()
        memory.read(file, 0, 10)
        return memory._blocks.bypass._seen_ns == memory._blocks._folder_changed_ns()

    eventually(is_seen, "a folder that has not changed for a tick")
    assert memory.is_bypassed(chunk(2))
    (folder.chunks / str(chunk(2).id)).write_bytes(content(chunk(2)))
    before = shared.ranges
    assert memory.peek(file, 0, 10) is None
    memory.read(file, 0, 10)
    assert shared.ranges == before + 1, "looked for a moment ago"
    clock_of(memory).now += LOOK_S
    assert memory.read(file, 0, 10) == content(chunk(2))[:10]
    assert not memory.is_bypassed(chunk(2))
    assert shared.ranges == before + 1
    found = memory.peek(file, 0, 10)
    assert found is not None
    assert found == content(chunk(2))[:10]


def test_when_there_is_room_again_others_chunks_are_kept(
    memory: NodeMemory, shared: Shared
) -> None:
    memory.map(CacheBlock(chunk(1)))
    memory.read(extent(chunk(2)), 0, 10)
    memory.set_budget(10 * CHUNK_BYTES)
    memory.read(extent(chunk(4)), 0, 10)
    assert shared.payloads == 1, "the second is not over"
    clock_of(memory).now += FULL_S
    for number in (2, 4, 6):
        memory.read(extent(chunk(number)), 0, 10)
    assert shared.payloads == 4
    assert not memory.is_bypassed(chunk(8))


def test_many_files_that_have_no_room_are_read_together(memory: NodeMemory, shared: Shared) -> None:
    files = [extent(chunk(number), 64 * at, 64) for at in range(5) for number in (1, 2, 4)]
    wanted = [content(file.chunk)[file.offset :][:64] for file in files]
    memory.map(CacheBlock(chunk(1)))
    for _ in range(2):
        assert memory.read_many(files) == wanted
    empty = extent(chunk(2), 5, 0)
    assert memory.read_many([empty, files[1], empty]) == [b"", wanted[1], b""]
    assert memory.read_many([]) == []
    assert shared.batches == [10, 10]
    assert shared.ranges == 1
    found = memory.statistics()
    assert (found.hits, found.misses, found.fallbacks) == (10, 1 + 21, 21)


def test_map_says_that_there_is_no_room(memory: NodeMemory) -> None:
    memory.map(CacheBlock(chunk(1)))
    for _ in range(2):
        with pytest.raises(CacheFull):
            memory.map(CacheBlock(chunk(2)))
    assert not_kept(memory) == 1
