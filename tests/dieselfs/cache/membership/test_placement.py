from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.chunk_id import ChunkId
from dieselfs.cache.membership import placement
from dieselfs.cache.membership.placement import Placement, reachable
from dieselfs.cache.ports.members import Member, View
from dieselfs.cache.ports.runtime import PeerAddress

GOLDEN = Path(__file__).parents[3] / "golden" / "placement.json"
CHUNKS = 20_000


def member(id: str, weight: int = 100) -> Member:
    return Member(id, PeerAddress("10.0.0.1", 7000), weight)


def members(count: int, weight: int = 100) -> list[Member]:
    return [member(f"node-{number}", weight) for number in range(count)]


def ids(count: int, seed: int = 1) -> npt.NDArray[np.uint8]:
    """As a writer makes them: they differ in the counter at their end."""
    found = np.zeros((count, 16), np.uint8)
    found[:, :13] = np.random.default_rng(seed).integers(0, 256, 13, np.uint8)
    found[:, 13:] = np.arange(count, dtype=">u4").view(np.uint8).reshape(count, 4)[:, 1:]
    return found


def owners(of: Sequence[Member], chunks: npt.NDArray[np.uint8]) -> list[str]:
    found = Placement(of)
    return [found.members[place].id for place in found.owners(chunks)]


def test_golden_rankings() -> None:
    """Nodes of two releases must agree: if this fails, the protocol needs a new version."""
    golden = json.loads(GOLDEN.read_text())
    found = Placement([member(id, weight) for id, weight in golden["members"]])
    for chunk, ranking in golden["chunks"].items():
        ranked = found.ranked(ChunkId(bytes.fromhex(chunk)))
        assert [member.id for member in ranked] == ranking
    assert {len(set(ranking)) for ranking in golden["chunks"].values()} == {4}


def test_the_logarithm_is_one() -> None:
    uniform = np.concatenate(
        [np.random.default_rng(1).random(10_000), 1 - 2.0 ** -np.arange(1, 54)]
    )
    uniform = np.concatenate([uniform, 2.0 ** -np.arange(1.0, 54.0)])
    ours = placement._ln(uniform)
    assert np.allclose(ours, [math.log(value) for value in uniform], rtol=1e-14, atol=0)
    assert (ours < 0).all()


def test_all_chunks_of_a_snapshot_at_once_as_one_by_one() -> None:
    found = Placement([*members(5), member("reader", 0), member("small", 7)])
    chunks = ids(placement._AT_ONCE + 300)
    places = found.owners(chunks)
    for row in range(0, len(chunks), 41):
        assert found.owner(ChunkId(chunks[row].tobytes())) == found.members[places[row]]


@given(st.permutations(range(6)), st.integers(0, 1 << 32))
def test_the_order_of_members_does_not_matter(order: list[int], seed: int) -> None:
    some, chunks = members(6), ids(64, seed)
    assert owners([some[at] for at in order], chunks) == owners(some, chunks)


@pytest.mark.parametrize(
    "weights", [[1, 1], [64 << 10] * 8, [1, 2, 3, 4], [1000, 1, 500], [7] * 40]
)
def test_shares_are_as_the_weights(weights: list[int]) -> None:
    of = [member(f"node-{number}", weight) for number, weight in enumerate(weights)]
    found = Placement(of)
    counts = np.bincount(found.owners(ids(CHUNKS)), minlength=len(of))
    for holder, count in zip(found.members, counts, strict=True):
        share = holder.weight / sum(weights)
        deviation = math.sqrt(CHUNKS * share * (1 - share))
        assert abs(count - CHUNKS * share) < 5 * deviation + 1


def test_who_goes_leaves_its_chunks_to_their_seconds_and_no_other_moves() -> None:
    some, chunks = [*members(4), member("large", 250)], ids(3000)
    whole = Placement(some)
    for gone in some:
        rest = owners([other for other in some if other is not gone], chunks)
        for row, owner in enumerate(rest):
            first, second, *_ = whole.ranked(ChunkId(chunks[row].tobytes()))
            assert owner == (second if first is gone else first).id


def test_who_comes_takes_only_what_becomes_its_own() -> None:
    some, chunks = members(4), ids(CHUNKS)
    before, after = owners(some, chunks), owners([*some, member("new")], chunks)
    moved = [now for was, now in zip(before, after, strict=True) if was != now]
    assert set(moved) == {"new"}
    assert after.count("new") == len(moved)


def test_a_weight_that_grows_takes_and_never_gives() -> None:
    some, chunks = members(4), ids(CHUNKS)
    before = owners(some, chunks)
    after = owners([member("node-0", 150), *some[1:]], chunks)
    assert {now for was, now in zip(before, after, strict=True) if was != now} == {"node-0"}


def test_nobody_without_a_share_owns() -> None:
    chunk = ChunkId(bytes(16))
    assert Placement([]).owner(chunk) is None
    assert list(Placement([member("reader", 0)]).owners(ids(3))) == [-1, -1, -1]
    found = Placement([member("a", 0), member("b"), member("c", 0)])
    assert found.ranked(chunk) == (member("b"),)
    assert list(found.owners(ids(3))) == [1, 1, 1]


def test_of_equal_draws_the_first_id_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_key", lambda id: 1)
    found = Placement([member("b"), member("c"), member("a")])
    assert [one.id for one in found.ranked(ChunkId(bytes(16)))] == ["a", "b", "c"]
    assert list(found.owners(ids(2))) == [0, 0]


def test_rankings_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_KEPT", 30)
    found = Placement(members(3))
    chunks = [ChunkId(row.tobytes()) for row in ids(25)]
    first = [found.ranked(chunk) for chunk in chunks]
    assert found.ranked(chunks[-1]) is first[-1]
    assert len(found._ranked) <= 10
    assert [found.ranked(chunk) for chunk in chunks] == first


def test_reachable_are_those_that_answer_and_this_node() -> None:
    me, up, silent, new = members(4)
    view = View(me, (me, up, silent, new), {up.id: 5.0, silent.id: 4.0}, frozenset({silent.id}))
    assert reachable(view) == (me, up)
    assert Placement.of(view).members == (me, up)
