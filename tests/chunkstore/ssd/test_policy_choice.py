"""The choice of a cache policy, and its file, which anybody may have damaged."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from chunkstore.ssd.policy_choice import PolicyChoice, PolicyFile


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"policy": "clever"}, "write lru, all, .*historic"),
        ({"shadow": "clever"}, "no cache policy 'clever'; write lru"),
        ({"policy": "dynamic"}, "needs a write budget; write for instance 100MB/s"),
        ({"write_budget": 0.0}, "a write budget of 0 bytes a second; write"),
        ({"write_budget": float("nan")}, "a write budget of nan bytes a second"),
        ({"write_budget": float("inf")}, "a write budget of inf bytes a second"),
        ({"buckets": "file"}, "no bucket map 'file'; write dataset, directory or group"),
    ],
)
def test_what_makes_no_sense_is_refused(choice: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PolicyChoice(**choice)  # type: ignore[arg-type]


def test_a_file_holds_a_choice_and_a_reader_notices_changes(tmp_path: Path) -> None:
    file, writer = PolicyFile(tmp_path), PolicyFile(tmp_path)
    assert file.read() is None
    choice = PolicyChoice("future", "hybrid", 1e8, "group")
    writer.write(choice)
    assert file.read() == choice
    assert json.loads((tmp_path / "policy.json").read_text()) == {
        "version": 1,
        "policy": "future",
        "shadow": "hybrid",
        "write_budget": 1e8,
        "buckets": "group",
    }
    writer.write(PolicyChoice())
    assert file.read() == PolicyChoice()
    writer.write(None)
    writer.write(None)
    assert file.read() is None
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"version": 1}',
        b'{"version": 2, "policy": "lru", "shadow": null, "write_budget": null, "buckets": "group"}',
        b'{"version": 1, "policy": "lfu", "shadow": null, "write_budget": null, "buckets": "group"}',
        b'{"version": 1, "policy": "all", "shadow": null, "write_budget": NaN, "buckets": "group"}',
        b'{"version": 1, "policy": "all", "shadow": null, "write_budget": [], "buckets": "group"}',
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_with_one_line(
    tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "policy.json").write_bytes(text)
    file = PolicyFile(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert [file.read() for _ in range(3)] == [None] * 3
    [record] = caplog.records
    assert "policy.json is ignored" in record.getMessage()
    file.write(PolicyChoice("all"))
    assert file.read() == PolicyChoice("all")
