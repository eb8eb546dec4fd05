"""A wrapper that makes a store usable in forked children although its library is not.

obstore has one set of threads for each process, created at its first call. A forked child inherits
the memory that records them but not the threads, so its next call would wait for ever. Therefore a
child sends its calls to a fresh process (`store_process`), which creates the store from its pickle.
This costs the child 0.3 s at its first call, and some 0.1 ms and one copy a call. Training's
workers come here only for bytes that neither node memory nor the node's master can provide. The
user's own code may have called obstore in a process before: each fork looks for obstore's threads.

A process that forks workers with much use of the store forks them before its own first call of the
library (`dieselfs.packing`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Final

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.errors import Unavailable
from chunkstore.stores.folder_names import folder_names, folders_of
from chunkstore.stores.later_keys import later_keys
from chunkstore.stores.object_store import (
    Buffer,
    DefersChecks,
    KeepsCopies,
    ObjectInfo,
    ObjectStore,
)

_START_TIMEOUT_S: Final = 15.0
_used_in: int | None = None
"""The process that first called the library, the only one in which the library works.

A process forked from it before that call may itself be the first to call its own copy.
"""


def _note_calls_of_others() -> None:
    """Take this process for the one that called the library, if that has threads here."""
    global _used_in
    if _used_in is None and "obstore" in sys.modules and _has_library_threads():
        _used_in = os.getpid()


def _has_library_threads() -> bool:
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread has ended
            if name.read_bytes().startswith(b"tokio-"):
                return True
    return False


os.register_at_fork(before=_note_calls_of_others)


class ForkedStore:
    """A wrapper for a store that pickles. Where the library works, it calls the store directly."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        """Start without a process; called at first and in a forked child."""
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
        """Create an object; in a forked child, the parts are joined first."""
        if self._goes_elsewhere():
            self._call("create", key, [b"".join(parts)])
        else:
            self._store.create(key, parts)

    def get(self, key: str) -> Buffer:
        """Return a whole object."""
        data: Buffer = self._call("get", key) if self._goes_elsewhere() else self._store.get(key)
        return data

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """Return a range of an object."""
        if not self._goes_elsewhere():
            return self._store.get_range(key, offset, length)
        data: Buffer = self._call("get_range", key, offset, length)
        return data

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List objects; in a forked child, the whole listing comes in one answer."""
        return (
            iter(self._call("list", prefix)) if self._goes_elsewhere() else self._store.list(prefix)
        )

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names below a prefix; in a forked child, from a whole listing."""
        if self._goes_elsewhere():
            return list(folders_of(self._call("list", prefix), prefix))
        return folder_names(self._store, prefix)

    def later_keys(self, prefix: str, after: str) -> Sequence[str] | None:
        """Return the keys after one."""
        if not self._goes_elsewhere():
            return later_keys(self._store, prefix, after)
        keys: Sequence[str] | None = self._call("later_keys", prefix, after)
        return keys

    def delete(self, key: str) -> None:
        """Delete an object."""
        if self._goes_elsewhere():
            self._call("delete", key)
        else:
            self._store.delete(key)

    def stat(self, key: str) -> ObjectInfo:
        """Return the size of an object."""
        info: ObjectInfo = (
            self._call("stat", key) if self._goes_elsewhere() else self._store.stat(key)
        )
        return info

    def forget(self, key: str) -> bool:
        """See `KeepsCopies`."""
        if not isinstance(self._store, KeepsCopies):
            return False
        if self._goes_elsewhere():
            return bool(self._call("forget", key))
        return self._store.forget(key)

    def check_created(self, sizes: Mapping[str, int]) -> None:
        """See `DefersChecks`; a local store has checked them."""
        if not isinstance(self._store, DefersChecks):
            return
        if self._goes_elsewhere():
            self._call("check_created", sizes)
        else:
            self._store.check_created(sizes)

    def _call(self, method: str, *arguments: Any) -> Any:
        with self._lock:
            if self._process is None:
                try:
                    self._process = StoreProcess(self._store)
                except (OSError, EOFError) as error:
                    raise Unavailable(
                        f"cannot start the process that calls the store: {error}"
                    ) from error
            process = self._process
        try:
            return process.call(method, *arguments)
        except (OSError, EOFError) as error:
            with self._lock:
                if self._process is process:
                    self._process = None
            raise Unavailable(f"the process that calls the store has ended: {error}") from error


class StoreProcess:
    """A store in a process of its own, which ends when this process ends.

    Thread-safe: each concurrent caller has a connection of its own.
    """

    def __init__(self, store: ObjectStore) -> None:
        """Start the process.

        Raises `OSError` or `EOFError` if it does not start, and leaves no process behind.
        """
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._control, theirs = Pipe()
        try:
            with theirs:
                self._process = _start_process(theirs)
            try:
                self._control.send(store)
                if not self._control.poll(_START_TIMEOUT_S):
                    raise TimeoutError("it does not answer")
                if self._control.recv_bytes() != b"ready":
                    raise OSError("its first message is not the expected one")
            except BaseException:
                self._process.kill()
                self._process.wait()
                raise
        except BaseException:
            self._control.close()
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """Return what the store's method returns, or raise what it raises.

        Raises `OSError` or `EOFError` if the process has ended.
        """
        with self._lock:
            connection = self._idle.pop() if self._idle else self._connection()
        try:
            connection.send((method, arguments))
            succeeded, result = connection.recv()
        except BaseException:
            connection.close()  # it may still carry a part of a message
            raise
        with self._lock:
            self._idle.append(connection)
        if not succeeded:
            raise result
        return result

    def _connection(self) -> Connection:
        ours, theirs = Pipe()
        with theirs:
            send_handle(self._control, theirs.fileno(), self._process.pid)
        return ours


def _start_process(control: Connection) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "chunkstore.stores.store_process", str(control.fileno())],
        pass_fds=[control.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        start_new_session=True,
    )
