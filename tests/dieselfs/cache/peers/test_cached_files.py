"""The chunks that a server serves: mapped from a real master's folder, released when evicted."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore.stores.byte_budget import ByteBudget
from dieselfs.cache.node.chunk_files import ChunkFiles
from dieselfs.cache.node.master import AlreadyLoading, Master
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.peers.cached_files import CachedFiles
from dieselfs.errors import CacheFull, MasterGone
from tests.dieselfs.cache.made_up_source import block_of, content_of
from tests.dieselfs.cache.processes import DEADLINE_S
from tests.dieselfs.cache.shared_source import MadeUpSharedSource, head_of
from tests.eventually import eventually

SIZE = 1000 + 64


@pytest.fixture
def folder(tmp_path: Path) -> TaskFolder:
    return TaskFolder.at("task", tmp_path)


@pytest.fixture
def source() -> MadeUpSharedSource:
    return MadeUpSharedSource()


@pytest.fixture
def master(folder: TaskFolder, source: MadeUpSharedSource) -> Iterator[Master]:
    """Room for three chunks; it owns those below 10."""
    names = {block_of(number).name for number in range(10)}
    master = Master(folder, source, 3 * SIZE, owns=names.__contains__)
    yield master
    master.close()


@pytest.fixture
def cached(folder: TaskFolder, master: Master) -> Iterator[CachedFiles]:
    cached = CachedFiles(folder, master, lambda status: replace(status, from_store_bytes=7))
    yield cached
    cached.close()


def waiting_for(gate: threading.Event) -> Callable[[object], None]:
    def wait(block: object) -> None:
        assert gate.wait(DEADLINE_S)

    return wait


def test_what_is_held_is_mapped_when_it_is_asked_for(cached: CachedFiles, master: Master) -> None:
    block = block_of(1)
    assert cached.payload(block.chunk.id) is None
    assert cached.head(block.chunk.id) is None
    assert cached.block(block) is None
    master.fetch(block)
    payload, head = cached.payload(block.chunk.id), cached.head(block.chunk.id)
    assert payload == content_of(block)
    assert head == head_of(block.chunk)
    assert cached.payload(block.chunk.id) is payload, "the same map"
    assert cached.block(block) is payload


def test_what_is_asked_for_is_brought_once(
    cached: CachedFiles, source: MadeUpSharedSource, master: Master
) -> None:
    block = block_of(1)
    gate = threading.Event()
    source.before = waiting_for(gate)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(cached.load, block) for _ in range(8)]
        eventually(lambda: source.asked, "a fetch")
        assert not cached.is_loading(block), "it may be asking another node"
        source.reading = {block.name}
        assert cached.is_loading(block)
        gate.set()
        for each in asked:
            each.result(DEADLINE_S)
    assert source.routes == ["owner"]
    assert cached.payload(block.chunk.id) == content_of(block)


def test_nothing_is_brought_that_has_no_room_or_is_on_its_way_from_a_peer(
    cached: CachedFiles, source: MadeUpSharedSource, master: Master
) -> None:
    for number in (1, 2, 3):
        cached.load(block_of(number))
    with pytest.raises(CacheFull):
        cached.load(block_of(4))
    master.blocks.discard(block_of(1).name)
    gate = threading.Event()
    source.before = waiting_for(gate)
    source.elsewhere = {4}
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(master.fetch, block_of(4))
        eventually(master.readers_wait, "a reader")
        with pytest.raises(AlreadyLoading):
            cached.load(block_of(4))
        gate.set()
        reader.result(DEADLINE_S)


def test_what_is_evicted_is_let_go_of_and_its_bytes_count_until_it_is_sent(
    cached: CachedFiles, folder: TaskFolder, master: Master
) -> None:
    copies = [block_of(number) for number in (11, 12, 13)]
    for block in copies:
        master.fetch(block)
    sent = cached.payload(copies[0].chunk.id)
    assert sent is not None
    assert cached.head(copies[1].chunk.id) is not None
    assert master.statistics().cached_bytes == 3 * SIZE
    master.blocks.discard(copies[0].name)
    master.blocks.discard(copies[1].name)
    eventually(lambda: master.statistics().cached_bytes == 2 * SIZE, "room: one is being sent")
    assert cached.payload(copies[1].chunk.id) is None
    assert cached.head(copies[1].chunk.id) is None
    assert bytes(sent) == content_of(copies[0])
    del sent
    gc.collect()
    assert cached.status().cached_bytes == SIZE, "whoever looks next hears that it was sent"


def test_what_was_evicted_while_it_was_mapped_is_not_kept(
    cached: CachedFiles, folder: TaskFolder, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = block_of(1)
    master.fetch(block)
    lexists = os.path.lexists

    def evicted_just_now(path: Path) -> bool:
        os.unlink(path)
        return lexists(path)

    monkeypatch.setattr(os.path, "lexists", evicted_just_now)
    view = cached.payload(block.chunk.id)
    monkeypatch.undo()
    assert view == content_of(block), "who asked has it"
    assert cached.payload(block.chunk.id) is None


def test_a_chunk_without_a_head_has_none(cached: CachedFiles, folder: TaskFolder) -> None:
    block = block_of(1)
    ChunkFiles(folder.chunks).store(block.name, memoryview(content_of(block)))
    assert cached.payload(block.chunk.id) == content_of(block)
    assert cached.head(block.chunk.id) is None


def test_its_status_is_the_masters_and_what_completes_it(
    cached: CachedFiles, master: Master
) -> None:
    master.fetch(block_of(1))
    found = cached.status()
    assert (found.budget_bytes, found.cached_bytes, found.blocks) == (3 * SIZE, SIZE, 1)
    assert found.from_store_bytes == 7


def test_when_it_is_closed_it_holds_nothing(
    cached: CachedFiles, folder: TaskFolder, master: Master
) -> None:
    block = block_of(1)
    master.fetch(block)
    view = cached.payload(block.chunk.id)
    cached.close()
    assert view == content_of(block)
    assert cached.payload(block.chunk.id) is None
    assert cached.head(block.chunk.id) is None
    master.close()
    with pytest.raises(MasterGone):
        cached.load(block_of(2))


class OwnJob:
    """The payer of a master whose own job has one byte budget, and no members of others."""

    def __init__(self, budget: ByteBudget) -> None:
        self.payer = lambda: budget


def test_a_poor_jobs_node_lets_its_peers_read_the_store(
    folder: TaskFolder, source: MadeUpSharedSource
) -> None:
    budget = ByteBudget(SIZE)
    payers = OwnJob(budget)
    master = Master(folder, source, 3 * SIZE, payers=payers)  # type: ignore[arg-type]
    cached = CachedFiles(folder, master)
    cached.load(block_of(1))
    budget.take(4 * SIZE)
    cached.load(block_of(2))  # it would wait for 4 s
    budget.charge(100 * SIZE)  # more than a busy machine lets pass meanwhile
    with pytest.raises(CacheFull, match="may fetch block"):
        cached.load(block_of(3))
    assert not master.blocks.is_cached(block_of(3))
    cached.close()
    master.close()
