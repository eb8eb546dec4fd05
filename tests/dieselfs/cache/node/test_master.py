"""The master in its own process: many threads, real files, a source that waits and fails on
command."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Unavailable
from chunkstore.stores.byte_budget import ByteBudget
from chunkstore.stores.read_turn import Payer, ReadTurn, current_turn
from dieselfs.cache.node import accounting, agreed_budget, budget, master, memory_scrub
from dieselfs.cache.node.accounting import PATIENCE_S
from dieselfs.cache.node.adopted_blocks import AdoptedBlocks
from dieselfs.cache.node.block_eviction import PolicyName
from dieselfs.cache.node.budget import default_budget_bytes
from dieselfs.cache.node.chunk_files import ChunkFiles, map_block
from dieselfs.cache.node.master import Master
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.job_payers import pays_nothing
from dieselfs.cache.ports.master_port import MasterPort, MemoryScrub
from dieselfs.errors import CacheFull, MasterGone, NotYetSupported
from tests.dieselfs.cache.made_up_source import MadeUpSource, block_of, content_of
from tests.eventually import eventually

DEADLINE_S = 120.0
Made = Callable[..., Master]


@pytest.fixture
def folder(tmp_path: Path) -> TaskFolder:
    return TaskFolder.at("task", tmp_path)


@pytest.fixture
def made(folder: TaskFolder) -> Iterator[Made]:
    """Makes masters of the folder, and closes them. No thread is left."""
    threads = set(threading.enumerate())
    masters = []

    def make(
        source: MadeUpSource | None = None,
        budget_bytes: int = 10_000,
        policy: PolicyName = "uniform",
        **others: object,
    ) -> Master:
        one = Master(folder, source or MadeUpSource(), budget_bytes, policy, **others)  # type: ignore[arg-type]
        masters.append(one)
        return one

    yield make
    for one in masters:
        one.close()
    eventually(lambda: set(threading.enumerate()) <= threads)


class Gate:
    """Holds every fetch until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.waiting = threading.Semaphore(0)

    def __call__(self, chunk: ChunkRef) -> None:
        self.waiting.release()
        assert self.open.wait(DEADLINE_S)

    def wait_for(self, fetches: int) -> None:
        for _ in range(fetches):
            assert self.waiting.acquire(timeout=DEADLINE_S)


def content_in(folder: TaskFolder, block: CacheBlock) -> bytes | None:
    view = map_block(folder.chunks, block.name, block.length)
    return None if view is None else view[:]


def all_fetched(pool: ThreadPoolExecutor, of: MasterPort, block: CacheBlock) -> list[Future[None]]:
    return [pool.submit(of.fetch, block) for _ in range(32)]


# One fetch


def test_a_piece_is_fetched_into_its_file(folder: TaskFolder, made: Made) -> None:
    source = MadeUpSource()
    of = made(source)
    block = block_of(1)
    of.fetch(block)
    of.fetch(block)
    assert content_in(folder, block) == content_of(block)
    assert source.asked == [block.chunk]
    found = of.statistics()
    assert (found.hits, found.misses, found.fetches, found.fetched_bytes) == (1, 1, 1, 1000)
    assert (found.blocks, found.cached_bytes, found.budget_bytes) == (1, 1000, 10_000)
    assert (found.failed_fetches, found.prefetched, found.not_kept, found.members) == (0, 0, 0, 0)


def test_many_who_ask_are_one_fetch(folder: TaskFolder, made: Made) -> None:
    gate = Gate()
    source = MadeUpSource(gate)
    of = made(source)
    block = block_of(1)
    ports = [of.member() for _ in range(32)]
    with ThreadPoolExecutor(32) as pool:
        asked = [pool.submit(port.fetch, block) for port in ports]
        eventually(lambda: of.statistics().misses == 32)
        gate.open.set()
        for each in asked:
            each.result(DEADLINE_S)
    assert len(source.asked) == 1
    assert content_in(folder, block) == content_of(block)
    found = of.statistics()
    assert (found.fetches, found.misses, found.hits, found.members) == (1, 32, 0, 32)


def test_a_failure_is_everybodys_who_waits_and_nobodys_after(made: Made) -> None:
    gate = Gate()

    def fails(chunk: ChunkRef) -> None:
        gate(chunk)
        raise Unavailable("down")

    source = MadeUpSource(fails)
    of = made(source)
    with ThreadPoolExecutor(32) as pool:
        asked = all_fetched(pool, of, block_of(1))
        eventually(lambda: of.statistics().misses == 32)
        gate.open.set()
        assert len({id(each.exception(DEADLINE_S)) for each in asked}) == 1
        assert isinstance(asked[0].exception(), Unavailable)
    assert len(source.asked) == 1
    found = of.statistics()
    assert (found.fetches, found.failed_fetches, found.cached_bytes) == (0, 1, 0)
    source.before = lambda chunk: None
    of.fetch(block_of(1))
    assert of.statistics().fetches == 1


