"""What a reader goes by when its directory was away, or has lost what it had."""

from __future__ import annotations

from dataclasses import replace

from dieselfs.allocation.directory.decisions import CacheDecision, Decisions, IoDecision
from dieselfs.allocation.directory.port import SETTLED_S, Renewal
from dieselfs.allocation.readers.kept_decisions import KeptDecisions
from tests.dieselfs.allocation.made_leases import lease

ONE, TWO = lease("resnet"), lease("resnet")
IO = IoDecision(job="resnet", bytes_per_s=5e6, origin="hand")
LESS = IoDecision(job="resnet", bytes_per_s=2e6, origin="hand")
FIRST = Renewal(IO, [ONE, TWO], 7, True, life=1, since=1, awake_s=0.0)


def cache(dataset: str, size_bytes: int) -> CacheDecision:
    return CacheDecision(
        dataset=dataset, dataset_id=dataset[0] * 32, size_bytes=size_bytes, origin="allocator"
    )


def sizes(decisions: Decisions) -> dict[str, int]:
    return {each.dataset: each.size_bytes for each in decisions.caches_in_force.values()}


def test_what_a_directory_says_counts_at_once() -> None:
    kept = KeptDecisions()
    assert kept.beat(FIRST) == FIRST
    assert kept.beat(replace(FIRST, io=LESS)).io == LESS
    assert kept.beat(replace(FIRST, io=None)).io is None


def test_a_directory_that_is_back_counts_when_all_readers_are() -> None:
    kept = KeptDecisions()
    kept.beat(FIRST)
    back = replace(FIRST, io=LESS, peers=[ONE], since=2, awake_s=0.5)
    assert kept.beat(back) == kept.beat(replace(back, awake_s=SETTLED_S - 0.1)) == FIRST
    settled = replace(back, awake_s=SETTLED_S)
    assert kept.beat(settled) == settled


def test_a_reader_without_a_decision_obeys_at_once() -> None:
    kept = KeptDecisions()
    kept.beat(replace(FIRST, io=None))
    assert kept.beat(replace(FIRST, since=2, awake_s=0.0)).io == IO


def test_a_decision_that_was_lost_holds_until_another_one_is_made() -> None:
    kept = KeptDecisions()
    kept.beat(FIRST)
    lost = replace(FIRST, io=None, cache_version=0, has_any=False, life=2, since=2, awake_s=9.0)
    assert kept.beat(lost) == replace(lost, io=IO)
    assert kept.beat(replace(lost, life=3, since=3)).io == IO
    assert kept.beat(replace(lost, life=3, since=3, io=LESS)).io == LESS
    assert kept.beat(replace(lost, life=3, since=3)).io is None


def test_quotas_that_were_lost_hold_until_others_are_made() -> None:
    kept = KeptDecisions()
    before = Decisions(caches=[cache("a", 1), cache("b", 2)], version=5, life=1)
    assert kept.decisions(before) == before
    assert sizes(kept.decisions(Decisions(life=2))) == {"a": 1, "b": 2}
    found = Decisions(caches=[cache("a", 9)], version=6, life=2)
    assert sizes(kept.decisions(found)) == {"a": 9, "b": 2}
    assert kept.decisions(found).version == 6
    assert sizes(kept.decisions(Decisions(life=3))) == {"a": 9, "b": 2}
    found = Decisions(caches=[cache("b", 3)], version=7, life=3)
    assert sizes(kept.decisions(found)) == {"a": 9, "b": 3}
    assert sizes(kept.decisions(Decisions(version=8, life=3))) == {"a": 9}
