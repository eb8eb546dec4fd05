"""The lasting rule gives cache for hits that will come, and moves it only where that pays."""

from __future__ import annotations

from dieselfs.allocation.jobs import JobState, Resources
from dieselfs.allocation.policies.greedy import GreedyCache
from dieselfs.allocation.policies.lasting import LastingCache
from tests.dieselfs.allocation.made_jobs import GB, job, running, waiting


def quotas(*states: JobState, cache_gb: int = 100) -> dict[str, int]:
    total = Resources(8, cache_gb * GB, 1e9)
    begun = [state for state in states if state.is_running]
    others = [state for state in states if not state.is_running]
    found = LastingCache().quotas(begun, others, total)
    return {name: quota // GB for name, quota in found.items()}


def test_a_job_that_never_reads_twice_gets_what_is_left() -> None:
    once, often = job("once", 100, 200, passes=1), job("often", 100, 50, passes=10)
    states = [running(once), running(often)]
    assert quotas(*states) == {"once": 0, "often": 100}
    assert quotas(*states, cache_gb=150) == {"once": 50, "often": 100}
    printed = GreedyCache().quotas(states, (), Resources(8, 100 * GB, 1e9))
    assert printed == {"once": 100 * GB, "often": 0}


def test_effective_cache_stays_if_the_newcomer_gains_too_little() -> None:
    old = running(job("old", 100, 100), left_passes=5, effective_gb=100)
    # 1.2 · 5 - 5 hits more while both run: B's first read of the byte is a miss, so nothing is won.
    assert quotas(old, running(job("new", 100, 119, passes=20))) == {"old": 100, "new": 0}
    assert quotas(old, running(job("new", 100, 121, passes=20))) == {"old": 0, "new": 100}
    # The newcomer ends first, after 2 passes of the old job, which must read all again then.
    assert quotas(old, running(job("new", 100, 190, passes=3.8))) == {"old": 100, "new": 0}
    assert quotas(old, running(job("new", 100, 210, passes=4.2))) == {"old": 0, "new": 100}


def test_what_is_not_effective_in_a_last_epoch_gives_no_hits_to_lose() -> None:
    last, new = job("last", 100, 30, passes=1), running(job("new", 100, 100, passes=3))
    # 1.33 reads of the new job while both run, against 0.4 hits that are lost, or none.
    effective = running(last, left_passes=0.4, effective_gb=60)
    assert quotas(effective, new) == {"last": 60, "new": 40}
    read_already = running(last, left_passes=0.4, held_gb=60)
    assert quotas(read_already, new) == {"last": 0, "new": 100}


def test_two_jobs_that_read_a_dataset_once_each_hit_once() -> None:
    pair = [running(job(name, 100, 100, passes=1, dataset="common")) for name in "ab"]
    alone = running(job("c", 100, 150, passes=1))
    assert quotas(*pair, alone) == {"common": 100, "c": 0}


def test_what_waiting_jobs_will_read_stays_while_there_is_room() -> None:
    begun = running(job("a", 60, 100))
    following = JobState(job("b", 100, 100), 1e12, held_bytes=70 * GB)
    assert quotas(begun, following, waiting(job("c"))) == {"a": 60, "b": 40, "c": 0}


def test_less_cache_than_is_held_drops_the_least_efficient() -> None:
    fast = running(job("fast", 100, 200), effective_gb=100)
    slow = running(job("slow", 100, 100), effective_gb=100)
    assert quotas(slow, fast, cache_gb=130) == {"slow": 30, "fast": 100}


def test_draws_with_replacement_hit_within_the_first_pass() -> None:
    from dataclasses import replace

    draws = running(replace(job("draws", 100, 100, passes=1), repeats_items=True))
    assert quotas(draws, running(job("once", 100, 300, passes=1))) == {"draws": 100, "once": 0}
