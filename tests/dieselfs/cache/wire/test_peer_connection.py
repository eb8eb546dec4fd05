"""The asking side, against peers that do what they should, and others."""

from __future__ import annotations

import os
import random
import struct
import threading
from collections.abc import Callable, Iterator
from operator import gt

import pytest
import xxhash

from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.wire.frames import encode_answer, encode_request
from dieselfs.cache.wire.messages import (
    Data,
    Failed,
    NotCached,
    Ping,
    Pong,
    ReadChunk,
    ReadFile,
    Request,
    Working,
)
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.errors import PeerFailed
from tests.dieselfs.cache.peers.plain_chunks import chunk, content, head
from tests.dieselfs.cache.peers.scripted_peer import (
    SECRET,
    SOON_S,
    TASK,
    Conversation,
    scripted_peer,
)
from tests.eventually import eventually

pytestmark = pytest.mark.usefixtures("patience")

CHUNK = chunk(1)


def read(start: int = 0, length: int = 4096) -> ReadFile:
    return ReadFile(CHUNK, start, length, True)


def data_of(request: Request) -> Data:
    assert isinstance(request, ReadFile)
    whole = content(request.chunk)
    return Data(memoryview(whole)[request.start : request.start + request.length])


def answers_all(peer: Conversation) -> None:
    while True:
        number, request = peer.receive()
        peer.answer(number, data_of(request))


@pytest.fixture
def client() -> Iterator[PeerClient]:
    before = in_use()
    client = PeerClient(OperatingSystem(), SECRET, TASK, "test")
    yield client
    client.close()
    # Of other tests some may end meanwhile.
    eventually(
        lambda: not any(map(gt, in_use(), before)), f"threads, descriptors as before: {before}"
    )


