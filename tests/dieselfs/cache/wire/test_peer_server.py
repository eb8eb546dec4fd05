"""The answering side, asked over real sockets."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Corrupt, NotFound, Unavailable
from chunkstore.stores.object_store import Buffer
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import Listener, PeerAddress, Stream
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire import peer_server, served_connection
from dieselfs.cache.wire.frames import encode_request
from dieselfs.cache.wire.messages import (
    Answer,
    Data,
    Failed,
    Join,
    Leave,
    Members,
    NotCached,
    Ping,
    Pong,
    ReadBlock,
    ReadChunk,
    ReadFile,
    ReadRanges,
    Request,
)
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_connection import shake_hands
from dieselfs.cache.wire.peer_server import PeerServer
from dieselfs.cache.wire.served_connection import ServedConnection, Service
from dieselfs.cache.wire.slow_answers import SlowAnswers
from dieselfs.errors import CacheFull, LocalFileError, MasterGone, PeerFailed, PeerRefused
from tests.dieselfs.cache.peers.plain_chunks import (
    PlainChunks,
    chunk,
    content,
    head,
    large_block,
)
from tests.dieselfs.cache.peers.scripted_peer import LOOPBACK, SECRET, SOON_S, TASK
from tests.eventually import eventually, scaled_by_load

pytestmark = pytest.mark.usefixtures("patience")

RUNTIME = OperatingSystem()
HELD, MISSING = chunk(1), chunk(2)
LARGE = chunk(3, 5 << 20)


def ranges(*rows: tuple[ChunkRef, int, int], may_fetch: bool = True) -> ReadRanges:
    chunks = tuple(dict.fromkeys(ref for ref, _, _ in rows))
    return ReadRanges(
        chunks,
        np.array([chunks.index(ref) for ref, _, _ in rows], np.uint16),
        np.array([start for _, start, _ in rows], np.uint32),
        np.array([length for _, _, length in rows], np.uint32),
        may_fetch,
    )


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    yield
    eventually(
        # What other tests have left may end meanwhile.
        lambda: (
            threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) <= descriptors
        ),
        f"{threading.enumerate()}",
    )


@pytest.fixture
def cached() -> PlainChunks:
    return PlainChunks([HELD])


@pytest.fixture
def server(cached: PlainChunks) -> Iterator[PeerServer]:
    server = PeerServer(RUNTIME, SECRET, TASK, "peer", LOOPBACK, cached)
    yield server
    assert server.close(SOON_S)


@pytest.fixture
def ask(server: PeerServer) -> Iterator[Callable[[Request], Answer]]:
    client = PeerClient(RUNTIME, SECRET, TASK, "test")
    yield lambda request: client.ask(Member("peer", server.address, 1), request)
    client.close()


Ask = Callable[[Request], Answer]


def greeted(server: PeerServer) -> Stream:
    """A connection that has proved to be of the task, and is no client."""
    stream = RUNTIME.connect(server.address, SOON_S)
    shake_hands(RUNTIME, stream, SECRET, TASK, "raw", Member("peer", server.address, 1))
    return stream


def is_ended(stream: Stream) -> bool:
    """Return whether the server has closed a connection over which it has sent nothing."""
    return stream.receive_into(memoryview(bytearray(1)), SOON_S) == 0


def test_what_is_held_is_answered(ask: Ask, cached: PlainChunks) -> None:
    whole, block = content(HELD), large_block(9)
    cached.keep(block)
    assert ask(ReadFile(HELD, 77, 5000, False)) == Data(memoryview(whole)[77:5077])
    assert ask(ReadChunk(HELD, False)) == Data(memoryview(head(HELD) + whole))
    assert ask(ReadBlock(block, False)) == Data(memoryview(content(block.chunk))[:5000])
    read = ranges((HELD, 9, 100), (HELD, 0, 200_000), (HELD, 5, 0), may_fetch=False)
    assert ask(read) == Data(memoryview(whole[9:109] + whole[:200_000]))
    assert cached.loaded == []


def test_what_is_missing_is_brought_once_for_all(ask: Ask, cached: PlainChunks) -> None:
    one, other = chunk(5), chunk(6)
    together = threading.Barrier(2)

    def fetch(block: CacheBlock) -> None:
        together.wait(SOON_S)  # the two are fetched side by side
        cached.keep(block)

    cached.fetch = fetch
    read = ranges((one, 0, 10), (HELD, 3, 10), (other, 1, 10), (one, 50, 10))
    expected = content(one)[:10] + content(HELD)[3:13] + content(other)[1:11] + content(one)[50:60]
    assert ask(read) == Data(memoryview(expected))
    assert sorted(cached.loaded) == [CacheBlock(one).name, CacheBlock(other).name]


def test_many_ask_for_what_is_brought_by_one_thread(
    server: PeerServer, cached: PlainChunks
) -> None:
    asked, may_end = 100, threading.Event()

    def fetch(block: CacheBlock) -> None:
        assert may_end.wait(SOON_S)
        cached.keep(block)

    cached.fetch = fetch
    clients = [PeerClient(RUNTIME, SECRET, TASK, f"test {number}") for number in range(4)]
    member = Member("peer", server.address, 1)
    pending = [
        clients[number % 4].begin(member, ReadFile(MISSING, number, 10, True))
        for number in range(asked)
    ]
    # What is held is answered meanwhile, on the same connections.
    for client in clients:
        assert client.ask(member, ReadFile(HELD, 0, 10, True)) == Data(
            memoryview(content(HELD))[:10]
        )
    may_end.set()
    for number, one in enumerate(pending):
        assert one.result() == Data(memoryview(content(MISSING))[number : number + 10])
    assert cached.loaded == [CacheBlock(MISSING).name]
    for client in clients:
        client.close()


def test_what_may_not_be_fetched(ask: Ask, cached: PlainChunks) -> None:
    assert ask(ReadFile(MISSING, 0, 10, False)) == NotCached()
    assert ask(ReadChunk(MISSING, False)) == NotCached()
    assert ask(ReadBlock(large_block(8), False)) == NotCached()
    assert ask(ranges((HELD, 0, 1), (MISSING, 0, 1), may_fetch=False)) == NotCached()
    assert cached.loaded == []
    cached.coming.add(CacheBlock(MISSING).name)  # waiting for it costs nothing
    assert ask(ReadFile(MISSING, 0, 10, False)) == Data(memoryview(content(MISSING))[:10])


@pytest.mark.parametrize("may_fetch", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_what_comes_while_it_is_looked_for_is_answered(
    ask: Ask, cached: PlainChunks, monkeypatch: pytest.MonkeyPatch, whole: bool, may_fetch: bool
) -> None:
    """Else its reader would read it from the store once more."""

    def look_early(_: ChunkId) -> None:
        monkeypatch.undo()
        cached.keep(CacheBlock(MISSING))

    monkeypatch.setattr(cached, "payload", look_early)
    expected = head(MISSING) + content(MISSING) if whole else content(MISSING)[:10]
    read = ReadChunk(MISSING, may_fetch) if whole else ranges((MISSING, 0, 10), may_fetch=may_fetch)
    assert ask(read) == Data(memoryview(expected))
    assert cached.loaded == []


def test_a_chunk_whose_head_was_not_kept(ask: Ask, cached: PlainChunks) -> None:
    cached.heads.clear()
    assert ask(ReadChunk(HELD, True)) == NotCached()
    assert isinstance(ask(ReadFile(HELD, 0, 10, True)), Data)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CacheFull("full"), NotCached()),
        (MasterGone("gone"), NotCached()),
        (Corrupt("damaged"), Failed("damaged")),
        (NotFound("no such chunk"), Failed("no such chunk")),
        (Unavailable("no answer"), Failed("no answer")),
        (LocalFileError("no space"), Failed("no space")),
        (None, NotCached()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_can_not_be_brought(
    ask: Ask, cached: PlainChunks, error: Exception | None, expected: Answer
) -> None:
    def fetch(block: CacheBlock) -> None:
        if error is not None and block.chunk == MISSING:
            raise error
        if block.chunk != MISSING:
            cached.keep(block)
        # Else it is gone as soon as it has come.

    cached.fetch = fetch
    assert ask(ReadFile(MISSING, 0, 10, True)) == expected
    assert ask(ranges((chunk(7), 0, 10), (MISSING, 0, 10))) == expected
    assert isinstance(ask(ReadFile(HELD, 0, 10, True)), Data)


def test_what_was_not_expected_is_logged_once(
    ask: Ask,
    cached: PlainChunks,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_connection, "_surprises", set())

    class Surprise(Exception):
        pass

    def fetch(block: CacheBlock) -> None:
        raise Surprise

    cached.fetch = fetch
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert ask(ReadFile(MISSING, 0, 10, True)) == Failed("an unexpected error: Surprise")
        cached.payloads = None  # type: ignore[assignment]
        for _ in range(3):
            assert isinstance(ask(ReadChunk(HELD, True)), Failed)
    assert len(caplog.records) == 2


def test_what_is_held_is_shorter_than_believed(ask: Ask) -> None:
    longer = chunk(1, HELD.payload_bytes + 10)
    for request in (
        ReadFile(longer, HELD.payload_bytes - 5, 15, True),
        ReadChunk(longer, True),
        ranges((longer, HELD.payload_bytes - 5, 15)),
    ):
        assert isinstance(ask(request), Failed)


def test_more_work_than_there_may_be(monkeypatch: pytest.MonkeyPatch, cached: PlainChunks) -> None:
    monkeypatch.setattr(peer_server, "MAX_BLOCKS", 2)
    may_end = threading.Event()

    def fetch(block: CacheBlock) -> None:
        assert may_end.wait(SOON_S)
        cached.keep(block)

    cached.fetch = fetch
    server = PeerServer(RUNTIME, SECRET, TASK, "peer", LOOPBACK, cached)
    client, member = PeerClient(RUNTIME, SECRET, TASK, "test"), Member("peer", server.address, 1)
    pending = [client.begin(member, ReadFile(chunk(number), 0, 9, True)) for number in (11, 12)]
    assert client.ask(member, ReadFile(chunk(13), 0, 9, True)) == NotCached()
    may_end.set()
    assert all(isinstance(one.result(), Data) for one in pending)
    assert isinstance(client.ask(member, ReadFile(chunk(13), 0, 9, True)), Data)
    client.close()
    assert server.close(SOON_S)


def test_pongs_tell_what_was_sent(ask: Ask, cached: PlainChunks) -> None:
    cached.state = NodeStatus(budget_bytes=7, cached_bytes=5)
    ask(ReadFile(HELD, 0, 1000, True))
    ask(ReadFile(MISSING, 0, 24, False))
    assert ask(Ping()) == Pong(
        NodeStatus(budget_bytes=7, cached_bytes=5, served_bytes=1000, served_requests=1)
    )


class List:
    """Implements `MemberList`."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}

    def join(self, member: Member) -> Sequence[Member]:
        self.members[member.id] = member
        return list(self.members.values())

    def leave(self, member: str) -> None:
        self.members.pop(member, None)


