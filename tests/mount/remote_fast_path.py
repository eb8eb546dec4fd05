"""The fast path of a daemon, driven from a test: every method of `FastPath`, and of the daemon's source, over a socket.

The daemon serves it in a thread of its own (`serve`); a test calls it as if it were there (`RemoteFastPath`).
"""

import select
import threading
from contextlib import suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from dieselfs.fuse.fast_path import FastPath


def serve(address: Path, fast_path: FastPath, source: Any) -> None:
    """In the background, one connection after the other, until the process ends."""

    def call(name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "fetch":
            return len(source.payload(*arguments))
        if name == "discard":
            return source.discard(*arguments)
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
