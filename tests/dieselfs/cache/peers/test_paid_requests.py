"""A reader pays from its budget for what a cache node fetches for it, and for nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.stores.byte_budget import ByteBudget
from dieselfs.cache.peers.paid_requests import PaidRequests
from dieselfs.cache.ports.members import Member
from dieselfs.cache.wire.messages import Answer, Data, Failed, NotCached, ReadChunk, Request
from dieselfs.errors import PeerFailed
from tests.chunkstore.stores.budget_clocks import WaitingClock
from tests.dieselfs.cache.peers.scripted_peers import member

NODE = member("node")
SIZE = 1000
CHUNK = ChunkRef(ChunkId(bytes(16)), 64, SIZE - 64)


@dataclass
class ScriptedNode:
    """Takes the place of `PeerClient`: one node, which fetches what it may and does not cache."""

    version_spoken: int = 3
    cached: bool = False
    keeps: bool = True
    fails: bool = False
    head_bytes: int = 0
    """The bytes that it fetches in order to see that it does not cache a chunk."""
    asked: list[bool] = field(default_factory=list)
    """Whether each request might fetch."""

    def version(self, peer: Member) -> int:
        return self.version_spoken if self.asked else 0

    def ask(self, peer: Member, request: Request) -> Answer:
        assert isinstance(request, ReadChunk)
        self.asked.append(request.may_fetch)
        if self.fails:
            raise PeerFailed("it is gone")
        told = SIZE if self.version_spoken >= 3 else 0
        if self.cached:
            return Data(memoryview(bytes(SIZE)))
        if not request.may_fetch:
            return NotCached(self.head_bytes)
        if not self.keeps:
            return NotCached(told)
        self.cached = True
        return Data(memoryview(bytes(SIZE)), told)


class Reader:
    """A reader of one node, with a budget of 100 bytes a second."""

    def __init__(self, node: ScriptedNode, rate: float | None = 100.0) -> None:
        self.node, self.clock = node, WaitingClock()
        self.budget = ByteBudget(rate, clock=self.clock, wait=self.clock.wait)
        self.paid = PaidRequests(node, lambda: self.budget)  # type: ignore[arg-type]

    def ask(self) -> Answer:
        self.node.asked.clear()
        return self.paid.ask(NODE, lambda may_fetch: ReadChunk(CHUNK, may_fetch), SIZE)

    @property
    def used_bytes(self) -> int:
        return self.budget.statistics().used_bytes


def test_a_fetch_is_paid_for_and_what_is_cached_is_free() -> None:
    reader = Reader(ScriptedNode())
    assert isinstance(reader.ask(), Data)
    assert (reader.used_bytes, reader.node.asked) == (SIZE, [True])
    for _ in range(10):  # though the budget is in debt by 10 s
        assert isinstance(reader.ask(), Data)
        assert reader.node.asked == [False]
    assert (reader.used_bytes, reader.clock.now) == (SIZE, 0.0)


def test_a_reader_in_debt_waits_before_the_node_may_fetch() -> None:
    reader = Reader(ScriptedNode())
    reader.ask()
    for fetched in range(2, 5):
        reader.node.cached = False
        assert isinstance(reader.ask(), Data)
        assert (reader.used_bytes, reader.node.asked) == (fetched * SIZE, [False, True])
        assert reader.clock.now == pytest.approx((fetched - 1) * SIZE / 100, abs=0.3)


def test_what_a_node_fetches_for_an_answer_without_content_is_paid_for() -> None:
    reader = Reader(ScriptedNode())
    reader.ask()
    reader.node.cached, reader.node.head_bytes = False, 64
    assert isinstance(reader.ask(), Data)
    assert reader.used_bytes == 2 * SIZE + 64


def test_a_hit_while_the_budget_is_open_gives_back_what_was_taken() -> None:
    reader = Reader(ScriptedNode(cached=True))
    for _ in range(3):
        reader.ask()
        assert (reader.used_bytes, reader.node.asked) == (0, [True])


def test_without_a_limit_no_request_is_added_and_what_was_fetched_is_counted() -> None:
    reader = Reader(ScriptedNode(), rate=None)
    for fetched in range(1, 4):
        reader.node.cached = False
        reader.ask()
        assert (reader.used_bytes, reader.node.asked) == (fetched * SIZE, [True])


def test_what_a_node_has_fetched_and_cannot_keep_is_paid_for_too() -> None:
    reader = Reader(ScriptedNode(keeps=False))
    assert reader.ask() == NotCached(SIZE)
    assert reader.used_bytes == SIZE


def test_a_node_of_an_earlier_version_fetches_free_and_is_not_waited_for() -> None:
    reader = Reader(ScriptedNode(version_spoken=2))
    reader.ask()
    assert reader.used_bytes == 0
    reader.budget.charge(100 * SIZE)
    for _ in range(3):
        reader.node.cached = False
        assert isinstance(reader.ask(), Data)
    assert reader.clock.now == 0.0


def test_a_failed_answer_costs_nothing_and_one_that_never_comes_does() -> None:
    reader = Reader(ScriptedNode())
    reader.paid.paid(Failed("the store does not answer"))
    assert reader.used_bytes == 0
    reader.node.fails = True
    with pytest.raises(PeerFailed):
        reader.ask()
    assert reader.used_bytes == SIZE  # the node may have fetched it


def test_many_files_may_be_fetched_before_they_are_paid_for_if_they_are_few() -> None:
    reader = Reader(ScriptedNode(cached=True))
    reader.ask()
    assert reader.paid.passes(NODE, 25)
    assert not reader.paid.passes(NODE, 26)
    reader.budget.charge(SIZE)
    assert not reader.paid.passes(NODE, 1)
    assert PaidRequests(reader.node, None).passes(NODE, 1 << 40)  # type: ignore[arg-type]
