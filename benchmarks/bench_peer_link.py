"""What does the link between two peers cost, beside memcached?

A server that holds buffers, and a client, in two processes over loopback, with nothing behind and
nothing above them; beside it memcached with pylibmc, which holds as many files of the same size.
Contenders take turns.

    file               one file a message, in random order, as a view of it, against `get`
    128 files          128 a message, made `bytes` one by one as a caller wants them, against
                       `get_multi`
    whole chunks       4 MiB with their heads, against a bare socket that sends as many bytes
                       without being asked

Expectation: a `get` of 4 KiB takes memcached 20 us, most of it system calls and the change of
threads. Ours makes as many calls and some 10 us of Python on both sides: 0.7; on a machine with
idle cores it looks for the answer before it sleeps, which saves the waking: 1 and more. A batch
pays for them once: 1 to 1.5. Chunks: the kernel copies twice, whoever sends: 1.

With --tags instead: what do tags add to a message? The same client with tags, of 48 buckets,
against itself without; the server reports each request to a function that does nothing.
Expectation: 3 bytes a file, and 3 us of Python on both sides together. Then what a cache node's
policy costs for each request of a chunk, by its policy: 0.1 us without one, 4 us with one.

    python -m benchmarks.bench_peer_link [--rounds 9] [--messages 4000] [--tags]
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import threading
import time
from collections.abc import Callable

import numpy as np

from benchmarks.contender_process import contender
from benchmarks.harness import report, run_rounds, scratch, spread
from benchmarks.memcached_server import memcached_client, memcached_servers
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.ssd.policy_choice import PolicyChoice
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.ssd.tier import SsdTier
from dieselfs.cache.cluster.chunk_readers import ChunkReaders
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.request_tags import RequestTags
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire.connection_tags import TagNumbers, TagTable
from dieselfs.cache.wire.frame_header import PREFIX_BYTES, decode_prefix
from dieselfs.cache.wire.frames import decode_request, encode_request
from dieselfs.cache.wire.messages import (
    PROTOCOL_VERSION,
    Data,
    NameTags,
    ReadChunk,
    ReadFile,
    ReadRanges,
)
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_server import PeerServer

CHUNKS, CHUNK_BYTES, HEAD_BYTES = 48, 4 << 20, 64 << 10
SIZES = {"4 KiB": 4 << 10, "110 KiB": 110 << 10}
BATCH = 128
POLICIES = ("lru", "historic", "future")
BARS = {
    "4 KiB, file": 0.8,
    "4 KiB, 128 files": 0.7,
    "110 KiB, file": 0.9,
    "110 KiB, 128 files": 0.6,
}
SECRET = TaskSecret(b"of a benchmark, as known as can be")
TASK = "bench"
DATASET = DatasetRef("imagenet", bytes(16))
TAGS = RequestTags("resnet50", 3, "imagenet")
BUCKETS = [f"imagenet:train/class-{number}" for number in range(64)]
REFS = [
    ChunkRef(ChunkId(number.to_bytes(16, "big")), HEAD_BYTES, CHUNK_BYTES)
    for number in range(CHUNKS)
]


class Buffers:
    """Implements `CachedChunks`."""

    def __init__(self) -> None:
        whole = memoryview(os.urandom(CHUNK_BYTES) * CHUNKS)
        self._head = memoryview(bytes(HEAD_BYTES))
        self._payloads = {
            ref.id.value: whole[number * CHUNK_BYTES :][:CHUNK_BYTES]
            for number, ref in enumerate(REFS)
        }

    def payload(self, chunk: ChunkId) -> memoryview | None:
        return self._payloads.get(chunk.value)

    def head(self, chunk: ChunkId) -> memoryview | None:
        return self._head if chunk.value in self._payloads else None

    def block(self, block: CacheBlock) -> memoryview | None:
        return self._payloads.get(block.chunk.id.value)

    def is_loading(self, block: CacheBlock) -> bool:
        return False

    def load(self, block: CacheBlock) -> None:
        raise AssertionError("all is held")

    def status(self) -> NodeStatus:
        return NodeStatus()


class CountedBuffers(Buffers):
    """Implements `CountsRequests`."""

    def requested(self, block: CacheBlock, length: int, tags: RequestTags) -> None:
        pass


class Serving:
    """The server's process."""

    def __init__(self, counts: bool = False) -> None:
        buffers = CountedBuffers() if counts else Buffers()
        self._server = PeerServer(
            OperatingSystem(), SECRET, TASK, "server", PeerAddress("127.0.0.1", 0), buffers
        )

    def run(self) -> PeerAddress:
        return self._server.address

    def close(self) -> None:
        self._server.close(5)


