"""A peer that answers every request within the silence that is borne, and takes too long for all of
them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from dieselfs.cache.ports.members import Member
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.errors import PeerFailed
from tests.simulation.pair import ANSWERS, ASKS, CHUNKS, Pair


def slow_line(pair: Pair) -> None:
    pair.network.path(ANSWERS, ASKS).bytes_per_s = 100e3


def far_away(pair: Pair) -> None:
    pair.network.path(ASKS, ANSWERS).latency_s = 0.2


def slow_host(pair: Pair) -> None:
    pair.answers.host.lag_s = 0.3


@pytest.mark.parametrize("slow", [slow_line, far_away, slow_host])
def test_who_is_slow_again_and_again_is_let_go(pair: Pair, slow: Callable[[Pair], None]) -> None:
    def scene(client: PeerClient, peer: Member) -> None:
        pair.ask(client, peer, 0)
        slow(pair)
        begun = pair.scheduler.now
        asked = 0
        with pytest.raises(PeerFailed, match="too slowly"):  # noqa: PT012  # one of them, soon
            while asked < 1000:
                asked += 1
                pair.ask(client, peer, asked)
        assert 1 < asked < 20
        assert pair.scheduler.now - begun < 2.0
        assert client.connections() == 0

    pair.play(scene)


def test_readers_that_share_a_line_that_is_fast_enough(pair: Pair) -> None:
    pair.network.path(ANSWERS, ASKS).bytes_per_s = 9e6

    def scene(client: PeerClient, peer: Member) -> None:
        def read(first: int) -> None:
            for number in range(first, first + 40):
                pair.ask(client, peer, number)

        readers = [pair.asks.start(partial(read, first), "reader") for first in range(4)]
        assert all([reader.join(60.0) for reader in readers])
        assert client.connected == 1

    pair.play(scene)


def test_a_store_that_is_slow_is_not_the_peers_fault(pair: Pair) -> None:
    cached = pair.cached
    cached.payloads.clear()
    cached.fetch = lambda block: (pair.answers.sleep(0.25), cached.keep(block))[1]

    def scene(client: PeerClient, peer: Member) -> None:
        for number in range(len(CHUNKS)):
            pair.ask(client, peer, number)
        assert len(cached.loaded) == len(CHUNKS)
        assert client.connected == 1

    pair.play(scene)
