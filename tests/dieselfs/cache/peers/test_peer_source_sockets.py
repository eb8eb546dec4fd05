"""Three nodes over loopback, with real sockets, view files and secrets, whose memories are
dictionaries: who reads what from where."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef
from chunkstore.object_keys import chunk_key
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.cache.membership import view_file
from dieselfs.cache.membership.placement import Placement
from dieselfs.cache.membership.view_file import ViewFile
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import Member, View
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.cache.wire import peer_connection
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_server import PeerServer
from tests.chunkstore.packed import DATASET, Packed, StoreWrapper
from tests.eventually import PATIENCE_S, eventually

DEADLINE_S = PATIENCE_S
SECRET = TaskSecret(b"sixteen bytes or more")
LOOPBACK = PeerAddress("127.0.0.1", 0)
RUNTIME = OperatingSystem()


class CountedStore(StoreWrapper):
    def __init__(self) -> None:
        super().__init__(MemoryObjectStore())
        self.whole: Counter[str] = Counter()
        self.ranges: Counter[str] = Counter()

    def before(self, call: str, key: str) -> None:
        if call == "get":
            self.whole[key] += 1
        elif call == "get_range":
            self.ranges[key] += 1


class Memory:
    """Implements `CachedChunks` for a node that has room for everything."""

    def __init__(self) -> None:
        self.source: PeerSource
        self.objects: dict[ChunkId, tuple[memoryview, memoryview]] = {}
        self._lock = threading.Lock()

    def payload(self, chunk: ChunkId) -> memoryview | None:
        cached = self.objects.get(chunk)
        return None if cached is None else cached[1]

    def head(self, chunk: ChunkId) -> memoryview | None:
        cached = self.objects.get(chunk)
        return None if cached is None else cached[0]

    def block(self, block: CacheBlock) -> memoryview | None:
        return self.payload(block.chunk.id)

    def is_loading(self, block: CacheBlock) -> bool:
        return False

    def load(self, block: CacheBlock) -> None:
        with self._lock:
            if block.chunk.id not in self.objects:
                self.objects[block.chunk.id] = self.source.whole_as_owner(block.chunk)

    def status(self) -> NodeStatus:
        return NodeStatus()


class Node:
    def __init__(
        self, name: str, store: CountedStore, root: Path, secret: TaskSecret = SECRET
    ) -> None:
        (root / name).mkdir()
        self.folder = TaskFolder.at("task", root / name)
        self.reader = ChunkReader(store, DATASET)
        self.source = PeerSource(self.reader, self.folder)
        self.memory = Memory()
        self.memory.source = self.source
        self.secret = secret
        self.server = PeerServer(RUNTIME, secret, "task", name, LOOPBACK, self.memory)
        self.member = Member(name, self.server.address, 100)
        self.board = ViewFile(self.folder.path)

    def show(self, members: Sequence[Member]) -> None:
        now = RUNTIME.now()
        self.board.write_secret(self.secret)
        answered = {member.id: now for member in members if member.id != self.member.id}
        self.board.publish(View(self.member, tuple(members), answered, frozenset()))
        eventually(lambda: self._sees(members), "a view")

    def _sees(self, members: Sequence[Member]) -> bool:
        peers = self.source._current()
        return peers is not None and peers.view.members == tuple(members)


class Task:
    def __init__(self, root: Path) -> None:
        self.store = CountedStore()
        draw = random.Random(7)
        self.files = {b"%d" % n: draw.randbytes(draw.choice([10, 3000, 4096])) for n in range(200)}
        packed = Packed(process=b"one")  # whose chunk is whose is the same in every run
        writer = packed.writer(target_bytes=32768, open_chunks=1)
        for path, data in self.files.items():
            writer.add_file(path, data, 0o644, 0)
        writer.flush()
        packed.store_in(self.store)
        self.extents = packed.extents()
        self.chunks = [chunk.ref for chunk in packed.chunks]
        self.nodes = [Node(name, self.store, root) for name in "abc"]
        self.show()

    def show(self) -> None:
        for node in self.nodes:
            node.show([node.member for node in self.nodes])

    def ranked(self, chunk: ChunkRef) -> list[str]:
        return [one.id for one in Placement([node.member for node in self.nodes]).ranked(chunk.id)]

    def object(self, chunk: ChunkRef) -> bytes:
        return self.store.inner.get(chunk_key(DATASET.name, chunk.id))

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.member.id == name)


@pytest.fixture(autouse=True)
def published_once(patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view is published once here."""
    monkeypatch.setattr(view_file, "OLDEST_S", 10 * DEADLINE_S)


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    task = Task(tmp_path)
    yield task
    for node in task.nodes:
        node.board.withdraw()
        eventually(lambda node=node: node.source._current() is None, "an end of the view")
        assert node.server.close(DEADLINE_S)


