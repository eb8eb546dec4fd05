"""The budget of storing ahead follows the free memory, and consumed chunks leave node memory."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from chunkstore.chunk_id import ChunkId
from dieselfs.fuse import storing_ahead
from dieselfs.fuse.storing_ahead import INTERVAL_S, SHARE_OF_FREE_MEMORY, StoringAhead

FREE = 1 << 30


class FastPath:
    def __init__(self) -> None:
        self.budgets: list[int] = []
        self.just_consumed: list[ChunkId] = []

    def set_budget(self, stored_bytes: int) -> None:
        self.budgets.append(stored_bytes)

    def consumed(self) -> list[ChunkId]:
        taken, self.just_consumed = self.just_consumed, []
        return taken


class Source:
    def __init__(self) -> None:
        self.discarded: list[ChunkId] = []

    def discard(self, chunk: ChunkId) -> None:
        self.discarded.append(chunk)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is free; the last counts."""
    amounts = [FREE]
    monkeypatch.setattr(storing_ahead, "free_memory_bytes", lambda: amounts[-1])
    return amounts


@pytest.mark.parametrize(
    ("limit_bytes", "budget_bytes"),
    [
        (None, FREE // SHARE_OF_FREE_MEMORY),
        (0, 0),
        (1000, 1000),
        (FREE, FREE // SHARE_OF_FREE_MEMORY),
    ],
)
def test_the_budget_is_a_share_of_what_is_free_and_no_more_than_the_limit(
    free: list[int], limit_bytes: int | None, budget_bytes: int
) -> None:
    storing = StoringAhead(FastPath(), Source(), limit_bytes)  # type: ignore[arg-type]
    assert storing.budget_bytes() == budget_bytes


async def test_it_goes_on_for_as_long_as_the_mount_lives(
    free: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    fast_path, source = FastPath(), Source()
    first, second = ChunkId(bytes(16)), ChunkId(b"x" * 16)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(StoringAhead(fast_path, source, None).run)  # type: ignore[arg-type]
        fast_path.just_consumed = [first]
        await trio.sleep(INTERVAL_S / 2)
        assert source.discarded == [first]
        free.append(400)
        fast_path.just_consumed = [second]
        await trio.sleep(INTERVAL_S)
        assert source.discarded == [first, second]
        assert fast_path.budgets == [FREE // SHARE_OF_FREE_MEMORY, 400 // SHARE_OF_FREE_MEMORY]
        nursery.cancel_scope.cancel()
