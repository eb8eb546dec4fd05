import pytest

from dieselfs.allocation.readers.observed import (
    CachedDataset,
    EffectiveBytes,
    JobProgress,
    MeasuredSpeed,
    Waits,
)


def test_the_speed_is_that_of_the_time_without_waiting() -> None:
    speed = MeasuredSpeed()
    read = waited = 0.0
    for second in range(10):
        speed.note(JobProgress(0, int(read), waited), float(second))
        read, waited = read + (60 if second % 2 else 20), waited + (0 if second % 2 else 0.7)
    assert speed.rate is not None
    assert (speed.rate.bytes_per_s, speed.rate.is_lower_bound) == (60, False)


def test_readers_that_always_wait_give_a_lower_bound() -> None:
    speed = MeasuredSpeed()
    for second in range(5):
        speed.note(JobProgress(0, 10 * second, 0.5 * second), float(second))
    assert speed.rate is not None
    assert (speed.rate.bytes_per_s, speed.rate.is_lower_bound) == (10, True)


def test_pauses_in_which_nothing_is_read_say_nothing_of_the_speed() -> None:
    speed = MeasuredSpeed()
    for second, read in enumerate((0, 50, 50, 50, 100)):
        speed.note(JobProgress(0, read, 0.0), float(second))
    assert speed.rate is not None
    assert speed.rate.bytes_per_s == 50


def test_nothing_read_has_no_speed() -> None:
    speed = MeasuredSpeed()
    speed.note(JobProgress(0, 0, 0.0), 0.0)
    speed.note(JobProgress(0, 0, 0.0), 1.0)
    assert speed.rate is None


def test_what_is_cached_in_an_epoch_is_effective_in_the_next() -> None:
    held = [0]
    effective = EffectiveBytes(lambda: held[0])
    seen = []
    for epoch, now in ((0, 0), (0, 40), (0, 80), (1, 80), (1, 100), (1, 60), (1, 100), (2, 100)):
        held[0] = now
        effective.note(epoch)
        seen.append(effective.effective_bytes)
    assert seen == [0, 0, 0, 80, 80, 60, 60, 100]


def test_what_readers_wait_while_the_budget_is_bound_is_no_wait_for_the_store() -> None:
    waits = Waits()
    for second in range(10):
        waits.note(float(second), waited_s=0.8 * second, bound_s=0.0)
    assert waits.starved == pytest.approx(0.8)
    for second in range(10, 20):
        waits.note(float(second), waited_s=0.8 * second, bound_s=float(second))
    assert waits.starved == 0.0
    for second in range(20, 30):
        waits.note(float(second), waited_s=16.0, bound_s=20.0)
    assert waits.starved == 0.0


def test_sizes_are_what_a_quota_is_charged() -> None:
    cached = CachedDataset(lambda: 0, lambda held: held * 2, lambda size: size * 3, lambda: 100)
    assert cached.charged(900, 450, 90) == (2700, 900, 180)
    assert cached.charged(900, 0, 0) == (2700, 0, 0)
    assert cached.charged(900, 910, 910) == (1820, 1820, 1820)  # all of it needs what it takes
    assert cached.charged(0, 450, 90) == (0, 450, 90)


def test_without_regions_the_sizes_are_those_of_the_content() -> None:
    assert CachedDataset().charged(900, 450, 90) == (900, 450, 90)