def read_all_in(source: PeerSource, task: Task, seed: int) -> bool:
    paths = list(task.files)
    random.Random(seed).shuffle(paths)
    half = len(paths) // 2
    found = {
        path: bytes(source.read(task.extents[path], 0, len(task.files[path])))
        for path in paths[:half]
    }
    rest = [task.extents[path] for path in paths[half:]]
    found.update(zip(paths[half:], source.read_many(rest), strict=True))
    return found == task.files


def test_each_chunk_leaves_the_store_once_for_all_nodes(task: Task) -> None:
    for node in task.nodes:
        for chunk in task.chunks:
            head, payload = node.source.whole(chunk)
            assert bytes(head) + bytes(payload) == task.object(chunk)
    # Nobody keeps here what it fetches for itself; what it fetches for others it does.
    for chunk in task.chunks:
        assert task.store.whole[chunk_key(DATASET.name, chunk.id)] <= 2
    before = task.store.whole.total()
    own = {name: 0 for name in "abc"}
    for node in task.nodes:
        for chunk in task.chunks:
            own[node.member.id] += task.ranked(chunk)[0] == node.member.id
            node.memory.load(CacheBlock(chunk))
    assert task.store.whole.total() == before, "whoever joins takes over from who holds it"
    assert task.store.ranges.total() == 0
    assert sum(own.values()) == len(task.chunks)


def test_readers_in_threads_get_every_byte(task: Task) -> None:
    for node in task.nodes:
        for chunk in task.chunks:
            if task.ranked(chunk)[0] == node.member.id:
                node.memory.load(CacheBlock(chunk))
    taken = task.store.whole.total()
    assert taken == len(task.chunks)
    right: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda at=at, node=node: right.append(read_all_in(node.source, task, at))
        )
        for at in range(2)
        for node in task.nodes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert right == [True] * 6
    assert task.store.whole.total() == taken, "its own files each node reads as ranges here"
    counted = task.nodes[0].source.statistics()
    of_others = [e for e in task.extents.values() if task.ranked(e.chunk)[0] != "a"]
    assert counted.files_from_peers == 2 * len(of_others)
    assert sum(counted.fallbacks.values()) == 0


def test_a_peer_that_ends_is_noticed_once(task: Task) -> None:
    reader, ended = task.node("a"), task.node("b")
    assert read_all_in(reader.source, task, 1)
    ended.server.close(DEADLINE_S)
    for seed in range(3):
        assert read_all_in(reader.source, task, seed)
    assert reader.source.statistics().fallbacks["silent"] == 1
    assert reader.source.statistics().breakers["b"].is_open


