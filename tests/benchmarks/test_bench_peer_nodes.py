"""Readers on several nodes read their parts at the same time, and the slowest counts."""

from __future__ import annotations

from typing import Any

from tests.peers.task_nodes import read_together


class FakeReader:
    def __init__(self, seconds: float) -> None:
        self.told: list[dict[str, Any]] = []
        self._seconds = seconds

    def hear(self) -> list[dict[str, Any]]:
        return [{"began": 0}]

    def tell(self, **order: Any) -> None:
        self.told.append(order)

    def end_of_read(self, after: int, timeout_s: float) -> dict[str, Any]:
        assert after == 1
        return {"seconds": self._seconds}


def test_readers_share_the_files() -> None:
    readers = [FakeReader(2.0), FakeReader(3.0)]
    assert read_together(readers, seed=4, verify=False) == 3.0  # type: ignore[arg-type]
    assert [reader.told for reader in readers] == [
        [{"read": "files", "seed": 4, "verify": False, "rank": rank, "world": 2}]
        for rank in range(2)
    ]
