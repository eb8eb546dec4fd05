"""Addresses of peers as people write them, and this machine's own."""

import pytest

from dieselfs.cache.membership.peer_addresses import (
    is_loopback,
    is_of_this_node,
    is_wildcard,
    own_host_towards,
    parse_address,
    parse_addresses,
)
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.errors import UsageError


@pytest.mark.parametrize(
    "text",
    ["node1:7400", "10.0.0.1:1", "[fd00::1]:65535", "gpu_1.rack-2.example:1", f"{'a' * 63}.b:1"],
)
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_address(text, "--peers")) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", ":1", "node1", "node 1:1", "a:b:1", "fd00::1", "node1:", "node1:-1", "[]:1"),
        *("a..b:1", "a.:1", f"{'a' * 64}:1", "_a:1", "a_:1"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--peers"):
        parse_address(text, "--peers")


@pytest.mark.parametrize("text", ["a:1,a:1", "a:1,", "a:0,b:1", ","])
def test_a_list_names_each_peer_once(text: str) -> None:
    with pytest.raises(UsageError):
        parse_addresses(text, "--peers")


def test_a_list() -> None:
    both = (PeerAddress("a", 1), PeerAddress("b", 2))
    assert parse_addresses("a:1,b:2", "") == parse_addresses("a:1+b:2", "") == both


def test_kinds_of_hosts() -> None:
    assert [is_wildcard(host) for host in ("0.0.0.0", "::", "::1", "node")] == [1, 1, 0, 0]
    assert [is_loopback(host) for host in ("127.9.9.9", "::1", "localhost", "::")] == [1, 1, 1, 0]


def test_this_machine() -> None:
    assert is_of_this_node("127.0.0.1")
    assert not is_of_this_node("192.0.2.1")  # RFC 5737: nobody's
    assert own_host_towards("127.0.0.1") == "127.0.0.1"