class BareSocket:
    """Sends chunks to one who connects, for as long as that one takes them."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        chunk = os.urandom(HEAD_BYTES + CHUNK_BYTES)
        while connection.recv(1):
            connection.sendall(chunk)

    def run(self) -> int:
        port: int = self._listening.getsockname()[1]
        return port

    def close(self) -> None:
        self._listening.close()


def bulk(answer: object) -> memoryview:
    assert isinstance(answer, Data), answer
    return answer.bulk


def measure(
    name: str, rounds: int, bytes_each: int, ours: Callable[[], None], theirs: Callable[[], None]
) -> None:
    timed = run_rounds({"peer": ours, "baseline": theirs}, rounds)
    ratios = timed.ratios("peer", "baseline")
    report(
        f"the link between peers, {name}",
        ratio=spread(ratios),
        bar=BARS.get(name),
        MB_per_s=bytes_each / timed.median("peer") / 1e6,
        baseline_MB_per_s=bytes_each / timed.median("baseline") / 1e6,
    )


def measure_files(
    client: PeerClient, member: Member, size_name: str, rounds: int, messages: int
) -> None:
    size = SIZES[size_name]
    per_chunk = CHUNK_BYTES // size
    count = CHUNKS * per_chunk
    chance = random.Random(1)
    picked = [chance.randrange(count) for _ in range(messages)]
    batches = [chance.sample(range(count), BATCH) for _ in range(max(messages // 32, 8))]
    lengths = np.full(BATCH, size, np.uint32)

    with memcached_servers(1, 1024) as (server,):
        memcached = memcached_client([server.port])
        for number in range(count):
            memcached.set(f"k{number}", os.urandom(size))

        def files() -> None:
            for number in picked:
                chunk, place = divmod(number, per_chunk)
                request = ReadFile(REFS[chunk], place * size, size, True)
                assert len(bulk(client.ask(member, request))) == size

        def get() -> None:
            for number in picked:
                assert len(memcached.get(f"k{number}")) == size

        def many() -> None:
            for batch in batches:
                chunks, places = np.divmod(np.array(batch, np.uint32), per_chunk)
                named, which = np.unique(chunks, return_inverse=True)
                request = ReadRanges(
                    tuple(REFS[chunk] for chunk in named.tolist()),
                    which.astype(np.uint16),
                    (places * size).astype(np.uint32),
                    lengths,
                    True,
                )
                whole = bulk(client.ask(member, request))
                files = [bytes(whole[at : at + size]) for at in range(0, BATCH * size, size)]
                assert len(files) == BATCH

        def many_in_parts() -> None:
            """As many a message as the protocol allows, all under way at once."""
            for batch in batches:
                pending = []
                for at in range(0, BATCH, 64):
                    part = np.array(batch[at : at + 64], np.uint32)
                    chunks, places = np.divmod(part, per_chunk)
                    named, which = np.unique(chunks, return_inverse=True)
                    request = ReadRanges(
                        tuple(REFS[chunk] for chunk in named.tolist()),
                        which.astype(np.uint16),
                        (places * size).astype(np.uint32),
                        lengths[: len(part)],
                        True,
                    )
                    pending.append(client.begin(member, request))
                files = []
                for one in pending:
                    whole = bulk(one.result())
                    files += [bytes(whole[at : at + size]) for at in range(0, len(whole), size)]
                assert len(files) == BATCH

        def get_multi() -> None:
            for batch in batches:
                assert len(memcached.get_multi([f"k{number}" for number in batch])) == BATCH

        one_message = BATCH * size <= 8 << 20
        measure(f"{size_name}, file", rounds, messages * size, files, get)
        measure(
            f"{size_name}, {BATCH} files",
            rounds,
            len(batches) * BATCH * size,
            many if one_message else many_in_parts,
            get_multi,
        )


def measure_chunks(client: PeerClient, member: Member, rounds: int) -> None:
    with contender(BareSocket) as bare:
        connection = socket.create_connection(("127.0.0.1", bare.run()))
        target = memoryview(bytearray(HEAD_BYTES + CHUNK_BYTES))

        def chunks() -> None:
            for ref in REFS * 4:
                assert len(bulk(client.ask(member, ReadChunk(ref, True)))) == len(target)

        def from_socket() -> None:
            for _ in range(4 * CHUNKS):
                connection.send(b"x")
                got = connection.recv_into(target, 0, socket.MSG_WAITALL)
                assert got == len(target)

        measure("whole chunks", rounds, 4 * CHUNKS * len(target), chunks, from_socket)
        connection.close()


def tags_of(chunk: ChunkId) -> RequestTags:
    return RequestTags("resnet50", 3, BUCKETS[chunk.value[-1] % len(BUCKETS)])


def measure_tags(rounds: int, messages: int) -> None:
    with contender(Serving, True) as serving:
        member = Member("server", serving.run(), 1)
        clients = {
            name: PeerClient(OperatingSystem(), SECRET, TASK, name, of)
            for name, of in (("tags", tags_of), ("no tags", None))
        }

        def files(name: str) -> Callable[[], None]:
            client = clients[name]

            def run() -> None:
                for number in range(messages):
                    request = ReadFile(REFS[number % CHUNKS], 4096, 4096, True)
                    assert len(bulk(client.ask(member, request))) == 4096

            return run

        timed = run_rounds({name: files(name) for name in clients}, rounds)
        least_s = {name: min(timed.seconds[name]) / messages for name in clients}
        frames = [
            sum(map(len, numbers.frames(1, ReadFile(REFS[0], 4096, 4096, True))))
            for numbers in [TagNumbers(tags_of)]
            for _ in range(2)
        ]
        report(
            "tags of requests for files of 4 KiB",
            ratio=spread(timed.ratios("tags", "no tags")),
            least_us_each={name: 1e6 * each for name, each in least_s.items()},
            added_us=1e6 * (least_s["tags"] - least_s["no tags"]),
            bytes={
                "no tags": len(encode_request(1, ReadFile(REFS[0], 4096, 4096, True))),
                "first of a bucket": frames[0],
                "others": frames[1],
            },
        )
        for client in clients.values():
            client.close()


def processor_s(call: Callable[[], object], times: int) -> Callable[[], float]:
    """A contender that takes as long as this thread computed."""

    def run() -> float:
        began = time.thread_time()
        for _ in range(times):
            call()
        return time.thread_time() - began

    return run


def measure_frames(rounds: int, requests: int) -> None:
    """The processor time of both sides for a request, without the network."""
    request = ReadFile(REFS[0], 4096, 4096, True)
    numbers, table = TagNumbers(tags_of), TagTable(PROTOCOL_VERSION)
    *_, tagged = numbers.frames(1, request)
    table.name(NameTags(0, tags_of(REFS[0].id)))
    plain = encode_request(1, request)

    def received(frame: bytes) -> tuple[memoryview, int]:
        return memoryview(frame)[PREFIX_BYTES:], decode_prefix(frame)[2]

    def find_tags() -> None:
        found = decode_request(*received(tagged))[1]
        assert isinstance(found, ReadFile)
        table.of(found.tags, 1)

    sides: dict[str, Callable[[], object]] = {
        "client, no tags": lambda: encode_request(1, request),
        "client, tags": lambda: numbers.frames(1, request),
        "node, no tags": lambda: decode_request(*received(plain)),
        "node, tags": find_tags,
    }
    timed = run_rounds({name: processor_s(side, requests) for name, side in sides.items()}, rounds)
    report(
        "tags of requests for files, processor time",
        us_each={name: 1e6 * timed.median(name) / requests for name in sides},
    )


def measure_policies(rounds: int, requests: int) -> None:
    def ask(clients: ChunkReaders) -> Callable[[], float]:
        return processor_s(
            lambda: clients.requested(REFS[0], HEAD_BYTES, CHUNK_BYTES, TAGS), requests
        )

    def no_ssd() -> SegmentStore:
        raise OSError("no SSD is needed")

    with scratch("policies") as folder:
        tiers = {name: SsdTier(no_ssd, folder, choice=PolicyChoice(name)) for name in POLICIES}
        readers = {name: ChunkReaders(DATASET, tier) for name, tier in tiers.items()}
        timed = run_rounds({name: ask(each) for name, each in readers.items()}, rounds)
    report(
        "what a cache node's policy learns of a request",
        us_each={name: 1e6 * timed.median(name) / requests for name in readers},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--messages", type=int, default=4000)
    parser.add_argument("--tags", action="store_true", help="the cost of tags alone")
    options = parser.parse_args()
    if options.tags:
        measure_tags(options.rounds, options.messages)
        measure_frames(options.rounds, options.messages)
        measure_policies(options.rounds, options.messages)
        return
    with contender(Serving) as serving:
        client = PeerClient(OperatingSystem(), SECRET, TASK, "bench")
        member = Member("server", serving.run(), 1)
        for size_name in SIZES:
            measure_files(client, member, size_name, options.rounds, options.messages)
        measure_chunks(client, member, options.rounds)
        client.close()


if __name__ == "__main__":
    main()
