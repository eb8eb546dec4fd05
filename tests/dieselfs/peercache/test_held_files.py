"""What a server serves from: a real master's folder, mapped, and let go of when it is evicted."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.errors import MasterGone, NoRoom
from dieselfs.node_memory.chunk_files import ChunkFiles
from dieselfs.node_memory.master import Master, OnItsWay
from dieselfs.node_memory.task_folder import TaskFolder
from dieselfs.peercache.held_files import HeldFiles
from tests.dieselfs.node_memory.made_up_source import content_of, piece_of
from tests.dieselfs.node_memory.processes import DEADLINE_S, wait_for
from tests.dieselfs.node_memory.shared_source import MadeUpSharedSource, head_of

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
    names = {piece_of(number).name for number in range(10)}
    master = Master(folder, source, 3 * SIZE, owns=names.__contains__)
    yield master
    master.close()


@pytest.fixture
def held(folder: TaskFolder, master: Master) -> Iterator[HeldFiles]:
    held = HeldFiles(folder, master, lambda status: replace(status, from_store_bytes=7))
    yield held
    held.close()


def waiting_for(gate: threading.Event) -> Callable[[object], None]:
    def wait(piece: object) -> None:
        assert gate.wait(DEADLINE_S)

    return wait


def test_what_is_held_is_mapped_when_it_is_asked_for(held: HeldFiles, master: Master) -> None:
    piece = piece_of(1)
    assert held.payload(piece.chunk.id) is None
    assert held.head(piece.chunk.id) is None
    assert held.piece(piece) is None
    master.fetch(piece)
    payload, head = held.payload(piece.chunk.id), held.head(piece.chunk.id)
    assert payload == content_of(piece)
    assert head == head_of(piece.chunk)
    assert held.payload(piece.chunk.id) is payload, "the same map"
    assert held.piece(piece) is payload


def test_what_is_asked_for_is_brought_once(
    held: HeldFiles, source: MadeUpSharedSource, master: Master
) -> None:
    piece = piece_of(1)
    gate = threading.Event()
    source.before = waiting_for(gate)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(held.bring, piece) for _ in range(8)]
        wait_for(lambda: source.asked, "a fetch")
        assert not held.is_coming(piece), "it may be asking another node"
        source.reading = {piece.name}
        assert held.is_coming(piece)
        gate.set()
        for each in asked:
            each.result(DEADLINE_S)
    assert source.routes == ["owner"]
    assert held.payload(piece.chunk.id) == content_of(piece)


def test_nothing_is_brought_that_has_no_room_or_is_on_its_way_from_a_peer(
    held: HeldFiles, source: MadeUpSharedSource, master: Master
) -> None:
    for number in (1, 2, 3):
        held.bring(piece_of(number))
    with pytest.raises(NoRoom):
        held.bring(piece_of(4))
    master.discard(piece_of(1).name)
    gate = threading.Event()
    source.before = waiting_for(gate)
    source.elsewhere = {4}
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(master.fetch, piece_of(4))
        wait_for(master.readers_wait, "a reader")
        with pytest.raises(OnItsWay):
            held.bring(piece_of(4))
        gate.set()
        reader.result(DEADLINE_S)


def test_what_is_evicted_is_let_go_of_and_its_bytes_count_until_it_is_sent(
    held: HeldFiles, folder: TaskFolder, master: Master
) -> None:
    copies = [piece_of(number) for number in (11, 12, 13)]
    for piece in copies:
        master.fetch(piece)
    sent = held.payload(copies[0].chunk.id)
    assert sent is not None
    assert held.head(copies[1].chunk.id) is not None
    assert master.statistics().held_bytes == 3 * SIZE
    master.discard(copies[0].name)
    master.discard(copies[1].name)
    wait_for(lambda: master.statistics().held_bytes == 2 * SIZE, "room: one is being sent")
    assert held.payload(copies[1].chunk.id) is None
    assert held.head(copies[1].chunk.id) is None
    assert bytes(sent) == content_of(copies[0])
    del sent
    gc.collect()
    assert held.status().held_bytes == SIZE, "whoever looks next hears that it was sent"


def test_what_was_evicted_while_it_was_mapped_is_not_kept(
    held: HeldFiles, folder: TaskFolder, master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = piece_of(1)
    master.fetch(piece)
    lexists = os.path.lexists

    def evicted_just_now(path: Path) -> bool:
        os.unlink(path)
        return lexists(path)

    monkeypatch.setattr(os.path, "lexists", evicted_just_now)
    view = held.payload(piece.chunk.id)
    monkeypatch.undo()
    assert view == content_of(piece), "who asked has it"
    assert held.payload(piece.chunk.id) is None


def test_a_chunk_without_a_head_has_none(held: HeldFiles, folder: TaskFolder) -> None:
    piece = piece_of(1)
    ChunkFiles(folder.chunks).store(piece.name, memoryview(content_of(piece)))
    assert held.payload(piece.chunk.id) == content_of(piece)
    assert held.head(piece.chunk.id) is None


def test_its_status_is_the_masters_and_what_completes_it(held: HeldFiles, master: Master) -> None:
    master.fetch(piece_of(1))
    found = held.status()
    assert (found.budget_bytes, found.held_bytes, found.pieces) == (3 * SIZE, SIZE, 1)
    assert found.from_store_bytes == 7


def test_when_it_is_closed_it_holds_nothing(
    held: HeldFiles, folder: TaskFolder, master: Master
) -> None:
    piece = piece_of(1)
    master.fetch(piece)
    view = held.payload(piece.chunk.id)
    held.close()
    assert view == content_of(piece)
    assert held.payload(piece.chunk.id) is None
    assert held.head(piece.chunk.id) is None
    master.close()
    with pytest.raises(MasterGone):
        held.bring(piece_of(2))
