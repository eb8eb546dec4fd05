"""The addresses of a host by its name, within a time limit.

If DNS does not answer, the system's resolver takes half a minute and can't be interrupted. So a
thread runs it: one for each name, shared by all concurrent callers. A caller that stops waiting
leaves the thread to its end.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from chunkstore.single_flight import SingleFlight

_lookups: Final[SingleFlight[Sequence[str]]] = SingleFlight()


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
    try:
        return _lookups.begin(host, partial(_look_up, host), _start_thread).result(timeout_s)
    except TimeoutError as error:
        raise TimeoutError(f"cannot look up {host}: no answer within {timeout_s:.1f} s") from error
    except RuntimeError as error:  # no more threads
        raise OSError(f"cannot look up {host}: {error}") from error


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="name-lookup", daemon=True).start()


def _look_up(host: str) -> Sequence[str]:
    try:
        entries = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # IDNA raises it; a member list may hold any name
        raise OSError(f"{host!r} is not a host name") from error
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
