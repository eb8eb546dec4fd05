"""What the benchmark of a cache cluster counts; a run of it takes longer than a test may."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.bench_cache_cluster import BIN_S, kill_a_node, side_by_side


class FakeClient:
    """It answers at once."""

    def __init__(self, answer: Any = None) -> None:
        self.orders: list[tuple[Any, ...]] = []
        self._answer = answer

    def begin(self, *order: Any) -> None:
        self.orders.append(order)

    def answer(self) -> Any:
        return self._answer


def test_clients_read_equal_parts_and_the_slowest_counts() -> None:
    clients = [FakeClient(1.0), FakeClient(3.0)]
    assert side_by_side(clients, "files", 5, 100) == 3.0  # type: ignore[arg-type]
    assert [client.orders for client in clients] == [
        [("files", 5, 0, 2, 50)],
        [("files", 5, 1, 2, 50)],
    ]


def test_the_rate_after_a_kill_leaves_out_the_first_two_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

        @staticmethod
        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

    class Node:
        def end(self, number: int) -> None:
            pass

    monkeypatch.setattr("benchmarks.bench_cache_cluster.time", Clock)
    at = {number: 10 if number * BIN_S < 103 else 0 for number in range(1000, 1050)}
    at |= {number: 8 for number in range(1050, 1080)}
    clients = [FakeClient({"bins": at, "longest_s": 0.5}) for _ in range(2)]
    kill_a_node([Node()], clients, 3.0)  # type: ignore[arg-type,list-item]
    found = json.loads(capsys.readouterr().out)
    assert found["ratio"] == 0.8
    assert found["met"]
    assert found["files_per_s"] == {"before": 200.0, "after": 160.0, "lowest of 0.1 s": 0.0}