def in_use() -> tuple[int, int]:
    """(threads, descriptors) of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("length", [0, 1, 4096, 24 << 10, 65_000, 110 << 10, 256 << 10])
def test_bytes_of_any_length(client: PeerClient, length: int) -> None:
    with scripted_peer(answers_all) as peer:
        for _ in range(3):
            answer = client.ask(peer, read(0, length))
            assert answer == Data(memoryview(content(CHUNK))[:length])


def test_frames_that_come_in_any_cut(client: PeerClient) -> None:
    def cuts(peer: Conversation) -> None:
        chance = random.Random(7)
        left = b""
        while True:
            number, request = peer.receive()
            bulk = bytes(data_of(request).bulk)
            left += encode_answer(number, Working())
            left += encode_answer(number, Data(memoryview(bulk)), len(bulk)) + bulk
            while left:
                count = chance.randrange(1, 40) if len(left) < 500 else chance.randrange(1, 9000)
                peer.send(left[:count])
                left = left[count:]

    with scripted_peer(cuts) as peer:
        for start in range(40):
            length = start * 1000 % 30_000
            assert client.ask(peer, read(start, length)) == data_of(read(start, length))


def test_many_threads_share_a_connection_whose_answers_come_in_any_order(
    client: PeerClient,
) -> None:
    def shuffles(peer: Conversation) -> None:
        chance = random.Random(3)
        lock = threading.Lock()
        waiting: list[tuple[int, Request]] = []
        ended = threading.Event()

        def answer() -> None:
            while not ended.wait(0.0005):
                with lock:
                    chance.shuffle(waiting)
                    now, waiting[4:] = waiting[4:], []
                for number, request in now:
                    peer.answer(number, data_of(request))
                with lock:
                    now = [waiting.pop()] if waiting else []
                for number, request in now:
                    peer.answer(number, Working())
                    peer.answer(number, data_of(request))

        answering = threading.Thread(target=answer)
        answering.start()
        try:
            while True:
                asked = peer.receive()
                with lock:
                    waiting.append(asked)
        finally:
            ended.set()
            answering.join()

    failures: list[str] = []
    whole = content(CHUNK)

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            start = chance.randrange(100_000)
            length = chance.choice([10, 4096, 60_000, 110_000])
            answer = client.ask(peer, read(start, length))
            if answer != Data(memoryview(whole)[start : start + length]):
                failures.append(f"{seed}: {start}+{length}")

    with scripted_peer(shuffles) as peer:
        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.connections() == 1
        client.close()
    assert not failures


def test_answers_are_fetched_in_any_order(client: PeerClient) -> None:
    with scripted_peer(answers_all) as peer:
        pending = [client.begin(peer, read(number, 2000)) for number in range(20)]
        for number in reversed(range(20)):
            assert pending[number].result() == data_of(read(number, 2000))


def prefix(header: bytes, bulk_bytes: int = 0, header_bytes: int | None = None) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(header, bulk_bytes)
    return struct.pack(
        "<IIQ", len(header) if header_bytes is None else header_bytes, bulk_bytes, checksum
    )


def damaged(frame: bytes) -> bytes:
    return frame[:-1] + bytes((frame[-1] ^ 1,))


@pytest.mark.parametrize(
    "say",
    [
        lambda number: b"HTTP/1.1 200 OK\r\nServer: something else\r\n\r\n",
        lambda number: bytes(100),
        lambda number: damaged(encode_answer(number, NotCached())),
        lambda number: prefix(b"", 0, header_bytes=(1 << 32) - 1) + bytes(1000),
        lambda number: prefix(bytes(11), (1 << 32) - 1) + bytes(11),
        lambda number: encode_answer(number, Data(memoryview(b"")), 4095) + bytes(4095),
        lambda number: encode_answer(number, Data(memoryview(b"")), 16 << 20),
        lambda number: encode_answer(number, Data(memoryview(b"")), 0),
        lambda number: encode_answer(number + 1, NotCached()),
        lambda number: encode_answer(number, Pong(NodeStatus())),
        lambda number: encode_request(number, Ping()),
        lambda number: encode_answer(number, Working())[:20],
        lambda number: b"",
    ],
    ids=[
        "something else",
        "zeros",
        "a flipped bit",
        "a header of 4 GiB",
        "bulk of 4 GiB",
        "bytes are missing",
        "many bytes more",
        "no bytes at all",
        "nothing that was asked",
        "another kind of answer",
        "a request",
        "half a frame",
        "the end",
    ],
)
def test_what_is_not_in_order_ends_the_connection(
    client: PeerClient, say: Callable[[int], bytes]
) -> None:
    def says(peer: Conversation) -> None:
        peer.receive()
        number, _ = peer.receive()
        peer.send(say(number))

    with scripted_peer(says, answers_all) as peer:
        first = client.begin(peer, read())
        with pytest.raises(PeerFailed):
            client.begin(peer, read()).result()
        with pytest.raises(PeerFailed):
            first.result()
        assert client.connections() == 0
        assert client.ask(peer, read()) == data_of(read())


def test_other_answers(client: PeerClient) -> None:
    def answers(peer: Conversation) -> None:
        for answer in (NotCached(), Failed("a reason"), Pong(NodeStatus())):
            peer.answer(peer.receive()[0], answer)
        number, _ = peer.receive()
        peer.answer(number, Data(memoryview(head(CHUNK) + content(CHUNK))))
        peer.receive()

    with scripted_peer(answers) as peer:
        assert client.ask(peer, read()) == NotCached()
        assert client.ask(peer, read()) == Failed("a reason")
        assert client.ask(peer, Ping()) == Pong(NodeStatus())
        chunk = client.ask(peer, ReadChunk(CHUNK, False))
        assert chunk == Data(memoryview(head(CHUNK) + content(CHUNK)))


def test_closing_wakes_all_that_wait(client: PeerClient) -> None:
    asked = threading.Semaphore(0)

    def waits(peer: Conversation) -> None:
        for _ in range(5):
            peer.receive()
            asked.release()
        peer.receive()  # nothing comes: until the client ends it

    failures: list[str] = []

    def ask() -> None:
        try:
            client.ask(peer, read())
        except PeerFailed as failure:
            failures.append(str(failure))

    with scripted_peer(waits) as peer:
        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert asked.acquire(timeout=SOON_S)
        client.close()
        for thread in threads:
            thread.join()
        assert len(failures) == 5
        with pytest.raises(PeerFailed):
            client.ask(peer, read())
        assert client.connections() == 0
