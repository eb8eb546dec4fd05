"""The process that calls a store for a forked child (see `forked_store`).

It is started as `python -m chunkstore.stores.store_process FD`.
"""

from __future__ import annotations

import pickle
import signal
import socket
import sys
import threading
from typing import Any

from chunkstore.stores.length_prefixed import receive_message, send_message
from chunkstore.stores.object_store import ObjectStore


def main() -> None:
    """Serve the store that the first message holds, until the starting process ends."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the starting process, whose end also ends this one
    with socket.socket(fileno=int(sys.argv[1])) as control:
        store: ObjectStore = pickle.loads(receive_message(control))
        send_message(control, b"ready")
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            for descriptor in descriptors:
                threading.Thread(
                    target=_serve, args=(store, socket.socket(fileno=descriptor)), daemon=True
                ).start()


def _serve(store: ObjectStore, connection: socket.socket) -> None:
    with connection:
        try:
            while True:
                method, arguments = pickle.loads(receive_message(connection))
                send_message(
                    connection, pickle.dumps(_called(store, method, arguments), protocol=5)
                )
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
