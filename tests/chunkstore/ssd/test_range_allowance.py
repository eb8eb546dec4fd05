"""What may be read of the store in vain: as much as fills the SSD once, and half of what is asked
for after that."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from chunkstore.ssd.range_allowance import RangeAllowance

CHUNK, RANGE = 4000, 100


class Node:
    """Serves ranges; its SSD keeps so many chunks, the latest."""

    def __init__(self, chunks: int) -> None:
        self.read = self.sent = self.by_clients = 0
        self.chunks, self.ssd = chunks, OrderedDict[int, None]()
        self.allowance = RangeAllowance(chunks * CHUNK, lambda: self.read - self.sent)

    @property
    def from_store(self) -> int:
        return self.read + self.by_clients

    def ask(self, chunk: int) -> None:
        if chunk not in self.ssd:
            if not self.allowance.grants(RANGE, CHUNK):
                self.by_clients += RANGE
                return
            self.read += CHUNK
            self.ssd[chunk] = None
            if len(self.ssd) > self.chunks:
                self.ssd.popitem(last=False)
        self.sent += RANGE


def test_a_dataset_that_has_room_is_read_once() -> None:
    node = Node(50)
    for number in range(50 * CHUNK // RANGE):
        node.ask(number % 50)
    assert node.from_store == 50 * CHUNK


@pytest.mark.parametrize("chunks", [11, 100, 10_000])
def test_one_that_has_none_costs_twice_what_is_asked_for_at_most(chunks: int) -> None:
    node, asked = Node(10), 0
    for number in range(20_000):
        node.ask(number * 7919 % chunks)
        asked += RANGE
    assert node.from_store <= 2 * asked + 10 * CHUNK


def test_another_dataset_finds_its_way_onto_the_ssd_after_that() -> None:
    node = Node(10)
    for number in range(20_000):
        node.ask(number % 1000)
    for number in range(3 * 5 * CHUNK // RANGE):
        node.ask(5000 + number % 5)
    before = node.from_store
    for number in range(1000):
        node.ask(5000 + number % 5)
    assert node.from_store == before
