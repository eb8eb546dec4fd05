"""The master of a task with peers: heads, ownership, and who waits for whom."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Unavailable
from dieselfs.cache.node.budget import default_budget_bytes
from dieselfs.cache.node.master import AlreadyLoading, Master
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, CacheBlock
from dieselfs.errors import CacheFull
from tests.dieselfs.cache.made_up_source import block_of, content_of
from tests.dieselfs.cache.processes import DEADLINE_S
from tests.dieselfs.cache.shared_source import MadeUpSharedSource, head_of
from tests.eventually import eventually

SIZE = 1000 + 64
"""Of a piece with its head."""


@pytest.fixture
def source() -> MadeUpSharedSource:
    return MadeUpSharedSource()


@pytest.fixture
def owned() -> set[str]:
    return {block_of(number).name for number in range(10)}


@pytest.fixture
def master(folder: TaskFolder, source: MadeUpSharedSource, owned: set[str]) -> Iterator[Master]:
    """Room for three chunks. It owns those below 10."""
    master = Master(folder, source, 3 * SIZE, owns=owned.__contains__)
    yield master
    master.close()


def heads_in(folder: TaskFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.heads.iterdir()}


def large(number: int) -> CacheBlock:
    chunk = ChunkRef(ChunkId(number.to_bytes(16, "big")), 64, 20 << 20)
    return CacheBlock(chunk, FileExtent(chunk, 0, 20 << 20, 0), 4)


def test_heads_are_kept_beside_chunks_and_count(folder: TaskFolder, master: Master) -> None:
    one, two = block_of(1), block_of(2)
    master.fetch(one)
    master.fetch(two)
    assert heads_in(folder) == {
        one.name: head_of(one.chunk),
        two.name: head_of(two.chunk),
    }
    assert (folder.chunks / one.name).read_bytes() == content_of(one)
    assert master.statistics().cached_bytes == 2 * SIZE
    master.blocks.discard(one.name)
    assert set(heads_in(folder)) == {two.name}
    assert master.statistics().cached_bytes == SIZE


def test_a_piece_of_a_large_file_has_no_head(
    folder: TaskFolder, source: MadeUpSharedSource, master: Master
) -> None:
    master.blocks.set_budget(CACHE_BLOCK_BYTES)
    master.fetch(large(1))
    master.blocks.discard(large(1).name)
    source.elsewhere = {1}
    master.fetch(large(1))
    assert source.routes == ["owner", "reader"]
    assert not heads_in(folder)
    assert master.statistics().cached_bytes == CACHE_BLOCK_BYTES


def test_a_chunk_that_can_not_be_stored_leaves_no_head(folder: TaskFolder, master: Master) -> None:
    (folder.chunks / block_of(1).name).mkdir()
    with pytest.raises(CacheFull):
        master.fetch(block_of(1))
    assert not heads_in(folder)
    assert master.statistics().cached_bytes == 0


def test_the_next_master_adopts_chunks_that_have_their_heads(
    folder: TaskFolder, source: MadeUpSharedSource, master: Master
) -> None:
    for number in (1, 2, 3):
        master.fetch(block_of(number))
    master.close()
    (folder.chunks / block_of(1).name).unlink()
    (folder.heads / block_of(2).name).unlink()
    (folder.heads / f".{block_of(4).name}.0a").write_bytes(b"unfinished")
    assert default_budget_bytes(folder.path) > 0
    following = Master(folder, source, 3 * SIZE, owns=lambda name: True)
    assert set(following.blocks.names()) == set(heads_in(folder)) == {block_of(3).name}
    eventually(lambda: os.listdir(folder.chunks) == [block_of(3).name], "it is verified")
    assert following.statistics().cached_bytes == SIZE
    following.close()


def test_without_peers_there_are_no_heads(folder: TaskFolder, source: MadeUpSharedSource) -> None:
    master = Master(folder, source, 3 * SIZE)
    master.fetch(block_of(1))
    assert not folder.heads.exists()
    assert master.statistics().cached_bytes == 1000
    assert source.routes == []
    master.close()


def test_what_is_owned_displaces_copies(folder: TaskFolder, master: Master) -> None:
    for number in (1, 11, 12):
        master.fetch(block_of(number))
    master.blocks.mapped(block_of(11).name)
    with pytest.raises(CacheFull):
        master.fetch(block_of(13))
    master.fetch(block_of(2))
    assert set(heads_in(folder)) == {block_of(number).name for number in (1, 2, 11)}
    master.blocks.unmapped(block_of(11).name)
    master.fetch(block_of(3), ahead=True, as_owner=True)
    with pytest.raises(CacheFull):
        master.fetch(block_of(4))
    assert set(heads_in(folder)) == {block_of(number).name for number in (1, 2, 3)}


def test_a_plan_heeds_what_is_owned_and_that_it_changes(
    folder: TaskFolder, master: Master, owned: set[str]
) -> None:
    for number in (1, 11, 12):
        master.fetch(block_of(number))
    plan = [block_of(number).name for number in (13, 14, 12, 11)]
    master.expect(plan)
    master.fetch(block_of(13), ahead=True)  # 11 leaves: farther than 12, and 1 is owned
    assert set(heads_in(folder)) == {block_of(number).name for number in (1, 12, 13)}
    owned.clear()
    master.blocks.shares_changed()
    master.fetch(block_of(14), ahead=True)  # 1 is a copy now that is not needed
    assert set(heads_in(folder)) == {block_of(number).name for number in (12, 13, 14)}


def test_a_reader_of_what_this_node_owns_fetches_as_owner(
    source: MadeUpSharedSource, master: Master
) -> None:
    source.elsewhere = {2}
    master.fetch(block_of(1))
    master.fetch(block_of(2))
    master.blocks.discard(block_of(2).name)
    master.fetch(block_of(2), as_owner=True)
    assert source.routes == ["owner", "reader", "owner"]
    found = master.statistics()
    assert (found.hits, found.misses) == (0, 2), "readers of this node"


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_an_owner_does_not_wait_for_what_a_reader_gets_from_another_node(
    source: MadeUpSharedSource, master: Master, is_elsewhere: bool
) -> None:
    block = block_of(1)
    arrived, gate = threading.Event(), threading.Event()

    def wait(chunk: ChunkRef) -> None:
        arrived.set()
        assert gate.wait(DEADLINE_S)

    source.before = wait
    source.elsewhere = {1} if is_elsewhere else set()
    with ThreadPoolExecutor(3) as pool:
        reader = pool.submit(master.fetch, block)
        assert arrived.wait(DEADLINE_S)
        assert master.readers_wait()
        assert not master.is_loading(block)
        if is_elsewhere:
            with pytest.raises(AlreadyLoading):
                master.fetch(block, as_owner=True)
        else:
            source.reading = {block.name}
            assert master.is_loading(block)
        source.reading = {block.name}  # the other node had nothing
        owner = pool.submit(master.fetch, block, as_owner=True)
        gate.set()
        reader.result(DEADLINE_S)
        owner.result(DEADLINE_S)
    assert len(source.asked) == 1
    assert not master.is_loading(block)
    assert not master.readers_wait()


def test_a_failure_as_owner_is_that_of_all_who_wait(
    folder: TaskFolder, source: MadeUpSharedSource, master: Master
) -> None:
    gate = threading.Event()

    def fail(chunk: ChunkRef) -> None:
        assert gate.wait(DEADLINE_S)
        raise Unavailable("down")

    source.before = fail
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(master.fetch, block_of(1), as_owner=True) for _ in range(3)]
        asked.append(pool.submit(master.fetch, block_of(1)))
        eventually(lambda: master.statistics().misses == 1, "a reader who waits")
        gate.set()
        for each in asked:
            assert isinstance(each.exception(DEADLINE_S), Unavailable)
    assert not heads_in(folder)


def test_a_member_that_is_done_with_a_chunk_does_not_speak_for_other_nodes(
    folder: TaskFolder, master: Master
) -> None:
    own, copy = block_of(1), block_of(11)
    for block in (own, copy):
        master.fetch(block)
    member = master.member()
    for block in (own, copy):
        member.discard(block.name)
    member.close()
    assert {path.name for path in folder.chunks.iterdir()} == {own.name}