def test_a_peer_that_says_nothing_costs_a_second_once(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections, as a stopped process does."""
    monkeypatch.setattr(peer_connection, "HANDSHAKE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reader = task.node("a")
        mute = Member("b", PeerAddress(*listening.getsockname()[:2]), 100)
        reader.show([task.node("a").member, mute, task.node("c").member])
        for seed in range(3):
            assert read_all_in(reader.source, task, seed)
        assert reader.source.statistics().breakers["b"].is_open
        listening.setblocking(False)
        listening.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_a_node_with_another_secret_reads_from_the_store(
    task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Node("s", task.store, tmp_path, TaskSecret(b"quite another secret"))
    try:
        stranger.show([stranger.member, *(node.member for node in task.nodes)])
        assert read_all_in(stranger.source, task, 1)
        counted = stranger.source.statistics()
        assert counted.files_from_peers == 0
        assert 1 <= counted.fallbacks["refused"] <= 3
        warned = [record for record in caplog.records if "refuses" in record.getMessage()]
        assert len(warned) == counted.fallbacks["refused"]
        assert all("secret" in record.getMessage() for record in warned)
        assert "quite another secret" not in caplog.text
    finally:
        stranger.board.withdraw()
        stranger.server.close(DEADLINE_S)


def test_a_view_that_comes_and_goes(task: Task) -> None:
    reader = task.node("a")
    assert read_all_in(reader.source, task, 1)
    from_peers = reader.source.statistics().files_from_peers
    assert from_peers > 0
    served = task.node("b").server
    eventually(lambda: served.statistics().connections, "a connection")
    before = served.statistics().connections
    reader.board.withdraw()
    eventually(lambda: reader.source._current() is None, "an end of the view")
    eventually(lambda: served.statistics().connections < before, "an end of the connection")
    assert read_all_in(reader.source, task, 2)
    assert reader.source.statistics().files_from_peers == from_peers
    reader.show([node.member for node in task.nodes])
    assert read_all_in(reader.source, task, 3)
    assert reader.source.statistics().files_from_peers > from_peers


def _in_child(source: PeerSource, task: Task) -> None:
    fresh = source.statistics().files_from_peers == 0
    assert fresh
    assert read_all_in(source, task, 5)
    assert source.statistics().files_from_peers > 0


def test_a_forked_child_has_connections_of_its_own(task: Task) -> None:
    reader = task.node("a")
    assert read_all_in(reader.source, task, 1)
    children = [
        multiprocessing.get_context("fork").Process(target=_in_child, args=(reader.source, task))
        for _ in range(2)
    ]
    for child in children:
        child.start()
    assert read_all_in(reader.source, task, 2)
    for child in children:
        child.join(DEADLINE_S)
    assert [child.exitcode for child in children] == [0, 0]
    assert read_all_in(reader.source, task, 3)
    assert sum(reader.source.statistics().fallbacks.values()) == 0


def test_it_finds_its_peers_after_pickling(task: Task, tmp_path: Path) -> None:
    """As the helper process and spawned workers get it."""
    empty = LocalDirectory(tmp_path / "empty")
    (tmp_path / "empty").mkdir()
    source: PeerSource = pickle.loads(
        pickle.dumps(PeerSource(ChunkReader(empty, DATASET), task.node("a").folder))
    )
    for chunk in task.chunks:
        if task.ranked(chunk)[0] != "a":
            assert source.payload(chunk) == task.object(chunk)[chunk.head_bytes :]
    assert source.statistics().chunks_from_store == 0


def test_a_node_without_room_reads_ranges_from_the_owners(task: Task) -> None:
    """Its master has room for one chunk; files in parts as the kernel asks for them, and many at
    once."""
    reader = task.node("a")
    others = [chunk for chunk in task.chunks if task.ranked(chunk)[0] != "a"]
    for chunk in others:
        task.node(task.ranked(chunk)[0]).memory.load(CacheBlock(chunk))
    ids = {chunk.id for chunk in others}
    paths = [path for path, file in task.extents.items() if file.chunk.id in ids]
    with NodeMemory.open(reader.folder, reader.source, budget_bytes=1, lead=True) as memory:
        reader.show([node.member for node in task.nodes])  # a leader begins without
        task.store.whole.clear()
        for path in paths:
            file, data = task.extents[path], task.files[path]
            parts = [
                memory.read(file, at, min(1024, len(data) - at)) for at in range(0, len(data), 1024)
            ]
            assert b"".join(parts) == data
        assert memory.read_many([task.extents[path] for path in paths]) == [
            task.files[path] for path in paths
        ]
        assert (task.store.whole.total(), task.store.ranges.total()) == (0, 0)
        asked = sum(node.server.statistics().requests for node in task.nodes)
        assert asked < 2 * len(paths), "a file's parts are asked for together"
        node = memory.statistics().node
        assert node is not None
        assert node.not_kept < len(paths) / 2, "the master is not asked each time"
