"""The fast path of a daemon, driven from a test: every method of `FastPath`, and of the daemon's source, over a socket.

The daemon serves it in a thread of its own (`serve`); a test calls it as if it were there (`RemoteFastPath`).
"""

import select
import threading
from contextlib import suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from chunkstore.chunk_id import ChunkId
from dieselfs.fuse.fast_path import FastPath


class Held:
    """A `ChunkObserver` before the fast path, which can be waited for: what a source tells may come later."""

    def __init__(self, fast_path: FastPath) -> None:
        self._fast_path = fast_path
        self._chunks: set[ChunkId] = set()
        self._changed = threading.Condition()

    def hold(self, chunk: ChunkId, payload: memoryview) -> None:
        with self._changed:
            self._fast_path.hold(chunk, payload)
            self._chunks.add(chunk)
            self._changed.notify_all()

    def release(self, chunk: ChunkId) -> None:
        with self._changed:
            self._fast_path.release(chunk)
            self._chunks.discard(chunk)
            self._changed.notify_all()

    def wait(self, chunk: ChunkId, held: bool) -> None:
        """At most a second: it may have been evicted, or fetched, by someone else at once."""
        with self._changed:
            self._changed.wait_for(lambda: (chunk in self._chunks) == held, 1)


def serve(address: Path, fast_path: FastPath, source: Any) -> Held:
    """In the background, one connection after the other, until the process ends. Returns who is to observe the source."""
    held = Held(fast_path)

    def call(name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "fetch":
            [chunk] = arguments
            source.payload(chunk)
            return held.wait(chunk.id, True)
        if name == "discard":
            [chunk_id] = arguments
            source.discard(chunk_id)
            return held.wait(chunk_id, False)
        if name == "has_news":
            return bool(select.select([fast_path.plan_fd()], [], [], *arguments)[0])
        return getattr(fast_path, name)(*arguments)

    def answer_calls() -> None:
        with Listener(str(address), "AF_UNIX") as listener:
            while True:
                with listener.accept() as connection, suppress(EOFError):
                    while True:
                        try:
                            result = call(*connection.recv())
                        except (ValueError, OSError) as error:
                            result = error
                        connection.send(result)

    threading.Thread(target=answer_calls, daemon=True).start()
    return held


class RemoteFastPath:
    """`remote.store(chunk_id)` and so on; an error of the call is raised here. One test at a time."""

    def __init__(self, address: Path) -> None:
        self._connection = Client(str(address), "AF_UNIX")

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self._connection.send((name, arguments))
            result = self._connection.recv()
            if isinstance(result, Exception):
                raise result
            return result

        return call

    def close(self) -> None:
        self._connection.close()