def test_the_list_of_members(ask: Ask, cached: PlainChunks) -> None:
    one, other = (Member(id, PeerAddress("10.0.0.1", 1000), 5, "host") for id in ("one", "other"))
    assert isinstance(ask(Join(one)), Failed)  # it is not kept here
    keeper = PeerServer(RUNTIME, SECRET, TASK, "peer", LOOPBACK, cached, List())
    client, member = PeerClient(RUNTIME, SECRET, TASK, "test"), Member("peer", keeper.address, 1)
    assert client.ask(member, Join(one)) == Members((one,))
    assert client.ask(member, Join(other)) == Members((one, other))
    assert isinstance(client.ask(member, Leave("one")), Members)
    assert client.ask(member, Join(other)) == Members((other,))
    client.close()
    assert keeper.close(SOON_S)


def test_garbage_ends_its_own_connection(ask: Ask, server: PeerServer) -> None:
    for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(64), encode_request(1, Ping())[:-1]):
        stream = RUNTIME.connect(server.address, SOON_S)
        stream.send((garbage,), SOON_S)
        stream.close()
        stream = greeted(server)
        stream.send((garbage,), SOON_S)
        stream.close()
        assert isinstance(ask(Ping()), Pong)
    eventually(lambda: server.statistics().connections == 1, "those connections end")


