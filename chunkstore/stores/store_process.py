"""The process that calls a store for a forked child (see `forked_store`).

It is started as `python -m chunkstore.stores.store_process FD`.
"""

from __future__ import annotations

import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from chunkstore.stores.object_store import ObjectStore


def main() -> None:
    """Serve the store that the first message holds, until the starting process ends."""
    # Ctrl-C is for the starting process, whose end also ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Connection(int(sys.argv[1])) as control:
        store: ObjectStore = control.recv()
        control.send_bytes(b"ready")
        while True:
            try:
                connection = Connection(recv_handle(control))
            except (OSError, EOFError):
                return
            threading.Thread(target=_serve, args=(store, connection), daemon=True).start()


def _serve(store: ObjectStore, connection: Connection) -> None:
    with connection:
        try:
            while True:
                outcome = _called(store, *connection.recv())
                connection.send_bytes(pickle.dumps(outcome, protocol=5))
        except (OSError, EOFError):
            pass


def _called(store: ObjectStore, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        result = getattr(store, method)(*arguments)
        if isinstance(result, memoryview):
            return True, pickle.PickleBuffer(result)  # the receiver gets bytes
        return True, list(result) if method == "list" else result
    except Exception as error:
        error.__cause__ = error.__context__ = None  # their library may be missing in the caller
        return False, error


if __name__ == "__main__":
    main()