def test_who_waits_for_an_interrupted_fetch_fetches_anew(made: Made) -> None:
    gate = Gate()

    def interrupted(chunk: ChunkRef) -> None:
        gate(chunk)
        if len(source.asked) == 1:
            raise KeyboardInterrupt

    source = MadeUpSource(interrupted)
    of = made(source)
    with ThreadPoolExecutor(32) as pool:
        asked = all_fetched(pool, of, block_of(1))
        eventually(lambda: of.statistics().misses == 32)
        gate.open.set()
        outcomes = [type(each.exception(DEADLINE_S)) for each in asked]
    assert sorted(map(str, outcomes)) == sorted([str(KeyboardInterrupt), *[str(type(None))] * 31])
    assert len(source.asked) == 2


def test_what_has_gone_from_the_folder_is_fetched_again(
    folder: TaskFolder, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    of = made()
    block = block_of(1)
    of.fetch(block)
    os.unlink(folder.chunks / block.name)
    of.fetch(block)
    assert content_in(folder, block) == content_of(block)
    assert "is missing from node memory" in caplog.text
    assert of.statistics().cached_bytes == 1000


# Room


def test_without_room_nothing_is_fetched_and_what_is_in_stays(made: Made) -> None:
    source = MadeUpSource()
    of = made(source, budget_bytes=3500)
    for number in range(3):
        of.fetch(block_of(number))
    with pytest.raises(CacheFull) as caught:
        of.fetch(block_of(3))
    assert "3000 of 3500 bytes" in str(caught.value)
    assert caught.value.hint == "give the task more memory with --memory"
    assert len(source.asked) == 3
    assert of.statistics().not_kept == 1
    of.fetch(block_of(4, 500))


def test_the_least_recently_used_leaves(folder: TaskFolder, made: Made) -> None:
    of = made(budget_bytes=3000, policy="lru")
    for number in (0, 1, 2, 0, 3):
        of.fetch(block_of(number))
    assert content_in(folder, block_of(1)) is None
    assert content_in(folder, block_of(0)) == content_of(block_of(0))
    of.blocks.mapped(block_of(2).name)
    of.fetch(block_of(4))
    assert content_in(folder, block_of(0)) is None
    found = of.statistics()
    assert (found.evictions, found.evicted_bytes, found.blocks) == (2, 2000, 3)


def test_the_plan_decides_while_there_is_one(folder: TaskFolder, made: Made) -> None:
    of = made(budget_bytes=3000)
    names = [block_of(number).name for number in range(6)]
    for number in (0, 1, 2):
        of.fetch(block_of(number))
    planner = of.member()
    planner.expect([names[number] for number in (0, 1, 3, 2, 4, 0)])
    of.fetch(block_of(3), ahead=True)  # 2 is used last
    with pytest.raises(CacheFull):
        of.fetch(block_of(2), ahead=True)
    of.progress(6)  # not its plan
    with pytest.raises(CacheFull):
        of.fetch(block_of(2), ahead=True)
    with pytest.raises(CacheFull):
        of.fetch(block_of(5))  # off the plan
    planner.progress(2)
    of.fetch(block_of(2), ahead=True)  # 1 is not used again
    assert sorted(os.listdir(folder.chunks)) == sorted([names[0], names[2], names[3]])
    planner.close()
    with pytest.raises(CacheFull):
        of.fetch(block_of(4))


def test_the_orders_of_all_members_count(folder: TaskFolder, made: Made) -> None:
    of = made(budget_bytes=3000)
    names = [block_of(number).name for number in range(6)]
    for number in (0, 1, 2):
        of.fetch(block_of(number))
    one, two = of.member(), of.member()
    one.expect([names[number] for number in (3, 0, 1, 2)])
    two.expect([names[number] for number in (2, 4, 1, 0)])
    of.fetch(block_of(3), ahead=True)  # 1 is used last: after two uses of each
    assert content_in(folder, block_of(1)) is None
    assert content_in(folder, block_of(2)) is not None
    one.progress(4)  # what is left is of the other member's order
    with pytest.raises(CacheFull):
        of.fetch(block_of(5), ahead=True)
    of.fetch(block_of(4), ahead=True)  # 3 is not used again
    assert content_in(folder, block_of(3)) is None
    two.expect([])
    one.expect([names[1]])
    two.progress(1)  # it expects nothing
    of.fetch(block_of(1), ahead=True)
    one.close()
    one.expect([names[5]])  # too late
    with pytest.raises(CacheFull):
        of.fetch(block_of(5))


def test_evicted_bytes_count_until_members_unmap(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fetch that looks again after this time evicts more.
    monkeypatch.setattr(accounting, "PATIENCE_S", DEADLINE_S)
    of = made(budget_bytes=2000, policy="lru")
    member = of.member()
    first, second, third = block_of(1), block_of(2), block_of(3)
    of.fetch(first)
    member.mapped(first.name)
    of.fetch(second)
    with pytest.raises(CacheFull):
        of.fetch(third)
    assert of.statistics().cached_bytes == 2000
    assert of.statistics().blocks == 1
    member.unmapped(first.name)
    assert of.statistics().cached_bytes == 1000
    of.fetch(third)
    member.mapped(second.name)
    of.blocks.discard(second.name)
    of.blocks.discard(second.name)
    assert of.statistics().cached_bytes == 2000
    member.close()
    member.close()
    assert of.statistics().cached_bytes == 1000
    member.mapped(third.name)
    of.blocks.discard(third.name)
    assert of.statistics().cached_bytes == 0, "who has ended maps nothing"


def test_what_is_fetched_ahead_waits_for_members_to_unmap(
    folder: TaskFolder, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = made(budget_bytes=1000, policy="lru")
    block = block_of(1)
    of.fetch(block)
    of.blocks.mapped(block.name)
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patched:
        for module in (accounting, master):  # it waits, however late this thread unmaps
            patched.setattr(module, "PATIENCE_S", DEADLINE_S)
        asked = pool.submit(of.fetch, block_of(2), ahead=True)
        eventually(lambda: of.statistics().evictions == 1)
        of.blocks.unmapped(block.name)
        asked.result(DEADLINE_S)
    of.blocks.mapped(block_of(2).name)
    began = time.monotonic()
    with pytest.raises(CacheFull):
        of.fetch(block_of(3), ahead=True)
    assert time.monotonic() - began >= PATIENCE_S


def test_the_greatest_wish_is_the_budget(folder: TaskFolder, made: Made) -> None:
    of = made(budget_bytes=1000)
    a, b = of.member(), of.member()
    a.set_budget(5000)
    b.set_budget(3000)
    for number in range(5):
        of.fetch(block_of(number))
    of.blocks.mapped(block_of(0).name)
    a.close()
    assert of.statistics().budget_bytes == of.statistics().cached_bytes == 3000
    b.set_budget(2000)
    b.close()
    b.set_budget(9000)
    assert of.statistics().budget_bytes == 1000
    assert os.listdir(folder.chunks) == [block_of(0).name], "what is mapped leaves last"
    of.blocks.set_budget(0)
    assert of.statistics().cached_bytes == 1000
    of.blocks.unmapped(block_of(0).name)
    assert of.statistics().cached_bytes == 0


def test_a_piece_that_arrives_above_a_lowered_budget_leaves(folder: TaskFolder, made: Made) -> None:
    gate = Gate()
    of = made(MadeUpSource(gate))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(of.fetch, block_of(1))
        gate.wait_for(1)
        of.blocks.set_budget(500)
        assert of.statistics().cached_bytes == 1000
        gate.open.set()
        asked.result(DEADLINE_S)
    assert of.statistics().cached_bytes == 0
    assert os.listdir(folder.chunks) == []


def test_a_full_file_system_lowers_the_budget(
    folder: TaskFolder,
    made: Made,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = 2500

    def fallocate(fd: int, offset: int, length: int) -> None:
        if stored() + length > room:
            raise OSError(errno.ENOSPC, "No space left on device")

    def stored() -> int:
        return sum(file.stat().st_size for file in folder.chunks.iterdir() if file.name[0] != ".")

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    monkeypatch.setattr(agreed_budget, "LOOK_AGAIN_S", DEADLINE_S)
    of = made(budget_bytes=10_000)
    for _ in range(2):
        for number in range(5):
            if number < 2:
                of.fetch(block_of(number))
            else:
                with pytest.raises(CacheFull):
                    of.fetch(block_of(number))
    found = of.statistics()
    assert (found.budget_bytes, found.cached_bytes, found.blocks) == (2000, 2000, 2)
    assert (found.not_kept, found.failed_fetches) == (6, 0)
    assert caplog.text.count("the file system of node memory is full at 2000 of 10000") == 1
    room = 4500
    monkeypatch.setattr(of.blocks.files, "free_bytes", lambda: room - stored())
    with pytest.raises(CacheFull):
        of.fetch(block_of(2))
    of.blocks.budget._look_again_at = 0.0
    of.fetch(block_of(2))
    assert of.statistics().budget_bytes == 4500


def test_a_folder_that_has_gone_is_no_room(
    folder: TaskFolder, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    of = made()
    folder.chunks.rmdir()
    with pytest.raises(CacheFull):
        of.fetch(block_of(1))
    assert "cannot write to node memory" in caplog.text
    assert of.statistics().budget_bytes == 10_000
    assert of.statistics().cached_bytes == 0


def test_pieces_of_a_dead_master_are_adopted_within_the_budget(
    folder: TaskFolder, made: Made
) -> None:
    for number in range(5):
        dead = made()
        dead.fetch(block_of(number))
        dead.close()  # else it may still verify, and so rename, what the next one adopts
    (folder.chunks / ".unfinished").write_bytes(b"")
    source = MadeUpSource()
    of = made(source, budget_bytes=3000)
    assert of.statistics().cached_bytes == 3000
    eventually(lambda: not of.adopted.count)
    there = [n for n in range(5) if content_in(folder, block_of(n)) is not None]
    assert len(there) == len(os.listdir(folder.chunks)) == 3
    for number in there:
        of.fetch(block_of(number))
    assert source.asked == []


def test_adopted_pieces_are_verified_at_their_first_use(
    folder: TaskFolder,
    made: Made,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead = made()
    for number in range(4):
        dead.fetch(block_of(number))
    changed = folder.chunks / block_of(1).name
    changed.chmod(0o600)
    changed.write_bytes(bytes(block_of(1).length))
    # As if it had much to verify before these.
    monkeypatch.setattr(AdoptedBlocks, "verify_all", lambda self: None)
    source = MadeUpSource()
    of = made(source)
    assert of.adopted.count == 4
    assert [content_in(folder, block_of(number)) for number in range(4)] == [None] * 4
    assert of.blocks.is_cached(block_of(0))
    assert of.blocks.files.exists(block_of(1).name)
    of.fetch(block_of(0))
    assert (of.adopted.count, source.asked) == (3, [])
    assert content_in(folder, block_of(0)) == content_of(block_of(0))
    of.fetch(block_of(1))
    assert source.asked == [block_of(1).chunk]
    assert content_in(folder, block_of(1)) == content_of(block_of(1))
    assert f"block {block_of(1).name} has changed in node memory" in caplog.text
    of.blocks.discard(block_of(2).name)
    assert not of.blocks.files.exists(block_of(2).name)
    of.fetch(block_of(2))
    assert source.asked == [block_of(1).chunk, block_of(2).chunk]
    assert of.statistics().cached_bytes == 4000


def change(folder: TaskFolder, number: int) -> None:
    file = folder.chunks / block_of(number).name
    file.chmod(0o600)
    file.write_bytes(bytes(block_of(number).length))


def test_a_scrub_evicts_and_names_changed_pieces(folder: TaskFolder, made: Made) -> None:
    source = MadeUpSource()
    of = made(source)
    for number in range(1, 4):
        of.fetch(block_of(number))
    assert of.scrub() == MemoryScrub(3, 3000, ())
    change(folder, 2)
    assert of.scrub() == MemoryScrub(3, 3000, (block_of(2).name,))
    assert of.scrub() == MemoryScrub(2, 2000, ())
    of.fetch(block_of(2))
    assert len(source.asked) == 4
    assert content_in(folder, block_of(2)) == content_of(block_of(2))


def test_a_master_scrubs_by_itself_while_nothing_is_asked(
    folder: TaskFolder, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_scrub, "IDLE_S", 0.01)
    monkeypatch.setattr(memory_scrub, "PASS_PAUSE_S", 0.01)
    monkeypatch.setattr(memory_scrub, "BYTES_PER_S", 1 << 30)
    looks: list[float] = []
    idle_s = Master._idle_s

    def look(self: Master) -> float:
        looks.append(idle_s(self))
        return looks[-1]

    monkeypatch.setattr(Master, "_idle_s", look)
    source, gate = MadeUpSource(), Gate()
    of = made(source)
    of.fetch(block_of(1))
    source.before = gate
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(of.fetch, block_of(2))
        gate.wait_for(1)
        # A scrub that looked before the fetch may still be about to verify the piece.
        eventually(lambda: looks[-1:] == [0.0], "a scrub that sees the fetch")
        change(folder, 1)
        seen = len(looks)
        eventually(lambda: len(looks) > seen, "another look")
        assert of.blocks.is_cached(block_of(1)), "nothing is scrubbed beside a fetch"
        gate.open.set()
        waiting.result(DEADLINE_S)
    eventually(lambda: not of.blocks.is_cached(block_of(1)), "the end of a changed piece")
    assert of.blocks.is_cached(block_of(2))


def test_threads_that_need_an_adopted_piece_wait_for_one_verification(
    folder: TaskFolder, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made().fetch(block_of(1))
    gate, looks = Gate(), []
    real = ChunkFiles.is_adopted_sound

    def slow(files: ChunkFiles, name: str) -> bool | None:
        looks.append(name)
        gate(block_of(1).chunk)
        return real(files, name)

    monkeypatch.setattr(ChunkFiles, "is_adopted_sound", slow)
    source = MadeUpSource()
    of = made(source)
    with ThreadPoolExecutor(32) as pool:
        results = all_fetched(pool, of, block_of(1))
        gate.wait_for(1)
        gate.open.set()
        for result in results:
            result.result(DEADLINE_S)
    assert (looks, source.asked) == ([block_of(1).name], [])
    assert content_in(folder, block_of(1)) == content_of(block_of(1))


@pytest.mark.parametrize("policy", ["uniform", "lru"])
def test_many_threads_keep_the_budget(folder: TaskFolder, made: Made, policy: PolicyName) -> None:
    lengths = {number: 200 + 37 * number for number in range(24)}
    source = MadeUpSource(lambda chunk: time.sleep(0))
    of = made(source, budget_bytes=3000, policy=policy)
    watched: list[int] = []
    ends = threading.Event()

    def watch() -> None:
        while not ends.is_set():
            watched.append(sum(length_of(file) for file in os.scandir(folder.chunks)))
            watched.append(of.statistics().cached_bytes)

    def read(seed: int) -> None:
        draw = random.Random(seed)
        member = of.member()
        mapped: list[str] = []
        for _ in range(100):
            number = draw.randrange(24)
            block = block_of(number, lengths[number])
            try:
                member.fetch(block, ahead=draw.random() < 0.02)
                content = content_in(folder, block)
                assert content in (None, content_of(block))
                member.mapped(block.name)
                mapped.append(block.name)
            except CacheFull:
                pass
            while len(mapped) > draw.randrange(3):
                member.unmapped(mapped.pop())
            if draw.random() < 0.05:
                member.discard(block.name)
        member.close()

    with ThreadPoolExecutor(9) as pool:
        watcher = pool.submit(watch)
        readers = [pool.submit(read, seed) for seed in range(8)]
        for reader in readers:
            reader.result()
        ends.set()
        watcher.result()
    # A map that is told of after its piece has left is counted from then on: at most one a reader.
    assert max(watched) <= 3000 + 8 * max(lengths.values())
    found = of.statistics()
    held = {file.name: file.stat().st_size for file in folder.chunks.iterdir()}
    assert (found.cached_bytes, found.blocks) == (sum(held.values()), len(held))
    assert found.cached_bytes <= 3000
    assert found.fetches == len(source.asked) == found.blocks + found.evictions
    assert found.evictions > 0


def length_of(file: os.DirEntry[str]) -> int:
    try:
        return 0 if file.name.startswith(".") else file.stat().st_size
    except FileNotFoundError:
        return 0


# In the background


def test_a_list_is_fetched_in_order_as_far_as_there_is_room(made: Made) -> None:
    source = MadeUpSource()
    of = made(source, budget_bytes=3000, prefetchers=1)
    blocks = [block_of(number) for number in range(6)]
    of.prefetch(blocks)
    eventually(lambda: of.statistics().not_kept == 1)
    assert source.asked == [block.chunk for block in blocks[:3]]
    of.blocks.mapped(blocks[0].name)
    of.blocks.discard(blocks[0].name)
    of.blocks.discard(blocks[1].name)
    of.blocks.unmapped(blocks[0].name)
    of.prefetch(blocks[3:5])
    eventually(lambda: of.statistics().fetches == 5)
    found = of.statistics()
    assert (found.prefetched, found.prefetched_used, found.prefetched_wasted) == (5, 1, 1)
    assert (found.hits, found.misses, found.not_kept) == (0, 0, 1)
    of.prefetch([])


def test_a_thread_that_cannot_be_started_is_started_with_the_next_list(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    of = made(prefetchers=1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        of.prefetch([block_of(1)])
    of.prefetch([block_of(2)])
    eventually(lambda: of.statistics().prefetched == 2, "both")


def test_as_many_at_a_time_as_there_are_prefetchers(made: Made) -> None:
    gate = Gate()
    source = MadeUpSource(gate)
    of = made(source, prefetchers=3)
    of.prefetch([block_of(number) for number in range(8)])
    gate.wait_for(3)
    assert len(source.asked) == 3
    gate.open.set()
    eventually(lambda: of.statistics().fetches == 8)


def test_a_reader_joins_a_fetch_in_the_background(made: Made) -> None:
    gate = Gate()
    source = MadeUpSource(gate)
    of = made(source)
    of.prefetch([block_of(1)])
    gate.wait_for(1)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(of.fetch, block_of(1))
        eventually(lambda: of.statistics().misses == 1)
        gate.open.set()
        asked.result(DEADLINE_S)
    assert len(source.asked) == 1


def test_what_fails_in_the_background_is_left_to_its_reader(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(chunk: ChunkRef) -> None:
        if chunk == block_of(1).chunk:
            raise Unavailable("down")

    of = made(MadeUpSource(fails), prefetchers=1)
    of.prefetch([block_of(1), block_of(2)])
    eventually(lambda: of.statistics().fetches == 1)
    assert of.statistics().failed_fetches == 1
    assert "cannot prefetch block" in caplog.text
    assert ": down" in caplog.text


def test_plans_are_handed_on(made: Made, tmp_path: Path) -> None:
    followed: list[Path] = []
    made(follow=lambda plan, payer: followed.append(plan)).member().follow(tmp_path)
    assert followed == [tmp_path]
    with pytest.raises(NotYetSupported):
        made().follow(tmp_path)


# Turns at a byte budget


def test_a_reader_that_joins_a_fetch_ahead_hurries_it(made: Made) -> None:
    gate, turns = Gate(), dict[ChunkRef, ReadTurn]()

    def before(chunk: ChunkRef) -> None:
        turns[chunk] = current_turn()
        gate(chunk)

    of = made(MadeUpSource(before))
    ahead, wanted, for_reader = block_of(1), block_of(2), block_of(3)
    with ThreadPoolExecutor(5) as pool:
        pool.submit(of.fetch, ahead, ahead=True)
        pool.submit(of.fetch, wanted, ahead=True)
        pool.submit(of.fetch, for_reader)
        gate.wait_for(3)
        pool.submit(of.fetch, ahead, ahead=True)
        assert [turns[each.chunk].ahead for each in (ahead, wanted, for_reader)] == [True] * 2 + [
            False
        ]
        pool.submit(of.fetch, wanted)
        eventually(lambda: not turns[wanted.chunk].ahead)
        assert turns[ahead.chunk].ahead
        gate.open.set()
    assert of.statistics().prefetched == 2  # those that were fetched ahead at first
    assert not current_turn().ahead


# Evictions


class Log:
    """Implements `CacheObserver`, as a process that maps each block does."""

    def __init__(self, of: Master) -> None:
        self.of = of
        self.heard: list[str] = []
        self.unmapped: list[str] = []

    def evicted(self, name: str) -> None:
        self.heard.append(name)

    def release_evicted(self) -> None:
        for name in self.heard[len(self.unmapped) :]:
            self.of.blocks.unmapped(name)
            self.unmapped.append(name)


def test_observers_hear_of_all_evictions_in_order(made: Made) -> None:
    of = made(budget_bytes=2000, policy="lru")
    of.fetch(block_of(0))
    log = Log(of)
    of.blocks.listen(log)
    for number in range(1, 20):
        of.fetch(block_of(number))
        assert log.heard == [block_of(evicted).name for evicted in range(number - 1)]
    assert log.unmapped == log.heard
    of.blocks.ignore(log)
    of.blocks.discard(block_of(19).name)
    assert block_of(19).name not in log.heard


def test_no_fetch_waits_for_room_that_its_own_process_maps(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master, "READER_PATIENCE_S", 0.0)
    of = made(budget_bytes=2000, policy="lru")
    log = Log(of)
    of.blocks.listen(log)
    for number in range(20):
        of.fetch(block_of(number))
        of.blocks.mapped(block_of(number).name)
    assert of.statistics().not_kept == 0
    assert log.unmapped == [block_of(number).name for number in range(18)]


def test_what_is_evicted_without_a_fetch_is_unmapped_at_once(made: Made) -> None:
    of = made(budget_bytes=2000)
    log = Log(of)
    of.blocks.listen(log)
    for number in range(2):
        of.fetch(block_of(number))
        of.blocks.mapped(block_of(number).name)
    of.blocks.discard(block_of(0).name)
    assert log.unmapped == [block_of(0).name]
    of.blocks.set_budget(0)
    assert log.unmapped == [block_of(0).name, block_of(1).name]
    assert of.statistics().cached_bytes == 0


# The end


def test_nobody_waits_for_a_master_that_has_been_closed(
    folder: TaskFolder, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master, "CLOSE_S", 0.05)
    gate = Gate()
    of = made(MadeUpSource(gate))
    with ThreadPoolExecutor(34) as pool:
        asked = all_fetched(pool, of, block_of(1))
        of.prefetch([block_of(2), block_of(3)])
        gate.wait_for(3)
        eventually(lambda: of.statistics().misses == 32)
        of.close()
        eventually(lambda: sum(each.done() for each in asked) == 31)
        gate.open.set()
        for each in asked:
            assert isinstance(each.exception(DEADLINE_S), MasterGone)
    assert os.listdir(folder.chunks) == []
    with pytest.raises(MasterGone):
        of.fetch(block_of(4))
    with pytest.raises(MasterGone):
        of.blocks.listen(Log(of))
    of.prefetch([block_of(5)])
    of.close()


def test_a_closed_master_leaves_the_files_alone(folder: TaskFolder, made: Made) -> None:
    of = made()
    member = of.member()
    of.fetch(block_of(1))
    of.close()
    of.blocks.discard(block_of(1).name)
    of.blocks.set_budget(0)
    member.close()
    assert content_in(folder, block_of(1)) is not None


def test_close_waits_for_a_file_that_is_being_made(
    folder: TaskFolder, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = made()
    begun, goes_on = threading.Event(), threading.Event()
    fchmod = os.fchmod

    def slow(fd: int, mode: int) -> None:
        begun.set()
        assert goes_on.wait(DEADLINE_S)
        fchmod(fd, mode)

    monkeypatch.setattr(os, "fchmod", slow)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(of.fetch, block_of(1))
        assert begun.wait(DEADLINE_S)
        closed = pool.submit(of.close)
        eventually(lambda: of.blocks.closed)
        assert not closed.done()
        goes_on.set()
        closed.result(DEADLINE_S)
        assert os.listdir(folder.chunks) == [block_of(1).name]


# The default budget


def test_the_default_budget_is_a_share_of_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = os.statvfs(tmp_path)
    free = found.f_bavail * found.f_frsize
    monkeypatch.setattr(budget, "free_memory_bytes", lambda: 4 << 20)
    assert default_budget_bytes(tmp_path) == 1 << 20
    monkeypatch.setattr(budget, "free_memory_bytes", lambda: free * 100)
    assert default_budget_bytes(tmp_path) == pytest.approx(free * 0.9, rel=0.05)
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(tmp_path))
    assert default_budget_bytes() == pytest.approx(free * 0.9, rel=0.05)


def test_what_a_dead_master_has_left_counts_as_free(
    folder: TaskFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.chunks / "piece").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(budget, "free_memory_bytes", lambda: 3 << 20)
    assert default_budget_bytes(folder.path) == 1 << 20


# The dataset's quota


def test_at_its_quota_a_dataset_gets_nothing_more_and_nothing_is_fetched_for_it(
    made: Made,
) -> None:
    source = MadeUpSource()
    of = made(source, policy="lru")
    member = of.member()
    member.set_quota(3000)
    for number in range(3):
        member.fetch(block_of(number))
    with pytest.raises(CacheFull) as caught:
        member.fetch(block_of(3))
    assert caught.value.hint is not None
    assert "quota" in caught.value.hint
    assert len(source.asked) == 3
    assert {block_of(number).name for number in range(3)} == set(of.blocks.names())
    member.set_quota(None)
    member.fetch(block_of(3))
    assert of.statistics().budget_bytes == 10_000


def test_less_quota_evicts_at_random(made: Made) -> None:
    """What stays is a sample of all that was there, not what came first or last."""
    of = made(budget_bytes=200_000)
    for number in range(200):
        of.fetch(block_of(number))
    of.blocks.set_quota(100_000)
    left = [number for number in range(200) if of.blocks.is_cached(block_of(number))]
    assert len(left) == 100
    older = sum(number < 100 for number in left)
    assert 25 <= older <= 75  # the chance of anything else is 10^-12
    assert of.statistics().cached_bytes == 100_000


def test_a_plan_has_its_window_under_any_quota(made: Made) -> None:
    of = made()
    one, two = of.member(), of.member()
    names = [block_of(number).name for number in range(8)]
    one.set_quota(0, 2000)
    one.expect(names[:4])
    two.set_quota(0, 1000)
    two.expect(names[4:])
    assert of.statistics().budget_bytes == 3000
    for number in (0, 1, 4):
        one.fetch(block_of(number), ahead=True)
    one.progress(1)
    one.fetch(block_of(2), ahead=True)
    assert not of.blocks.is_cached(block_of(0))
    one.close()
    assert of.statistics().budget_bytes == 1000
    two.set_quota(0, 0)
    assert of.statistics().cached_bytes == 0


def test_the_greatest_quota_that_a_member_knows_counts_within_the_budget(made: Made) -> None:
    of = made()
    one, two, three = of.member(), of.member(), of.member()
    one.set_quota(3000)
    two.set_quota(5000)
    assert of.statistics().budget_bytes == 5000
    three.set_quota(1 << 40)
    assert (of.statistics().budget_bytes, of.blocks.agreed_bytes) == (10_000, 10_000)
    three.close()
    two.close()
    assert (of.statistics().budget_bytes, of.blocks.agreed_bytes) == (3000, 10_000)
    one.close()
    assert (of.statistics().budget_bytes, of.blocks.quota_bytes) == (10_000, None)


def test_what_is_known_under_lru_is_known_again_without_a_quota(made: Made) -> None:
    of = made(budget_bytes=3000, policy="lru")
    for number in range(3):
        of.fetch(block_of(number))
    of.blocks.set_quota(2000)
    of.blocks.set_quota(None)
    for number in (3, 4):
        of.fetch(block_of(number))
    assert of.blocks.is_cached(block_of(3))
    assert of.statistics().cached_bytes == 3000


# Members of several jobs


class Jobs:
    """Budgets of jobs that are there from the beginning."""

    def __init__(self, **rates: float | None) -> None:
        self.of = {name: ByteBudget(rate) for name, rate in rates.items()}
        self.members: list[str | None] = []

    def payer(self) -> ByteBudget | None:
        return self.of.get("own")

    def serve_members(self) -> None:
        raise NotImplementedError

    def join(self, job: str | None) -> Payer:
        self.members.append(job)
        return pays_nothing if job is None else partial(self.of.__getitem__, job)

    def leave(self, job: str | None) -> None:
        self.members.remove(job)

    def keeps_memory(self, set_quota: object, held_bytes: object) -> None:
        raise NotImplementedError

    def close(self, timeout_s: float = 0.0) -> None:
        for each in self.of.values():
            each.close()

    def used(self) -> dict[str, int]:
        return {name: each.statistics().used_bytes for name, each in self.of.items()}

    def waiting(self) -> dict[str, int]:
        return {name: each.statistics().waiting for name, each in self.of.items()}


def paid(chunk: ChunkRef) -> None:
    """Take the chunk's bytes, as a `BudgetedStore` does."""
    payer = current_turn().payer
    found = None if payer is None else payer()
    if found is not None:
        found.take(chunk.payload_bytes)


def test_a_member_pays_for_what_it_asks_for_first(made: Made) -> None:
    jobs = Jobs(one=None, two=None)
    of = made(MadeUpSource(paid), payers=jobs)
    one, two, free = of.member("one"), of.member("two"), of.member()
    one.fetch(block_of(1))
    two.fetch(block_of(1))
    two.fetch(block_of(2), ahead=True)
    free.fetch(block_of(3))
    one.prefetch([block_of(4), block_of(5)])
    eventually(lambda: of.statistics().fetches == 5)
    assert jobs.used() == {"one": 3000, "two": 1000}
    for member in (one, two, free):
        member.close()
    assert jobs.members == []


def test_who_waits_for_a_poorer_jobs_fetch_pays_for_it(made: Made) -> None:
    jobs = Jobs(poor=1, rich=None)
    jobs.of["poor"].take(1 << 30)  # for 34 years
    of = made(MadeUpSource(paid), payers=jobs)
    poor, rich = of.member("poor"), of.member("rich")
    with ThreadPoolExecutor(4) as pool:
        poors = [pool.submit(poor.fetch, block_of(number), ahead=True) for number in (1, 2)]
        eventually(lambda: jobs.waiting() == {"poor": 2, "rich": 0})
        rich.fetch(block_of(2))
        poors[1].result(DEADLINE_S)
        assert not poors[0].done()
        assert jobs.used() == {"poor": 1 << 30, "rich": 1000}
        jobs.close()
        poors[0].result(DEADLINE_S)


def test_the_masters_own_job_pays_for_a_poorer_fetch_that_it_waits_for(made: Made) -> None:
    jobs = Jobs(poor=1, own=None)
    jobs.of["poor"].take(1 << 30)
    of = made(MadeUpSource(paid), payers=jobs)
    with ThreadPoolExecutor(4) as pool:
        poor = pool.submit(of.member("poor").fetch, block_of(1))
        eventually(lambda: jobs.waiting() == {"poor": 1, "own": 0})
        of.fetch(block_of(1))
        poor.result(DEADLINE_S)
    assert jobs.used() == {"poor": 1 << 30, "own": 1000}


def test_a_master_that_ends_leaves_the_jobs_of_its_members(made: Made) -> None:
    jobs = Jobs(one=None)
    of = made(MadeUpSource(paid), payers=jobs)
    members = [of.member("one"), of.member("one"), of.member()]
    of.close()
    assert jobs.members == []
    for member in members:
        member.close()
    assert jobs.members == []


def test_who_waits_for_a_richer_jobs_fetch_pays_nothing(made: Made) -> None:
    jobs = Jobs(poor=1, rich=1)
    jobs.of["poor"].take(1 << 30)
    jobs.of["rich"].take(1 << 30)
    of = made(MadeUpSource(paid), payers=jobs)
    poor, rich = of.member("poor"), of.member("rich")
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(rich.fetch, block_of(1)), pool.submit(poor.fetch, block_of(1))]
        eventually(lambda: jobs.waiting() == {"poor": 1, "rich": 1})
        jobs.of["rich"].set_rate(None)
        for each in asked:
            each.result(DEADLINE_S)
    assert jobs.used() == {"poor": 1 << 30, "rich": (1 << 30) + 1000}


def test_the_end_of_a_master_ends_those_who_wait_for_a_budget(made: Made) -> None:
    jobs = Jobs(poor=1)
    jobs.of["poor"].take(1 << 30)
    of = made(MadeUpSource(paid), payers=jobs)
    ports = [of.member("poor") for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(port.fetch, block_of(1)) for port in ports]
        eventually(lambda: jobs.waiting() == {"poor": 1})
        eventually(lambda: of.statistics().misses == 2)
        jobs.close()
        of.close()
        for each in asked:
            assert isinstance(each.exception(DEADLINE_S), MasterGone | type(None))
