"""A Redis server on loopback for one benchmark: append-only file synced every second, as one would
run it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.redis_processes import RedisProcess


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Start a server in `folder`; its URL."""
    with RedisProcess(folder, "--appendfsync", "everysec") as server:
        yield server.url
