"""A peer that knows the secret, says that it holds everything, and serves something else: `python
faulty_node.py ORDER`.

ORDER is a JSON object: `fault` (below), `task`, `redis`, `address`, `weight`, `disk`, `snapshot`.
It says "asked" when it is first asked for data, and leaves at the end of stdin.

    wrong   a bit of each block is another
    other   the bytes of another chunk
    short   half of the bytes, then the end of the connection
    drip    a few bytes every 0.2 s, for ever
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef
from chunkstore.object_keys import chunk_key
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.object_store import Buffer
from dieselfs.cache.membership.membership import TaskMembership
from dieselfs.cache.membership.redis_registry import RedisRegistry
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import Member, View
from dieselfs.cache.ports.runtime import Listener, PeerAddress, Stream
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_server import PeerServer
from dieselfs.errors import CacheFull
from metadata.snapshot import Snapshot

_SMALL: Final = 4096
"""What is not longer is no file: pongs and what else keeps a connection alive."""


class LyingMemory:
    """Implements `CachedChunks`: all chunks of a snapshot, not as they are."""

    def __init__(self, snapshot: Snapshot, store: LocalDirectory, fault: str) -> None:
        chunks = [snapshot.chunk(number) for number in range(snapshot.chunk_count)]
        self._chunks: dict[ChunkId, ChunkRef] = {chunk.id: chunk for chunk in chunks}
        self._next = dict(zip(self._chunks, [*chunks[1:], chunks[0]], strict=True))
        self._name = snapshot.dataset.name
        self._store = store
        self._reader = ChunkReader(store, snapshot.dataset)
        self._fault = fault
        self._was_asked = threading.Event()

    def payload(self, chunk: ChunkId) -> memoryview | None:
        if not self._was_asked.is_set():
            self._was_asked.set()
            print("asked", flush=True)
        whole = self._reader.payload(self._chunks[chunk])
        if self._fault == "wrong":
            changed = bytearray(whole)
            changed[::_SMALL] = bytes(each ^ 1 for each in changed[::_SMALL])
            return memoryview(changed)
        if self._fault == "other":
            other = self._reader.payload(self._next[chunk])
            return memoryview((bytes(other) * (1 + len(whole) // len(other)))[: len(whole)])
        return whole

    def head(self, chunk: ChunkId) -> memoryview | None:
        key = chunk_key(self._name, chunk)
        return memoryview(self._store.get_range(key, 0, self._chunks[chunk].head_bytes))

    def block(self, block: CacheBlock) -> memoryview | None:
        return self.payload(block.chunk.id)

    def is_loading(self, block: CacheBlock) -> bool:
        return False

    def load(self, block: CacheBlock) -> None:
        raise CacheFull("nothing is brought here")

    def status(self) -> NodeStatus:
        return NodeStatus()


class FaultyNetwork(OperatingSystem):
    """Whoever connects is sent what the fault leaves."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def listen(self, address: PeerAddress) -> Listener:
        return _Listener(super().listen(address), self._fault)


class _Listener:
    def __init__(self, listener: Listener, fault: str) -> None:
        self._listener = listener
        self._fault = fault

    @property
    def address(self) -> PeerAddress:
        return self._listener.address

    def accept(self) -> Stream:
        return _Stream(self._listener.accept(), self._fault)

    def close(self) -> None:
        self._listener.close()


class _Stream:
    def __init__(self, stream: Stream, fault: str) -> None:
        self._stream = stream
        self._fault = fault

    def send(self, buffers: Sequence[Buffer], timeout_s: float) -> None:
        data = b"".join(buffers)
        if len(data) > _SMALL and self._fault == "short":
            self._stream.send([data[: len(data) // 2]], timeout_s)
            self._stream.close()
            raise ConnectionResetError("that was all")
        if len(data) > _SMALL and self._fault == "drip":
            for at in range(0, len(data), 16):
                self._stream.send([data[at : at + 16]], timeout_s)
                time.sleep(0.2)
            return
        self._stream.send([data], timeout_s)

    def receive_into(self, target: memoryview, timeout_s: float, *, at_least: int = 1) -> int:
        return self._stream.receive_into(target, timeout_s, at_least=at_least)

    def close(self) -> None:
        self._stream.close()


class NoBoard:
    """Implements `ViewBoard`: it reads nothing itself."""

    def publish(self, view: View) -> None:
        pass

    def current(self) -> View | None:
        return None

    def withdraw(self) -> None:
        pass


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    secret = TaskSecret.load(os.environ, None)
    assert secret is not None
    runtime, task, fault = FaultyNetwork(order["fault"]), order["task"], order["fault"]
    with Snapshot.open(Path(order["snapshot"])) as snapshot:
        cached = LyingMemory(snapshot, LocalDirectory(Path(order["disk"]) / "store"), fault)
        listen = PeerAddress(order["address"], 0)
        # A name for each fault: a breaker that has opened for one stays open for up to a minute.
        id = f"faulty-{fault}"
        server = PeerServer(runtime, secret, task, id, listen, cached)
        client = PeerClient(OperatingSystem(), secret, task, id)
        me = Member(id, server.address, order["weight"])
        registry = RedisRegistry(order["redis"], task)
        membership = TaskMembership(OperatingSystem(), registry, client, me, NoBoard())
        membership.start()
        sys.stdin.read()
        membership.close(2.0)
        client.close()
        server.close(2.0)


if __name__ == "__main__":
    main()
