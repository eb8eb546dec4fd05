"""What is decided without an SSD: which region leaves, what is admitted, whether the SSD may be
used, and what users allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.ssd.admission import AdmitAll, RejectFirst
from chunkstore.ssd.eviction import DatasetLimits, above_quota, next_region, ranking_by
from chunkstore.ssd.health import HOLD_S, MAX_HOLD_S, QUIET_S, TierHealth
from chunkstore.ssd.limits_folder import LimitsFolder, NamedLimits
from chunkstore.ssd.segment_index import FILLING, FREE, FULL, Order, Region

A, B = b"a" * 16, b"b" * 16
SIZE = 100
NONE = DatasetLimits()


def region(number: int, dataset: bytes = A, state: int = FULL, **other: float) -> Region:
    return Region(number, state, dataset=dataset, **other)  # type: ignore[arg-type]


def chosen(
    regions: list[Region],
    limits: dict[bytes, DatasetLimits] | None = None,
    dataset: bytes = A,
    order: Order = "lru",
    now: float = 1000,
    busy: set[int] | None = None,
) -> int | None:
    found = next_region(
        regions,
        dataset,
        lambda of: (limits or {}).get(of, NONE),
        SIZE,
        ranking_by(order),
        now,
        busy or set(),
    )
    return None if found is None else found.number


def test_a_free_region_comes_first() -> None:
    assert chosen([region(0), region(1, state=FREE), region(2, state=FREE)]) == 1


@pytest.mark.parametrize(("order", "wanted"), [("lru", 1), ("fifo", 0)])
def test_the_order_decides(order: Order, wanted: int) -> None:
    regions = [region(0, born=1, last_used=9), region(1, born=2, last_used=5)]
    assert chosen(regions, order=order) == wanted


def test_what_was_left_half_filled_may_leave_too() -> None:
    assert chosen([region(0, state=FILLING)]) == 0


def test_nothing_pinned_leaves_and_what_is_busy_stays() -> None:
    limits = {B: DatasetLimits(pinned=True)}
    regions = [region(0, B), region(1, last_used=5), region(2, last_used=6)]
    assert chosen(regions, limits) == 1
    assert chosen(regions, limits, busy={1}) == 2
    assert chosen(regions, limits, busy={1, 2}) is None


def test_who_is_at_its_quota_takes_of_its_own_also_while_some_are_busy() -> None:
    limits = {A: DatasetLimits(quota_bytes=2 * SIZE + 50)}
    regions = [region(0), region(1), region(2, B), region(3, state=FREE)]
    assert chosen(regions, limits) == 0
    assert chosen(regions, limits, busy={0}) == 1
    assert chosen(regions, limits, busy={0, 1}) is None
    assert chosen(regions[1:], limits) == 3
    assert chosen([region(3, state=FREE)], {A: DatasetLimits(quota_bytes=SIZE - 1)}) is None


def test_what_time_is_over_leaves_before_what_is_older() -> None:
    limits = {B: DatasetLimits(ttl_s=10)}
    regions = [region(0, last_used=1), region(1, B, last_used=989), region(2, B, last_used=991)]
    assert chosen(regions, limits) == 1
    assert chosen(regions, limits, now=990) == 0


def test_a_quota_made_smaller_names_what_must_go() -> None:
    regions = [region(n, last_used=n, state=FULL) for n in range(4)] + [region(9, B)]
    limits = {A: DatasetLimits(quota_bytes=2 * SIZE)}
    found = above_quota(regions, lambda of: limits.get(of, NONE), SIZE, ranking_by("lru"))
    assert [of.number for of in found] == [0, 1]


def test_reject_first() -> None:
    admission = RejectFirst(remembered=2)
    assert AdmitAll().admits(A, b"1")
    assert [admission.admits(A, chunk) for chunk in (b"1", b"1", b"1", b"2")] == [0, 1, 0, 0]
    assert not admission.admits(A, b"3"), "of three one is forgotten: the one missed first"
    assert not admission.admits(A, b"1")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_hold_doubles_is_bounded_and_is_forgotten() -> None:
    clock = Clock()
    health = TierHealth(clock)
    assert health.failed("first")
    assert not health.failed("again"), "it is out of service already"
    hold = HOLD_S
    for _ in range(10):
        clock.now += hold * 0.99
        assert not health.may_probe()
        clock.now += hold * 0.02
        assert health.may_probe()
        assert not health.may_probe(), "somebody is at it"
        health.failed("the probe")
        hold = min(2 * hold, MAX_HOLD_S)
    clock.now += MAX_HOLD_S
    assert health.may_probe()
    health.recovered()
    assert health.is_up
    clock.now += QUIET_S + MAX_HOLD_S + 1
    health.failed("much later")
    clock.now += HOLD_S
    assert health.may_probe()


def test_hits_slower_than_the_store_are_noticed_after_some() -> None:
    health = TierHealth(Clock())
    for _ in range(100):
        health.store_took(0.001, 4096)
        assert not health.hit_took(0.0015, 4096)
    verdicts = [health.hit_took(0.02, 4096) for _ in range(100)]
    assert not verdicts[0]
    assert verdicts[-1]
    health.recovered()
    assert not health.hit_took(0.02, 4096), "it is given another chance"


def test_a_name_is_recorded_beside_limits_that_a_user_sets_just_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, user = LimitsFolder(tmp_path), LimitsFolder(tmp_path)
    limits, write_text = NamedLimits("pets", DatasetLimits(5 << 30, pinned=True)), Path.write_text

    def beside(path: Path, text: str) -> int:
        monkeypatch.undo()
        user.write(A, limits)
        return write_text(path, text)

    monkeypatch.setattr(Path, "write_text", beside)
    tier.name(A, "pets")
    assert user.read() == {A: limits}
    assert len(list((tmp_path / "datasets").iterdir())) == 1


def test_limits_are_files_that_others_read_and_damage_is_none(tmp_path: Path) -> None:
    clock = Clock()
    mine, other = LimitsFolder(tmp_path, clock), LimitsFolder(tmp_path, clock)
    assert other.of(A) == NONE
    limits = DatasetLimits(5 << 30, 3600.0, pinned=True)
    mine.write(A, NamedLimits("pets", limits))
    assert mine.of(A) == limits
    clock.now += 2
    assert other.of(A) == limits
    mine.name(A, "another name")
    mine.name(B, "birds")
    assert mine.read() == {A: NamedLimits("pets", limits), B: NamedLimits("birds", NONE)}
    (tmp_path / "datasets" / f"{A.hex()}.json").write_text("{")
    (tmp_path / "datasets" / "nonsense.json").write_text("{}")
    assert mine.read() == {B: NamedLimits("birds", NONE)}