def test_who_is_refused_again_and_again_does_not_fill_the_log(
    server: PeerServer, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = PeerClient(RUNTIME, TaskSecret(b"another secret, no good"), TASK, "test")
    for _ in range(20):
        with pytest.raises(PeerRefused):
            wrong.ask(Member("peer", server.address, 1), Ping())
        stranger = RUNTIME.connect(server.address, SOON_S)
        stranger.send((b"GET / HTTP/1.1\r\n\r\n",), SOON_S)
        stranger.close()
    eventually(lambda: server.statistics().refused == 40, "all are refused")
    eventually(lambda: not server._clients, "each refusal is logged after it is counted")
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 2
    wrong.close()


def test_a_stranger_who_says_nothing_is_let_go(
    server: PeerServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "MAX_STRANGERS", 3)
    with monkeypatch.context() as patched:
        patched.setattr(peer_server, "HANDSHAKE_S", 0.2)
        strangers = [RUNTIME.connect(server.address, SOON_S) for _ in range(3)]
        for stranger in strangers:
            assert is_ended(stranger)
            stranger.close()
    eventually(lambda: not server._clients, "none of them counts")
    assert isinstance(ask(Ping()), Pong)


def test_more_strangers_than_there_may_be_are_refused(
    server: PeerServer, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "MAX_STRANGERS", 3)
    strangers = [RUNTIME.connect(server.address, SOON_S) for _ in range(6)]
    assert all(map(is_ended, strangers[3:]))
    assert server.statistics().refused == 3
    for stranger in strangers:
        stranger.close()
    eventually(lambda: not server._clients, "none of them counts")
    assert isinstance(ask(Ping()), Pong)


def test_a_client_that_takes_nothing_holds_up_nobody(
    server: PeerServer, ask: Ask, cached: PlainChunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_connection, "TAKE_S", 0.5)
    monkeypatch.setattr(peer_server, "MAX_WORKERS", 2)
    cached.keep(CacheBlock(LARGE))
    greedy = greeted(server)
    reads = [ReadFile(LARGE, 0, 5 << 20, True)] * 20
    reads += [ReadFile(chunk(number), 0, 1000, True) for number in range(20, 30)]
    # At once: the server may let it go soon after it has got the first one.
    frames = [encode_request(number, read) for number, read in enumerate(reads)]
    greedy.send((b"".join(frames),), SOON_S)
    for number in range(40, 44):
        assert isinstance(ask(ReadFile(HELD, 0, 10, True)), Data)
        assert isinstance(ask(ReadFile(chunk(number), 0, 10, True)), Data)
    eventually(lambda: server.statistics().connections == 1, "the greedy client is let go")
    greedy.close()


def test_a_client_that_has_gone_is_no_surprise(
    cached: PlainChunks, caplog: pytest.LogCaptureFixture
) -> None:
    class Gone:
        """Its last request is there still."""

        def __init__(self) -> None:
            self.left = encode_request(1, ReadFile(MISSING, 0, 10, True))

        def receive_into(self, target: memoryview, timeout_s: float, *, at_least: int = 1) -> int:
            part, self.left = self.left[: len(target)], self.left[len(target) :]
            target[: len(part)] = part
            return len(part)

        def send(self, buffers: Sequence[Buffer], timeout_s: float) -> None:
            raise ConnectionResetError("gone")

        def close(self) -> None: ...

    slow = SlowAnswers(RUNTIME, 1, 1)
    service = Service(cached, slow, None, cached.status)
    with pytest.raises(ConnectionResetError):
        ServedConnection(RUNTIME, Gone(), "client", service).serve()
    assert not caplog.records
    assert cached.loaded == []


def test_clients_that_take_nothing_leave_workers_for_the_others() -> None:
    """As many as there are workers: the processes of a node that was stopped."""
    cached = PlainChunks([])
    patient = PeerServer(RUNTIME, SECRET, TASK, "peer", LOOPBACK, cached, max_workers=2)
    stopped = [greeted(patient) for _ in range(4)]
    for number, stream in enumerate(stopped):
        wanted = chunk(10 + number, 16 << 20)
        stream.send((encode_request(1, ReadFile(wanted, 0, 16 << 20, True)),), SOON_S)
    eventually(lambda: len(cached.loaded) == len(stopped), "all are loaded, and on their way")
    client, member = PeerClient(RUNTIME, SECRET, TASK, "test"), Member("peer", patient.address, 1)
    for number in range(40, 44):
        began = time.monotonic()
        assert isinstance(client.ask(member, ReadFile(chunk(number), 0, 10, True)), Data)
        assert time.monotonic() - began < scaled_by_load(served_connection.TAKE_S / 4)
    for stream in stopped:
        stream.close()
    client.close()
    assert patient.close(SOON_S)


def test_the_notifier_sends_no_answers(cached: PlainChunks) -> None:
    """It serves all clients, and this one takes nothing for long."""
    loads, told, senders = threading.Event(), threading.Event(), list[str]()

    class Notified:
        """Takes the first notice at once, and the second one when the answer is there as well."""

        def __init__(self) -> None:
            self.left = encode_request(1, ReadFile(MISSING, 0, 1000, True))
            self.notices = 0
            self.answered = threading.Event()

        def receive_into(self, target: memoryview, timeout_s: float, *, at_least: int = 1) -> int:
            if not self.left:
                assert self.answered.wait(SOON_S)
                raise ConnectionResetError("gone")
            part, self.left = self.left[: len(target)], self.left[len(target) :]
            target[: len(part)] = part
            return len(part)

        def send(self, buffers: Sequence[Buffer], timeout_s: float) -> None:
            if len(buffers) > 1:
                senders.append(threading.current_thread().name)
                self.answered.set()
                return
            self.notices += 1
            if self.notices == 2:
                loads.set()
                assert told.wait(SOON_S)

        def close(self) -> None: ...

    def fetch(block: CacheBlock) -> None:
        assert loads.wait(SOON_S)
        cached.keep(block)
        threading.Timer(0.3, told.set).start()  # the answer is left, or waits, by then

    cached.fetch = fetch
    slow = SlowAnswers(RUNTIME, 1, 1)
    service = Service(cached, slow, None, cached.status)
    with pytest.raises(ConnectionResetError):
        ServedConnection(RUNTIME, Notified(), "client", service).serve()
    assert senders == ["peer-server-loads"]
    assert all(thread.join(SOON_S) for thread in slow.close())


def test_connections_that_can_not_be_accepted(cached: PlainChunks) -> None:
    class Scarce(OperatingSystem):
        """Has no descriptor left, for a while."""

        def listen(self, address: PeerAddress) -> Listener:
            listener = super().listen(address)
            accept, failures = listener.accept, [OSError(errno.EMFILE, "too many")] * 3

            def scarce() -> Stream:
                if failures:
                    raise failures.pop()
                return accept()

            listener.accept = scarce  # type: ignore[method-assign]
            return listener

    server = PeerServer(Scarce(), SECRET, TASK, "peer", LOOPBACK, cached)
    client = PeerClient(RUNTIME, SECRET, TASK, "test")
    assert isinstance(client.ask(Member("peer", server.address, 1), Ping()), Pong)
    client.close()
    assert server.close(SOON_S)


def test_the_end_does_not_wait_for_a_fetch_that_hangs(cached: PlainChunks) -> None:
    hangs, may_end = threading.Event(), threading.Event()

    def fetch(block: CacheBlock) -> None:
        hangs.set()
        assert may_end.wait(SOON_S)

    cached.fetch = fetch
    server = PeerServer(RUNTIME, SECRET, TASK, "peer", LOOPBACK, cached)
    client, member = PeerClient(RUNTIME, SECRET, TASK, "test"), Member("peer", server.address, 1)
    pending = client.begin(member, ReadFile(MISSING, 0, 10, True))
    assert hangs.wait(SOON_S)
    assert not server.close(0.1)
    with pytest.raises(PeerFailed):
        pending.result()
    may_end.set()
    assert server.close(SOON_S)
    client.close()


def test_threads_ask_for_what_is_held_and_what_is_not(
    server: PeerServer, cached: PlainChunks
) -> None:
    chunks = [chunk(number) for number in range(100, 110)]

    def fetch(block: CacheBlock) -> None:
        time.sleep(0.002)
        cached.keep(block)

    cached.fetch = fetch
    client, member = PeerClient(RUNTIME, SECRET, TASK, "test"), Member("peer", server.address, 1)
    wrong: list[object] = []

    def read(seed: int) -> None:
        chance = np.random.default_rng(seed)
        for _ in range(40):
            ref, start = chunks[chance.integers(10)], int(chance.integers(100_000))
            length = int(chance.choice([50, 4096, 100_000]))
            whole = memoryview(content(ref))
            if chance.random() < 0.5:
                request: Request = ReadFile(ref, start, length, True)
                expected = whole[start : start + length]
            else:
                request = ranges((ref, start, length), (HELD, 1, 1000))
                expected = memoryview(bytes(whole[start : start + length]) + content(HELD)[1:1001])
            if chance.random() < 0.1:
                cached.payloads.pop(ref.id, None)
            answer = client.ask(member, request)
            # What goes while it is being asked for may be gone.
            if answer not in (Data(expected), NotCached()):
                wrong.append(answer)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert client.connected == 1
    assert server.statistics().requests > 200
    client.close()
