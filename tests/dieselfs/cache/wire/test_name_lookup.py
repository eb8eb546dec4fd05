"""Names of hosts, with a resolver that hangs."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire.name_lookup import addresses_of
from dieselfs.cache.wire.os_runtime import OperatingSystem
from tests.eventually import PATIENCE_S, eventually

SOON_S = PATIENCE_S


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the resolver was asked for; it answers at the end."""
    asked: list[str] = []
    end = threading.Event()
    real = socket.getaddrinfo

    def look_up(host: str, *rest: object, **more: object) -> object:
        if host != "hangs.example":
            return real(host, *rest, **more)  # type: ignore[arg-type]
        asked.append(host)
        end.wait(SOON_S)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield asked
    end.set()  # the next test's look-ups must not join these
    eventually(lambda: all(thread.name != "name-lookup" for thread in threading.enumerate()))


def test_an_address_is_not_looked_up() -> None:
    assert addresses_of("10.1.2.3", 0.0) == ("10.1.2.3",)
    assert addresses_of("::1", 0.0) == ("::1",)


def test_a_name() -> None:
    assert "127.0.0.1" in addresses_of("localhost", SOON_S)


def test_what_is_not_found_is_an_error_of_the_system() -> None:
    for host in ("a..b", "x" * 70):  # `getaddrinfo` raises UnicodeError
        with pytest.raises(OSError, match="not a host name"):
            addresses_of(host, SOON_S)


def test_who_connects_does_not_wait_for_a_resolver_that_hangs(hanging: list[str]) -> None:
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(OSError, match="no answer within"):
            OperatingSystem().connect(PeerAddress("hangs.example", 1), 0.1)
        assert time.monotonic() - began < SOON_S / 4
    eventually(lambda: hanging, "the thread has begun")
    assert len(hanging) == 1, "one thread, however many ask"


def test_a_forked_child_looks_up_by_itself(hanging: list[str]) -> None:
    with pytest.raises(TimeoutError):
        addresses_of("hangs.example", 0.01)
    eventually(lambda: len(hanging) == 1)
    child = os.fork()
    if not child:
        status = 1
        try:
            addresses_of("localhost", SOON_S)
            with pytest.raises(TimeoutError):
                addresses_of("hangs.example", 0.01)
            eventually(lambda: len(hanging) == 2)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
