import pytest

from dieselfs.allocation.allocator.present_jobs import PresentJob, present_jobs
from dieselfs.allocation.allocator.remote_io import LENT_AFTER_S, LentOut
from tests.dieselfs.allocation.made_leases import lease

ALLOWED = {"a": 50e6, "b": 50e6}


def jobs(used_by_a: float, used_by_b: float, bound: float = 0.0) -> list[PresentJob]:
    return present_jobs(
        [],
        [
            lease("a", used_bytes_per_s=used_by_a, bound=bound, speed_bytes_per_s=100e6),
            lease("b", used_bytes_per_s=used_by_b, speed_bytes_per_s=100e6),
        ],
    )


def test_what_nobody_needs_is_divided_too() -> None:
    found = LentOut().divided(jobs(10e6, 10e6), {"a": 30e6, "b": 50e6}, 500e6, {}, 0.0)
    assert sum(found.values()) == pytest.approx(500e6)
    assert found["a"] >= 100e6
    assert found["b"] >= 100e6


def test_what_a_job_does_not_use_is_lent_out_after_a_while_and_comes_back_at_once() -> None:
    lent = LentOut()

    def divided(used: float, now: float, bound: float = 0.0) -> dict[str, float]:
        return lent.divided(jobs(used, 50e6, bound), ALLOWED, 100e6, ALLOWED, now)

    assert divided(1e6, 0.0) == ALLOWED
    assert divided(1e6, LENT_AFTER_S - 1) == ALLOWED
    found = divided(1e6, LENT_AFTER_S)
    assert found["a"] == pytest.approx(1.25e6, rel=0.01)
    assert sum(found.values()) == pytest.approx(100e6)
    assert divided(1e6, LENT_AFTER_S + 1, bound=0.5) == ALLOWED


def test_a_job_that_uses_nothing_keeps_enough_to_begin() -> None:
    lent = LentOut()
    lent.divided(jobs(0, 50e6), ALLOWED, 100e6, ALLOWED, 0.0)
    assert lent.divided(jobs(0, 50e6), ALLOWED, 100e6, ALLOWED, 60.0)["a"] == 1 << 20
