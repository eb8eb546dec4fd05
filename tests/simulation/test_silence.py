"""How long a client bears a peer that falls silent, works, or drips, to the second."""

from __future__ import annotations

import pytest

from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire.frame_stream import FRAME_S
from dieselfs.cache.wire.frames import encode_answer
from dieselfs.cache.wire.messages import Data, ReadFile, Working
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_connection import HANDSHAKE_S, PATIENCE_S, SILENCE_S
from dieselfs.errors import PeerFailed
from tests.dieselfs.cache.peers.plain_chunks import chunk, content
from tests.dieselfs.cache.peers.scripted_peer import Conversation
from tests.simulation.pair import ANSWERS, Pair

CHUNK, ABSENT = chunk(1), chunk(100)
READ = ReadFile(CHUNK, 0, 4096, True)
EXPECTED = Data(memoryview(content(CHUNK))[:4096])
SLACK_S = 0.3
"""More than the network and the preempted threads take."""


def answers_all(peer: Conversation) -> None:
    while True:
        number, _ = peer.receive()
        peer.answer(number, EXPECTED)


def ask_by_threads(pair: Pair, client: PeerClient, peer: Member, count: int) -> list[float]:
    """Ask by so many threads at once; the seconds that each waited for its failure."""
    waited = list[float]()

    def ask() -> None:
        begun = pair.asks.now()
        with pytest.raises(PeerFailed):
            client.ask(peer, READ)
        waited.append(pair.asks.now() - begun)

    threads = [pair.asks.start(ask, f"asks {number}") for number in range(count)]
    assert all([thread.join(2 * PATIENCE_S) for thread in threads])
    return waited


def test_silence_ends_the_connection_once_for_all_that_wait(pair: Pair) -> None:
    def falls_silent(peer: Conversation) -> None:
        for _ in range(5):
            peer.receive()  # of the fifth nothing comes: until the client ends it

    def scene(client: PeerClient, peer: Member) -> None:
        waited = ask_by_threads(pair, client, peer, 4)
        assert SILENCE_S <= min(waited) <= max(waited) < SILENCE_S + SLACK_S
        assert client.connections() == 0
        assert client.ask(peer, READ) == EXPECTED
        assert client.connected == 2

    pair.follow([falls_silent, answers_all], scene)


def test_signs_of_work_are_waited_for(pair: Pair) -> None:
    def works(peer: Conversation) -> None:
        number, _ = peer.receive()
        for _ in range(7):
            pair.answers.sleep(SILENCE_S / 2)
            peer.answer(number, Working())
        peer.answer(number, EXPECTED)
        peer.receive()

    def scene(client: PeerClient, peer: Member) -> None:
        assert client.ask(peer, READ) == EXPECTED

    pair.follow([works], scene)


def test_a_slow_fetch_is_said_to_be_worked_at(pair: Pair) -> None:
    def fetch(block: CacheBlock) -> None:
        pair.answers.sleep(3 * SILENCE_S)
        pair.cached.keep(block)

    pair.cached.fetch = fetch

    def scene(client: PeerClient, peer: Member) -> None:
        answer = client.ask(peer, ReadFile(ABSENT, 0, 10, True))
        assert answer == Data(memoryview(content(ABSENT))[:10])
        assert client.connected == 1

    pair.play(scene)


def test_work_without_end_is_given_up_alone(pair: Pair) -> None:
    may_answer = list[bool]()

    def works(peer: Conversation) -> None:
        number, _ = peer.receive()
        while not may_answer:
            pair.answers.sleep(SILENCE_S / 2)
            peer.answer(number, Working())
        peer.answer(number, EXPECTED)
        answers_all(peer)

    def scene(client: PeerClient, peer: Member) -> None:
        # Of the three one reads, two sleep; each gives up.
        waited = ask_by_threads(pair, client, peer, 3)
        assert PATIENCE_S <= min(waited) <= max(waited) < PATIENCE_S + SILENCE_S
        may_answer.append(True)
        assert client.ask(peer, READ) == EXPECTED
        assert client.connected == 1

    pair.follow([works], scene)


@pytest.mark.parametrize("what", ["frame", "bulk"])
def test_bytes_that_drip_are_not_waited_for(pair: Pair, what: str) -> None:
    def drips(peer: Conversation) -> None:
        number, _ = peer.receive()
        frame = encode_answer(number, EXPECTED, 4096)
        at_once, dripped = (b"", frame) if what == "frame" else (frame, bytes(4096))
        peer.send(at_once)
        for byte in dripped:
            peer.send(bytes((byte,)))
            pair.answers.sleep(0.1)

    def scene(client: PeerClient, peer: Member) -> None:
        begun = pair.asks.now()
        with pytest.raises(PeerFailed):
            client.ask(peer, READ)
        assert pair.asks.now() - begun < FRAME_S + SLACK_S
        assert client.ask(peer, READ) == EXPECTED

    pair.follow([drips, answers_all], scene)


def test_a_host_that_says_nothing_costs_all_threads_together_one_time_out(pair: Pair) -> None:
    def scene(client: PeerClient, peer: Member) -> None:
        silent = pair.answers.listen(PeerAddress(ANSWERS, 2))
        waited = ask_by_threads(pair, client, Member("peer", silent.address, 1), 12)
        assert SLACK_S < max(waited) < HANDSHAKE_S + SLACK_S
        silent.close()

    pair.play(scene)
