"""The addresses of a host by its name, within a time limit.

If DNS does not answer, the system's resolver takes half a minute and can't be interrupted. So a
thread runs it: one for each name, shared by all concurrent callers. A caller that stops waiting
leaves the thread to its end.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future


def addresses_of(host: str, timeout_s: float) -> Sequence[str]:
    """Return the addresses to which TCP can connect, in the resolver's order.

    An address is returned as it is, at once. Raises `OSError` if there are none, or if the lookup
    takes longer than `timeout_s`.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return (host,)
    with _lock:
        found = _under_way.get(host)
        if found is None:
            found = _under_way[host] = Future()
            try:
                threading.Thread(
                    target=_look_up, args=(host, found), name="name-lookup", daemon=True
                ).start()
            except RuntimeError as error:  # no more threads
                del _under_way[host]
                raise OSError(f"cannot look up {host}: {error}") from error
    try:
        return found.result(timeout_s)
    except TimeoutError as error:
        raise TimeoutError(f"cannot look up {host}: no answer within {timeout_s:.1f} s") from error


def _look_up(host: str, found: Future[Sequence[str]]) -> None:
    """Run in a thread: look the name up and set the result."""
    under_way = _under_way
    try:
        entries = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
    except UnicodeError:  # IDNA raises it; a member list may hold any name
        _end(under_way, host)
        found.set_exception(OSError(f"{host!r} is not a host name"))
    except Exception as error:
        _end(under_way, host)
        found.set_exception(error)
    else:
        _end(under_way, host)
        found.set_result(addresses)


def _end(under_way: dict[str, Future[Sequence[str]]], host: str) -> None:
    with _lock:
        under_way.pop(host, None)


_lock = threading.Lock()
_under_way: dict[str, Future[Sequence[str]]] = {}


def _renew() -> None:
    """Start without lookups in a forked child, which has none of these threads."""
    global _lock, _under_way
    _lock, _under_way = threading.Lock(), {}


os.register_at_fork(after_in_child=_renew)
