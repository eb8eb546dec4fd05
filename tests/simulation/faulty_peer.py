"""Peers that do not what they should: what they hold is wrong, or their connections are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, get_args

from chunkstore.chunk_id import ChunkId
from chunkstore.stores.object_store import Buffer
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.errors import CacheFull
from tests.simulation.memory import SimulatedMemory
from tests.simulation.network import SimulatedListener, SimulatedStream
from tests.simulation.runtime import SimulatedRuntime

Vice: TypeAlias = Literal[
    "flips", "short", "another", "works for ever", "holds nothing", "fails", "garbage", "huge"
]
VICES: Final[tuple[Vice, ...]] = get_args(Vice)


class Conscience:
    """What is wrong with one node now; faults set it, healing clears it."""

    def __init__(self, seed: str) -> None:
        self.vice: Vice | None = None
        self.random = random.Random(seed)


class FaultyCache:
    """A `CachedChunks` between a server and a sound memory."""

    def __init__(
        self, runtime: SimulatedRuntime, memory: SimulatedMemory, conscience: Conscience
    ) -> None:
        self._runtime, self._memory, self._conscience = runtime, memory, conscience

    def payload(self, chunk: ChunkId) -> memoryview | None:
        return self._bent(chunk, self._memory.payload(chunk))

    def head(self, chunk: ChunkId) -> memoryview | None:
        return self._memory.head(chunk)

    def block(self, block: CacheBlock) -> memoryview | None:
        found = self._memory.block(block)
        return self._bent(block.chunk.id, found)

    def is_loading(self, block: CacheBlock) -> bool:
        return self._memory.is_loading(block)

    def load(self, block: CacheBlock) -> None:
        vice = self._conscience.vice
        if vice == "works for ever":
            while self._conscience.vice == vice:
                self._runtime.sleep(1.0)
        if vice == "holds nothing":
            raise CacheFull("says that it has no room")
        if vice == "fails":
            raise OSError("says that it failed")
        self._memory.load(block)

    def status(self) -> NodeStatus:
        return self._memory.status()

    def _bent(self, chunk: ChunkId, data: memoryview | None) -> memoryview | None:
        vice, draw = self._conscience.vice, self._conscience.random
        if vice in ("works for ever", "holds nothing", "fails"):
            return None
        if not data:
            return data
        if vice == "flips":
            bent = bytearray(data)
            for _ in range(max(1, len(bent) // 200)):  # a bit of every file, nearly
                bent[draw.randrange(len(bent))] ^= 1 << draw.randrange(8)
            return memoryview(bytes(bent))
        if vice == "short":
            return data[: len(data) // 2]
        if vice == "another":
            others = [each for each in self._memory.cached() if each != chunk]
            if others:
                return self._memory.payload(draw.choice(others))
        return data


class FaultyRuntime(SimulatedRuntime):
    """Of a server: what it sends on accepted connections may be garbage."""

    conscience: Conscience

    def listen(self, address: PeerAddress) -> SimulatedListener:
        listener = super().listen(address)
        accept = listener.accept
        listener.accept = lambda: _FaultyStream(accept(), self.conscience)  # type: ignore
        return listener


class _FaultyStream:
    def __init__(self, stream: SimulatedStream, conscience: Conscience) -> None:
        self._stream, self._conscience = stream, conscience
        self.receive_into = stream.receive_into
        self.close = stream.close

    def send(self, buffers: Sequence[Buffer], timeout_s: float) -> None:
        vice, draw = self._conscience.vice, self._conscience.random
        if vice == "garbage" and draw.random() < 0.5:
            buffers = [draw.randbytes(len(buffer)) for buffer in buffers]
        if vice == "huge" and draw.random() < 0.5:
            first = bytearray(buffers[0])
            first[0:4] = draw.choice([b"\xff\xff\xff\xff", b"\xff\xff\x00\x00"])
            first[8:16] = draw.choice([first[8:16], b"\xff" * 8])
            buffers = [first[: len(buffers[0])], *buffers[1:]]
        self._stream.send(buffers, timeout_s)
