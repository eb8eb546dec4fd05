from __future__ import annotations

import random

from chunkstore.stores.latencies import Latencies
from chunkstore.stores.read import Read


def test_not_before_enough_were_seen() -> None:
    latencies = Latencies(0.98, enough=10)
    for _ in range(9):
        latencies.observe("k", 1.0)
    assert latencies.usual_s("k") is None
    latencies.observe("k", 1.0)
    assert latencies.usual_s("k") == (1.0, 1.0)


def test_one_late_read_of_a_hundred_does_not_move_the_98th_percentile() -> None:
    draw = random.Random(1)
    latencies = Latencies(0.98, enough=64)
    for _ in range(10_000):
        latencies.observe("k", 50.0 if draw.random() < 0.01 else draw.uniform(0.9, 1.1))
        usual = latencies.usual_s("k")
        if usual is not None:
            median, quantile = usual
            assert 0.95 < median < 1.05
    assert 1.05 < quantile < 1.2


def test_what_was_long_ago_is_forgotten() -> None:
    latencies = Latencies(0.98, enough=64)
    for seconds in [1.0] * 2000 + [5.0] * 1024:
        latencies.observe("k", seconds)
    assert latencies.usual_s("k") == (5.0, 5.0)


def test_kinds_are_apart_and_bounded() -> None:
    latencies = Latencies(0.98, enough=1)
    latencies.observe("a", 1.0)
    latencies.observe("b", 2.0)
    assert (latencies.usual_s("a"), latencies.usual_s("b")) == ((1.0, 1.0), (2.0, 2.0))
    for number in range(1000):
        latencies.observe(number, 1.0)
    assert latencies.usual_s("a") is None
    assert len(latencies._kinds) <= 64


def test_reads_of_a_kind_are_of_similar_size() -> None:
    chunk, other = Read("datasets/d/chunks/1"), Read("datasets/d/chunks/2")
    commit = Read("datasets/d/commits/2")
    assert chunk.kind == other.kind != commit.kind
    assert Read("a", 5, 4000).kind == Read("b", 0, 2048).kind != Read("b", 0, 4096).kind
    assert Read("a", 5, 4000).kind != Read("a").kind
