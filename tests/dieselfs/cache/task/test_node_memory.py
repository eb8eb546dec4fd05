"""What readers of node memory see, with a real master: in this process (`lead`) or in a helper."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
from collections.abc import Iterator
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path

import pytest

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Corrupt
from dieselfs.cache.node import damaged_blocks
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, CacheBlock
from dieselfs.cache.task import task_session
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.errors import CacheFull, MasterGone
from metadata.errors import SnapshotClosed
from tests.dieselfs.cache.logged_source import (
    CHUNK_BYTES,
    CORRUPT,
    LoggedSource,
    chunk,
    content,
    extent,
)
from tests.dieselfs.cache.processes import (
    FORK,
    SPAWN,
    all_ended_well,
    in_threads,
    is_right,
    open_and_read_together,
    opened,
    read_in_threads,
    read_until,
)
from tests.eventually import PATIENCE_S, eventually

pytestmark = pytest.mark.usefixtures("patient_members")


@pytest.fixture
def memory(folder: TaskFolder, source: LoggedSource) -> Iterator[NodeMemory]:
    before = set(threading.enumerate())
    with opened(folder, source, lead=True) as memory:
        yield memory
    eventually(lambda: set(threading.enumerate()) <= before, "an end of all threads")
    assert not folder.path.exists()


def held(memory: NodeMemory) -> int:
    node = memory.statistics().node
    assert node is not None
    return node.cached_bytes


def evict(memory: NodeMemory, number: int) -> None:
    memory.discard(chunk(number).id)
    path = memory._membership.folder.chunks / str(chunk(number).id)
    eventually(lambda: not path.exists(), "an eviction")


def test_a_chunk_is_fetched_once_for_all_its_files(
    memory: NodeMemory, source: LoggedSource
) -> None:
    ref = chunk(1)
    for offset in range(0, CHUNK_BYTES, 4096):
        file = extent(ref, offset, 4096)
        assert memory.read(file, 1, 4000) == content(ref)[offset + 1 : offset + 4001]
    assert memory.payload(ref) == content(ref)
    assert memory.map(CacheBlock(ref)) == content(ref)
    assert (source.payloads, source.ranges) == (1, 0)
    found = memory.statistics()
    assert (found.hits, found.misses, found.fallbacks) == (17, 1, 0)
    assert (found.mapped_blocks, found.mapped_bytes, found.joins) == (1, CHUNK_BYTES, 1)
    assert found.node is not None
    assert (found.node.fetches, found.node.cached_bytes) == (1, CHUNK_BYTES)


def test_each_read_of_many_threads_is_a_hit_or_a_miss(memory: NodeMemory) -> None:
    """The counters have no lock: no step between two threads may fall into an addition."""
    reads, threads = 20_000, 6
    files = [extent(chunk(number), 0, 100) for number in range(3)]

    def read() -> None:
        for number in range(reads // 2):
            memory.read(files[number % 3], 0, 100)
            memory.peek(files[number % 3], 0, 100)

    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reading = [threading.Thread(target=read) for _ in range(threads)]
        for thread in reading:
            thread.start()
        for thread in reading:
            thread.join()
    finally:
        sys.setswitchinterval(before_s)
    found = memory.statistics()
    assert found.hits + found.misses == reads * threads
    assert 3 <= found.misses <= 3 * threads


def test_a_read_of_several_pieces_counts_once(memory: NodeMemory) -> None:
    file = extent(chunk(1, 1000 + MAX_WHOLE_BYTES), 0)
    for hits, misses in ((0, 1), (1, 1)):
        memory.read(file, CACHE_BLOCK_BYTES - 10, 20)
        found = memory.statistics()
        assert (found.hits, found.misses) == (hits, misses)
    assert memory.peek(file, CACHE_BLOCK_BYTES - 10, 20) is not None
    assert memory.statistics().hits == 2
    memory.read(file, CACHE_BLOCK_BYTES + 10, CACHE_BLOCK_BYTES)
    found = memory.statistics()
    assert (found.hits, found.misses) == (2, 2), "one piece of two is there"


def test_peek_finds_what_is_mapped_or_in_the_folder_and_fetches_nothing(
    folder: TaskFolder, memory: NodeMemory, source: LoggedSource
) -> None:
    file = extent(chunk(1))
    assert memory.peek(file, 0, 10) is None
    with opened(folder, source) as other:
        assert is_right(other, 1)
    assert memory.peek(file, 5, 10) == content(chunk(1))[5:15]
    assert (memory.statistics().hits, source.payloads) == (1, 1)


def test_large_chunks_come_by_pieces(memory: NodeMemory, source: LoggedSource) -> None:
    ref = chunk(1, 100 + MAX_WHOLE_BYTES + 1000)
    file, data = extent(ref, 100), content(ref)[100:]
    border = CACHE_BLOCK_BYTES - 10
    assert memory.peek(file, border, 20) is None
    assert memory.read(file, border, 20) == data[border : border + 20]
    assert memory.peek(file, border, 20) == data[border : border + 20]
    end = file.length - 500
    assert memory.read(file, end, 500) == data[end:]
    assert (source.payloads, source.ranges) == (0, 3)
    assert memory.statistics().mapped_bytes == 2 * CACHE_BLOCK_BYTES + 1000
    assert memory.payload(ref)[:10] == content(ref)[:10]  # past node memory
    assert memory.statistics().fallbacks == 1


def test_nothing_is_read_for_an_empty_range(memory: NodeMemory, source: LoggedSource) -> None:
    assert memory.read(extent(chunk(1), 7, 0), 0, 0) == b""
    assert memory.read(extent(chunk(2, 0)), 0, 0) == b""
    assert memory.map(CacheBlock(chunk(2, 0))) == b""
    assert memory.read(extent(chunk(3, 2 * MAX_WHOLE_BYTES)), 9, 0) == b""
    assert (source.payloads, source.ranges) == (0, 0)


def test_what_there_is_no_room_for_is_read_by_its_range_alone(
    memory: NodeMemory, source: LoggedSource
) -> None:
    memory.set_budget(CHUNK_BYTES)
    assert is_right(memory, 1)
    assert is_right(memory, 2, 10, 20)  # uniform: what is in stays
    assert (source.payloads, source.ranges) == (1, 1)
    with pytest.raises(CacheFull):
        memory.map(CacheBlock(chunk(2)))
    with pytest.raises(CacheFull):
        memory.fetch_blocks([CacheBlock(chunk(2))])
    assert source.payloads == 1
    assert memory.statistics().fallbacks == 1


def test_errors_of_the_source_reach_the_reader(memory: NodeMemory) -> None:
    for ask in (
        lambda: memory.read(extent(chunk(CORRUPT)), 0, 1),
        lambda: memory.payload(chunk(CORRUPT)),
        lambda: memory.fetch_blocks([CacheBlock(chunk(CORRUPT))]),
    ):
        with pytest.raises(Corrupt, match="is corrupt"):
            ask()
    with pytest.raises(CacheFull):  # the reader may still read file by file
        memory.map(CacheBlock(chunk(CORRUPT)))
    assert is_right(memory, 1)


def test_the_process_that_leads_calls_its_master(
    folder: TaskFolder, memory: NodeMemory, source: LoggedSource
) -> None:
    before = set(threading.enumerate())

    def request_threads() -> int:
        return sum(
            thread.name == "node-memory-requests" and thread not in before
            for thread in threading.enumerate()
        )

    assert is_right(memory, 1)
    memory.expect([str(chunk(1).id)])
    assert request_threads() == 0
    with opened(folder, source) as other:
        assert is_right(other, 2)
        assert request_threads() > 0


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [
        pytest.param(MemoryError("odd"), True, id="odd"),
        pytest.param(SnapshotClosed("the client ends"), False, id="closed"),
    ],
)
def test_a_chunk_at_whose_fetch_the_master_fails_is_read_by_its_ranges(
    error: Exception,
    is_logged: bool,
    folder: TaskFolder,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(LoggedSource):
        def payload(self, chunk: ChunkRef) -> memoryview:
            raise error

    with opened(folder, Odd(tmp_path / "asked"), lead=True) as memory:
        assert is_right(memory, 1, 10, 20)
        assert memory.statistics().fallbacks == 1
    assert ("a request failed with an unexpected error" in caplog.text) == is_logged


def test_what_is_sound_in_a_damaged_chunk_is_read_and_the_chunk_is_not_fetched_for_each_file(
    memory: NodeMemory, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damaged_blocks, "DAMAGE_KNOWN_S", PATIENCE_S)
    damaged, half = chunk(CORRUPT), CHUNK_BYTES // 2
    for at in range(half, CHUNK_BYTES, 4096):
        assert memory.read(extent(damaged, at, 4096), 0, 4096) == content(damaged)[at : at + 4096]
    assert (source.payloads, source.ranges) == (1, 8)
    assert memory.statistics().fallbacks == 8


def test_a_damaged_chunk_is_looked_at_again_after_a_while(
    memory: NodeMemory, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damaged_blocks, "DAMAGE_KNOWN_S", 0.0)
    for times in (1, 2):
        with pytest.raises(Corrupt):
            memory.read(extent(chunk(CORRUPT)), 0, 1)
        assert source.payloads == times


def test_an_evicted_piece_is_dropped_when_the_next_is_mapped_and_counts_while_a_reader_has_it(
    memory: NodeMemory,
) -> None:
    forgotten: list[str] = []
    memory.on_evicted(forgotten.append)
    reader = memory.read(extent(chunk(1)), 0, CHUNK_BYTES)
    evict(memory, 1)
    number = 2

    def heard() -> bool:
        nonlocal number
        number += 1
        return is_right(memory, number) and bool(forgotten)

    eventually(heard, "news of the eviction")
    assert forgotten == [str(chunk(1).id)]
    mapped = memory.statistics().mapped_bytes
    assert held(memory) == mapped + CHUNK_BYTES
    assert reader == content(chunk(1))
    del reader
    gc.collect()
    assert is_right(memory, number + 1)
    eventually(lambda: held(memory) == mapped + CHUNK_BYTES, "the evicted piece to be gone")


def test_a_reader_that_waits_for_a_piece_lets_go_of_what_is_evicted_meanwhile(
    folder: TaskFolder, memory: NodeMemory, source: LoggedSource, tmp_path: Path
) -> None:
    assert is_right(memory, 1)
    source.gate = tmp_path / "gate"
    right: list[bool] = []
    reader = threading.Thread(target=lambda: right.append(is_right(memory, 2)))
    reader.start()
    eventually(lambda: source.payloads == 2, "a reader that waits")
    memory.discard(chunk(1).id)
    eventually(lambda: held(memory) == CHUNK_BYTES, "room for the second alone")
    assert memory.statistics().mapped_blocks == 0
    source.gate.touch()
    reader.join()
    assert right == [True]


def test_chunks_are_fetched_ahead_at_once_or_in_the_background(
    memory: NodeMemory, source: LoggedSource
) -> None:
    memory.fetch_blocks([CacheBlock(chunk(1)), CacheBlock(chunk(2))])
    assert source.payloads == 2
    memory.prefetch([CacheBlock(chunk(5))])
    eventually(lambda: memory.peek(extent(chunk(5)), 0, 1), "a piece fetched ahead")
    assert is_right(memory, 1)
    assert memory.statistics().misses == 0


def test_with_a_plan_what_is_used_last_leaves(memory: NodeMemory, source: LoggedSource) -> None:
    memory.set_budget(2 * CHUNK_BYTES)
    memory.expect([str(chunk(number).id) for number in (1, 2, 3, 1)])
    memory.fetch_blocks([CacheBlock(chunk(1)), CacheBlock(chunk(2))])
    with pytest.raises(CacheFull):
        memory.fetch_blocks([CacheBlock(chunk(3))])
    memory.progress(2)

    def comes() -> bool:
        try:
            memory.fetch_blocks([CacheBlock(chunk(3))])
        except CacheFull:
            return False
        return True

    eventually(comes, "room for the third")
    assert memory.peek(extent(chunk(2)), 0, 1) is None
    assert memory.peek(extent(chunk(1)), 0, 1) is not None


def test_a_reader_s_slice_outlives_close(folder: TaskFolder, source: LoggedSource) -> None:
    with opened(folder, source, lead=True) as memory:
        reader = memory.read(extent(chunk(1)), 0, 100)
    assert not folder.path.exists()
    assert reader == content(chunk(1))[:100]
    assert is_right(memory, 1)  # from the source
    assert (source.payloads, source.ranges) == (1, 1)


@pytest.mark.parametrize("lead", [True, False])
def test_a_forked_child_uses_what_its_parent_mapped_and_connections_of_its_own(
    folder: TaskFolder, source: LoggedSource, lead: bool
) -> None:
    with opened(folder, source, lead=lead) as memory:
        assert is_right(memory, 1)
        children = [
            FORK.Process(target=read_in_threads, args=(memory, [1, 2, 3], 4)) for _ in range(3)
        ]
        for child in children:
            child.start()
        assert is_right(memory, 3)
        assert is_right(memory, 4)
        assert all_ended_well(children)
        assert source.payloads == 4
        eventually(lambda: node_members(memory) == 1, "the parent alone")


def node_members(memory: NodeMemory) -> int:
    node = memory.statistics().node
    assert node is not None
    return node.members


def test_forks_in_the_middle_of_reads_of_other_threads_hang_nobody(
    folder: TaskFolder, source: LoggedSource
) -> None:
    with opened(folder, source) as memory:
        stop = threading.Event()

        def reads() -> bool:
            number = 100
            while not stop.is_set():
                number += 1
                if not is_right(memory, number):
                    return False
            return True

        right: list[bool] = []
        reader = threading.Thread(target=lambda: right.append(in_threads(3, reads)))
        reader.start()
        children = []
        for number in range(10):
            child = FORK.Process(target=read_in_threads, args=(memory, [1, number], 2))
            child.start()
            children.append(child)
        assert all_ended_well(children)
        stop.set()
        reader.join()
        assert right == [True]


def test_it_pickles_to_what_opens_it_again(folder: TaskFolder, source: LoggedSource) -> None:
    with opened(folder, source) as memory:
        assert is_right(memory, 1)
        with pickle.loads(pickle.dumps(memory)) as again:
            assert is_right(again, 1)
            assert node_members(memory) == 2
        child = SPAWN.Process(target=read_in_threads, args=(memory, [1, 2], 2))
        child.start()
        assert all_ended_well([child])
    assert source.payloads == 2


@pytest.mark.parametrize("context", [FORK, SPAWN], ids=["fork", "spawn"])
def test_one_missing_chunk_is_one_fetch_for_all_threads_of_all_processes(
    folder: TaskFolder, source: LoggedSource, context: ForkContext | SpawnContext
) -> None:
    together = context.Barrier(4)
    readers = [
        context.Process(target=open_and_read_together, args=(folder, source, [1, 2], 4, together))
        for _ in range(4)
    ]
    for reader in readers:
        reader.start()
    assert all_ended_well(readers)
    assert (source.payloads, source.ranges) == (2, 0)


def test_a_private_folder_goes_with_its_process_though_children_are_left(
    folder: TaskFolder, tmp_path: Path
) -> None:
    stop, rounds = tmp_path / "stop", tmp_path / "rounds"
    with opened(folder, Unportable(tmp_path / "asked")) as memory:
        private = memory._membership.folder
        child = FORK.Process(target=read_until, args=(memory, [1, 2], stop, rounds))
        child.start()
        eventually(lambda: rounds.exists() and rounds.stat().st_size, "a child that reads")
    assert not private.path.exists()
    stop.touch()
    assert all_ended_well([child])


class Unportable(LoggedSource):
    def __reduce__(self) -> str:
        raise TypeError("it lives here")


def test_a_source_that_cannot_be_pickled_is_served_in_a_folder_of_its_own(
    root: Path, folder: TaskFolder, tmp_path: Path
) -> None:
    source = Unportable(tmp_path / "asked")
    before = set(threading.enumerate())
    with opened(folder, source) as memory:
        assert is_right(memory, 1)
        private = memory._membership.folder
        assert private != folder
        assert list(private.chunks.iterdir())
        leadership = folder.try_lead()
        assert leadership is not None, "somebody leads the task"
        leadership.release(remove_folder=True)
        child = FORK.Process(target=read_in_threads, args=(memory, [1, 2], 2))
        child.start()
        assert all_ended_well([child])
        assert is_right(memory, 2)
        assert (source.payloads, source.ranges) == (2, 0)
    assert not private.path.exists()
    eventually(lambda: set(threading.enumerate()) <= before, "an end of all threads")


def test_without_a_master_reads_go_past_and_do_not_wait_each_time(
    folder: TaskFolder, source: LoggedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def fails(*_: object) -> None:
        started.append(1)
        raise MasterGone("no memory for a process")

    with opened(folder, source, join=False) as memory:
        with monkeypatch.context() as patched:
            patched.setattr("dieselfs.cache.task.master_process.start", fails)
            patched.setattr(task_session, "PATIENCE_S", 0.05)
            patched.setattr(task_session, "RETRY_S", PATIENCE_S)
            memory.join()
            tries = len(started)
            assert all(is_right(memory, number) for number in range(1, 6))
            assert len(started) == tries
            assert memory.statistics().fallbacks == source.ranges == 5
            with pytest.raises(MasterGone):
                memory.fetch_blocks([CacheBlock(chunk(1))])
            with pytest.raises(CacheFull):
                memory.map(CacheBlock(chunk(1)))
            memory.expect([str(chunk(1).id)])
            memory.prefetch([CacheBlock(chunk(1))])
            memory.discard(chunk(1).id)
            memory.progress(1)
            assert memory.statistics().node is None
        memory._membership._try_again_at = 0.0  # some seconds later
        assert is_right(memory, 1)
        assert memory.statistics().fallbacks == 5
        assert memory.statistics().joins == 1
