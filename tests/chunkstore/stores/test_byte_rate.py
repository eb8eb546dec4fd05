"""The limit on bytes a second, by a clock that only waiting moves."""

import threading

import pytest

from chunkstore.stores.byte_rate import ByteRate, Stopped


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.mark.parametrize("size", [1, 1000, 5000])
def test_the_rate_is_kept_whatever_the_size_of_reads(size: int) -> None:
    clock = Clock()
    rate = ByteRate(1000, clock, clock.wait)
    for _ in range(100_000 // size):
        rate.take(size)
    # The last read is paid for by whoever comes next.
    assert 100 - size / 1000 - 0.3 <= clock.now <= 100


def test_a_pause_saves_nothing_up() -> None:
    clock = Clock()
    rate = ByteRate(1000, clock, clock.wait)
    clock.now = 3600.0
    for _ in range(10):
        rate.take(1000)
    assert clock.now >= 3600 + 8.7


def test_without_a_rate_nobody_waits() -> None:
    clock = Clock()
    ByteRate(None, clock, clock.wait).take(1 << 60)
    assert clock.now == 0


def test_stopping_wakes_who_waits() -> None:
    rate, ended = ByteRate(1), threading.Event()
    rate.take(1_000_000)

    def wait() -> None:
        with pytest.raises(Stopped):
            rate.take(1)
        ended.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    rate.close()
    waiting.join(60)
    assert ended.is_set()
    with pytest.raises(Stopped):
        rate.take(1)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        ByteRate(0)
