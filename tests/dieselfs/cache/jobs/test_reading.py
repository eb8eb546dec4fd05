"""What a process reads now, as published: keys, positions, buckets and epochs."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import pytest

from chunkstore.ssd.policies.segment_buckets import key_of
from chunkstore.ssd.reader_tags import decided_segments
from dieselfs.cache.jobs import chunk_buckets
from dieselfs.cache.jobs.chunk_buckets import BucketMapName, ChunkBuckets
from dieselfs.cache.jobs.reading import READ_LATELY_S, ReadingView
from dieselfs.prefetch.planner import Reader
from dieselfs.prefetch.window import FollowedOrder, PlannedOrder
from tests.dieselfs.prefetch.made_snapshot import HEAD_BYTES, MadeSnapshot, chunk_id
from tests.dieselfs.prefetch.scripted_memory import MadePlan

SNAPSHOT = MadeSnapshot.even(4, 2, 1000)
INODES = [4, 5, 0, 1, 6, 7, 2, 3]
"""Chunks 2, 0, 3 and 1."""


def made_order(snapshot: MadeSnapshot = SNAPSHOT, inodes: list[int] = INODES) -> PlannedOrder:
    return PlannedOrder.of(
        (Reader(MadePlan(snapshot, inodes, [0, len(inodes) // 2, len(inodes)])),)
    )


class Readers:
    """A prefetcher and a counter of reads that a test sets."""

    def __init__(
        self, map_name: BucketMapName = "dataset", snapshot: MadeSnapshot = SNAPSHOT
    ) -> None:
        self.followed: FollowedOrder | None = None
        self.reads, self.seconds = 0, 0.0
        self.buckets = ChunkBuckets(snapshot.as_snapshot(), map_name)
        self.view = ReadingView(
            lambda: self.followed,
            lambda _: self.buckets,
            snapshot=snapshot.as_snapshot(),
            reads=lambda: self.reads,
            clock=lambda: self.seconds,
        )


def keys(chunk: int, size: int = 2000 + HEAD_BYTES) -> list[int]:
    return [key_of(at) & 0xFFFFFFFF for at in decided_segments(chunk_id(chunk).value, size)]


def test_an_order_and_the_position_in_it() -> None:
    readers = Readers()
    order = made_order()
    readers.followed = FollowedOrder(order, 0, 0, 4000.0)
    first = readers.view.look()
    assert first is not None
    assert first.order.keys.tolist() == [*keys(2), *keys(0), *keys(3), *keys(1)]
    assert (first.position, first.keys_per_s, first.epoch) == (0, 2.0, 0)
    assert first.order.buckets == ("made",)
    look = partial(FollowedOrder, order)
    for position, requested, expected in ((0, 3, 3), (1, 0, 1), (2, 0, 1), (3, 0, 2), (8, 4, 4)):
        readers.followed = look(position, requested, 0.0)
        found = readers.view.look()
        assert found is not None
        assert found.position == expected
        assert found.order is first.order
    assert readers.view.look().finished == 1  # type: ignore[union-attr]
    readers.followed = FollowedOrder(made_order(), 0, 0, 0.0)
    assert readers.view.look().epoch == 1  # type: ignore[union-attr]


def test_the_rate_is_that_of_the_order_with_all_waits() -> None:
    readers = Readers()
    order = made_order()

    def rate(order: PlannedOrder, position: int, seconds: float) -> float:
        readers.seconds = seconds
        readers.followed = FollowedOrder(order, position, 4, 4000.0)
        found = readers.view.look()
        assert found is not None
        return found.keys_per_s

    assert rate(order, 0, 100.0) == 2.0  # the prefetcher's, until it is measured
    assert rate(order, 2, 102.0) == 2.0
    assert rate(order, 4, 104.0) == 0.5
    assert rate(order, 4, 110.0) == 0.2
    assert rate(made_order(), 0, 111.0) == 0.2


def test_a_large_chunk_has_as_many_keys_as_the_tier_decides_about() -> None:
    size = 40 << 20
    snapshot = MadeSnapshot([[size], [10]])
    readers = Readers(snapshot=snapshot)
    order = PlannedOrder.of((Reader(MadePlan(snapshot, [0, 1])),))
    readers.followed = FollowedOrder(order, 0, 1, 0.0)
    found = readers.view.look()
    assert found is not None
    large = keys(0, size + HEAD_BYTES)
    assert len(large) > 2
    assert found.order.keys.tolist() == [*large, *keys(1, 10 + HEAD_BYTES)]
    assert found.position == len(large)


def test_buckets_by_directory_end_with_their_last_chunk() -> None:
    readers = Readers("directory")
    readers.followed = FollowedOrder(made_order(), 5, 0, 0.0)
    found = readers.view.look()
    assert found is not None
    assert found.order.buckets == ("made:d0", "made:d1")  # chunks 2 and 0, then 3 and 1
    assert found.finished == 1
    assert [readers.buckets.of(chunk_id(at).value) for at in range(4)] == [
        *("made:d0", "made:d1", "made:d0", "made:d1")
    ]
    assert readers.buckets.of(b"of another snapshot") == "made"


def test_buckets_by_group_are_those_of_the_order_that_is_read() -> None:
    readers = Readers("group")
    assert readers.buckets.of(chunk_id(2).value) == "made"
    readers.followed = FollowedOrder(made_order(), 4, 0, 0.0)
    found = readers.view.look()
    assert found is not None
    assert found.order.buckets == ("made#0", "made#1")
    assert found.finished == 1
    assert [readers.buckets.of(chunk_id(at).value) for at in (2, 0, 3, 1)] == [
        *("made#0", "made#0", "made#1", "made#1")
    ]


def test_too_many_directories_are_one_bucket(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(chunk_buckets, "MAX_BUCKETS", 1)
    with caplog.at_level(logging.WARNING):
        buckets = ChunkBuckets(SNAPSHOT.as_snapshot(), "directory")
    assert buckets.of(chunk_id(0).value) == "made"
    assert "more than 1 directories" in caplog.text


def test_readers_without_a_plan_read_the_dataset_until_a_minute_after_their_last_read() -> None:
    readers = Readers("directory")
    assert readers.view.look() is None
    readers.reads, readers.seconds = 1, 1000.0
    found = readers.view.look()
    assert found is not None
    assert found.order.buckets == ("made:d0", "made:d1")
    assert found.order.keys.dtype == np.uint32
    assert len(found.order.keys) == 0
    readers.seconds += READ_LATELY_S - 1
    assert readers.view.look() is not None
    readers.seconds += 1
    assert readers.view.look() is None
