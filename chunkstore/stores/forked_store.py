"""A store whose library does not survive a fork, made usable in forked children.

obstore has one set of threads a process, made at its first call; a forked child has the memory that says so, but not the threads, and its next
call would wait for ever. So a child hands its calls to a process of its own, started afresh (`store_process`), which makes the store
anew from its pickle. That costs the child 0.3 s at its first call and some 0.1 ms and one copy a call; training's workers come here only for what is neither in
node memory nor to be had from the node's master.

Who forks workers that will use the store a lot does so before it calls the library itself (`dieselfs.packing`).
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.errors import Unavailable
from chunkstore.stores.length_prefixed import receive_message, send_message
from chunkstore.stores.object_store import Buffer, ObjectInfo, ObjectStore

_START_TIMEOUT_S: Final = 15.0
_used_in: int | None = None
"""The process that first called the library: only there does it work. Those forked from it before that call may be the first themselves."""


class ForkedStore:
    """Wraps a store that pickles. Where the library works, calls go straight through."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._process: StoreProcess | None = None

    def _goes_elsewhere(self) -> bool:
        global _used_in
        if _used_in is None:
            _used_in = os.getpid()
        return os.getpid() != _used_in

    def __reduce__(self) -> tuple[type[ForkedStore], tuple[ObjectStore]]:
        return type(self), (self._store,)

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        if self._goes_elsewhere():
            self._call("create", key, [b"".join(parts)])
        else:
            self._store.create(key, parts)

    def get(self, key: str) -> Buffer:
        data: Buffer = self._call("get", key) if self._goes_elsewhere() else self._store.get(key)
        return data

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        if not self._goes_elsewhere():
            return self._store.get_range(key, offset, length)
        data: Buffer = self._call("get_range", key, offset, length)
        return data

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return (
            iter(self._call("list", prefix)) if self._goes_elsewhere() else self._store.list(prefix)
        )

    def delete(self, key: str) -> None:
        if self._goes_elsewhere():
            self._call("delete", key)
        else:
            self._store.delete(key)

    def stat(self, key: str) -> ObjectInfo:
        info: ObjectInfo = (
            self._call("stat", key) if self._goes_elsewhere() else self._store.stat(key)
        )
        return info

    def _call(self, method: str, *arguments: Any) -> Any:
        with self._lock:
            if self._process is None:
                self._process = StoreProcess(self._store)
            process = self._process
        try:
            return process.call(method, *arguments)
        except (OSError, EOFError) as error:
            with self._lock:
                if self._process is process:
                    self._process = None
            raise Unavailable(f"the process that asks the store has ended: {error}") from error


class StoreProcess:
    """A store in a process of its own, which ends when this one does. Thread-safe: each thread that calls at the same time has a connection."""

    def __init__(self, store: ObjectStore) -> None:
        """Raises `OSError`."""
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "chunkstore.stores.store_process",
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                start_new_session=True,
            )
        self._control.settimeout(_START_TIMEOUT_S)
        send_message(self._control, pickle.dumps(store))
        if receive_message(self._control) != b"ready":
            raise OSError("it did not start")
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []

    def call(self, method: str, *arguments: Any) -> Any:
        """What the method returns, or raises. `OSError` or `EOFError` if the process has gone."""
        with self._lock:
            connection = self._idle.pop() if self._idle else self._connection()
        send_message(connection, pickle.dumps((method, arguments)))
        succeeded, result = pickle.loads(receive_message(connection))
        with self._lock:
            self._idle.append(connection)
        if not succeeded:
            raise result
        return result

    def _connection(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"c"], [theirs.fileno()])
        return ours
