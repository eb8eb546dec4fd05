"""The addresses of peers in the form that people write, and a test of which are this node's."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final

from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.errors import UsageError

_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"(?!_){_LABEL}(?:\.{_LABEL})*(?<!_)")
_MAX_PORT: Final = 65535


def parse_address(text: str, what: str, default_port: int | None = None) -> PeerAddress:
    """Parse `HOST:PORT` or `[IPV6]:PORT`, with a default also without the port.

    Raises `UsageError`, which names `what` the text was given for.
    """
    host, separator, port = text.rpartition(":")
    if not separator or (host.count(":") and not host.endswith("]")) or text.endswith("]"):
        host, port = text, "" if default_port is None else str(default_port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not is_host(host) or not port.isdecimal() or int(port) > _MAX_PORT:
        form = "HOST:PORT" if default_port is None else "HOST or HOST:PORT"
        raise UsageError(f"{what} {text}: this is not an address", f"write {form}, or [IPV6]:PORT")
    return PeerAddress(host, int(port))


def parse_addresses(text: str, what: str) -> tuple[PeerAddress, ...]:
    """Parse a list with commas, or with plus signs where a comma would end a -o option.

    Raises `UsageError` for an address that is wrong, has port 0, or is listed twice.
    """
    found = tuple(parse_address(part, what) for part in text.replace("+", ",").split(","))
    if len(set(found)) != len(found) or not all(address.port for address in found):
        raise UsageError(f"{what} {text}: each peer must be listed once, with its port")
    return found


def is_host(text: str) -> bool:
    """Return whether the text is a host name, or an IP address without brackets."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return bool(_HOST.fullmatch(text)) and len(text) <= 253
    return True


def is_wildcard(host: str) -> bool:
    """Return whether the host is 0.0.0.0 or ::, fit for listening but not for connecting."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether the host is a loopback address or `localhost`. A name is not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_of_this_node(host: str) -> bool:
    """Return whether this node can listen on the host. A name is looked up."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
        except OSError:
            continue
    return False


def own_host_towards(host: str) -> str | None:
    """Return this node's address on the route to `host`; None if there is none.

    A name is looked up; nothing is sent.
    """
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None
