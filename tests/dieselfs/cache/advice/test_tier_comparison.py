"""The comparison of SSD tiers by a trace, and its recommendation."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore.ssd.policy_events import Observed
from dieselfs.cache.advice.merged_traces import merged
from dieselfs.cache.advice.replay import Replayed
from dieselfs.cache.advice.request_trace import RequestTrace
from dieselfs.cache.advice.tier_comparison import (
    Comparison,
    Question,
    TierOutcome,
    compare,
    requests_of,
)
from dieselfs.cache.advice.trace_file import TraceEncoder, head, read_trace
from dieselfs.cli.rendering.advice_table import recommendation
from dieselfs.errors import UsageError
from tests.dieselfs.cache.advice.made_events import request, specification
from tests.dieselfs.cache.advice.made_traces import made


def epochs(count: int = 4, chunks: int = 64) -> RequestTrace:
    order = random.Random(1)
    keys = [key for _ in range(count) for key in order.sample(range(chunks), chunks)]
    return made(keys, [1000] * len(keys))


def test_sizes_policies_and_regions() -> None:
    trace = epochs()
    question = Question((32_000, 64_000), ("lru", "historic"), (0, 4000))
    advanced: list[int] = []
    found = compare(trace, question, advanced.append)
    assert sum(advanced) == requests_of(trace, question) == 256 * 2 * (1 + 4)
    assert found.working_set_bytes == 64_000
    assert [(each.cache_bytes, each.region_bytes, each.policy) for each in found.outcomes] == [
        (size, region, policy)
        for size in (32_000, 64_000)
        for region in (0, 4000)
        for policy in ("lru", "historic")
    ]
    assert found.optimum_shares[64_000] == 0.75
    for each in found.outcomes:
        assert each.absorbed_share <= found.optimum_shares[each.cache_bytes]
        assert each.store_bytes == round(256_000 * (1 - each.absorbed_share))
    whole = next(each for each in found.outcomes if each.cache_bytes == 64_000)
    assert (whole.policy, whole.absorbed_share) == ("lru", 0.75)


def test_what_is_tried_by_default() -> None:
    found = compare(epochs(2), Question())
    assert sorted(found.optimum_shares) == [8000, 16_000, 32_000, 48_000, 64_000]
    names = {each.policy for each in found.outcomes}
    assert {"lru", "fifo", "future"} <= names
    assert not names & {"all", "dynamic"}
    found = compare(epochs(2), Question((64_000,), write_budget=1e6))
    assert "dynamic" in {each.policy for each in found.outcomes}


def outcome(cache_bytes: int, policy: str, absorbed: int) -> TierOutcome:
    return TierOutcome(policy, cache_bytes << 30, 0, Replayed(100, absorbed, 0, 0, 0))


def test_the_knee() -> None:
    outcomes = [
        *(outcome(200, "lru", 5), outcome(200, "next-use", 44)),
        *(outcome(400, "lru", 15), outcome(400, "next-use", 83)),
        *(outcome(800, "lru", 87), outcome(800, "next-use", 87)),
    ]
    optima = {size << 30: share for size, share in ((200, 0.5), (400, 0.85), (800, 0.9))}
    found = Comparison(0, outcomes, optima)
    assert [each.policy for each in found.best] == ["next-use", "next-use", "lru"]
    assert recommendation(found) == (
        "400 GiB with next-use absorb 83%; 800 GiB add 4%; lru absorbs 15% there; "
        "the optimum is 85%"
    )
    alone = Comparison(0, outcomes[:2], optima)
    assert recommendation(alone).startswith("200 GiB with next-use absorb 44%; lru absorbs 5%")
    nothing = Comparison(0, [outcome(200, "lru", 0)], optima)
    assert nothing.recommended is None
    assert "too few are repeated" in recommendation(nothing)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Question((0,)), "an SSD of 0 bytes"),
        (Question(policies=("clever",)), "no cache policy 'clever'"),
        (Question(policies=("dynamic",)), "needs a write budget"),
        (Question(policies=("future",), write_budget=float("nan")), "budget"),
        (Question((4000,), region_bytes=(3000,)), "regions of 3000 bytes on an SSD of 4000"),
    ],
)
def test_questions_that_make_no_sense(question: Question, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        compare(epochs(2), question)


def test_traces_without_an_answer() -> None:
    with pytest.raises(UsageError, match="no requests"):
        compare(made([]), Question())
    with pytest.raises(UsageError, match="no chunk was read twice among 3 requests"):
        compare(made([1, 2, 3]), Question())


def test_a_recorded_order_makes_next_use_as_good_as_before(tmp_path: Path) -> None:
    """The replay of what a recorder has written is the replay of what it saw."""
    order, events = random.Random(2), list[tuple[float, Observed]]()
    for epoch in range(6):
        keys = [key * 0x9E3779B97F4A7C15 & (1 << 64) - 1 for key in order.sample(range(64), 64)]
        for at, key in enumerate(keys):
            now = 64.0 * epoch + at
            if at % 2 == 0:
                low = [key & 0xFFFFFFFF for key in keys]
                told = specification("job", low, at, f"epoch {epoch}")
                events.append((now, replace(told, finished=frozenset())))
            events.append((now, request(key, length=1000)))
    path = tmp_path / "trace"
    path.write_bytes(head(0) + TraceEncoder().encode(events))
    found = compare(merged([read_trace(path)]), Question((32_000,), ("lru", "next-use"), (0,)))
    lru, next_use = (each.absorbed_share for each in found.outcomes)
    assert next_use > 1.5 * lru
    assert next_use > 0.5 * found.optimum_shares[32_000]
