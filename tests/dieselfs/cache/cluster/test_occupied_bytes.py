"""What a node tells of its SSD's occupation, of a tier that takes its time to reckon it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from chunkstore.ssd import ssd_service
from chunkstore.ssd.segment_store import Occupancy, SegmentStore
from chunkstore.ssd.tier import SsdTier
from dieselfs.cache.cluster import occupied_bytes
from dieselfs.cache.cluster.occupied_bytes import OccupiedBytes
from tests.eventually import eventually


def test_a_large_tier_is_neither_waited_for_nor_taken_for_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(occupied_bytes, "EVERY_S", 0.01)
    begun, lets = threading.Event(), threading.Event()

    def occupancy(store: SegmentStore) -> list[Occupancy]:
        begun.set()
        lets.wait(60)
        return [Occupancy(bytes(16), 2, 100, 0.0), Occupancy(bytes(16), 1, 11, 0.0)]

    monkeypatch.setattr(SegmentStore, "occupancy", occupancy)
    tier = SsdTier(
        lambda: SegmentStore(tmp_path / "ssd", tmp_path / "index", 64 << 20), tmp_path / "ssd"
    )
    # Its own thread looks for a choice of policies once a second.
    monkeypatch.setattr(tier.policies, "obey_file", lambda call: None)
    assert tier.wait_until_open(30)
    monkeypatch.setattr(ssd_service, "DEADLINE_S", 0.0)  # any other access would be late
    occupied = OccupiedBytes(tier)
    assert begun.wait(60)
    assert occupied.last_known == 0
    lets.set()
    eventually(lambda: occupied.last_known == 111, "it is reckoned")
    assert tier.statistics().failures == 0
    occupied.end(30)
    tier.close()
