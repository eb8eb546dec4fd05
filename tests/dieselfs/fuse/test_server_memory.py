"""A mount's server releases its heap's free pages while it waits for its end."""

import queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dieselfs.fuse import mount

TURNS = 20


def test_free_pages_are_released_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    turns: list[None] = []
    releases: list[None] = []

    def state() -> dict[str, Any]:
        turns.append(None)
        if len(turns) == TURNS:
            ends.put("enough")
        return {}

    monkeypatch.setattr(mount, "RELEASE_EVERY_S", 0.0)
    monkeypatch.setattr(mount, "_STATE_EVERY_S", 0.001)
    monkeypatch.setattr(mount, "release_free_pages", lambda: releases.append(None))
    front = SimpleNamespace(release_hidden=lambda: None)
    server = SimpleNamespace(_ends=ends, _front=front, _state=state)
    assert mount._Server._reason_to_end(cast(Any, server), {}) == "enough"
    assert len(releases) == TURNS
