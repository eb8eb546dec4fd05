"""The rates that the benchmark of cache nodes' policies tells; a run of it takes minutes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.bench_ssd_policies_cluster import (
    _COUNTED,
    _COUNTED_BY_POLICY,
    flags_of,
    report_nodes,
)


def test_a_shadow_policy_stands_behind_the_acting_one() -> None:
    assert flags_of("next-use") == ["--ssd-policy", "next-use"]
    assert flags_of("lru+future") == ["--ssd-policy", "lru", "--ssd-shadow-policy", "future"]


def look(**counted: int) -> dict[str, dict[str, Any]]:
    """What `dlcmd cluster --json` says of one node."""
    node = {name: counted.get(name, 0) for name in _COUNTED}
    policy = {name: counted.get(name, 0) for name in _COUNTED_BY_POLICY}
    return {"127.0.0.1:7700": node | {"policy": {"name": "lru", "shadow": None} | policy}}


def test_rates_of_the_later_epochs_leave_out_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    first = look(served_bytes=100, miss_bytes=100)
    last = look(served_bytes=300, miss_bytes=250, hit_bytes=50, absorbed_bytes=50)
    report_nodes("lru", [first, look(), last])
    found = json.loads(capsys.readouterr().out)
    assert (found["policy"], found["served_bytes"]) == ("lru", 300)
    shadow = {"shadow_hit_rate": None}
    assert found["epochs_2_and_3"] == {"hit_rate": 0.25, "absorbed_share": 0.25} | shadow
    assert found["all_epochs"] == {"hit_rate": 0.1667, "absorbed_share": 0.1667} | shadow
