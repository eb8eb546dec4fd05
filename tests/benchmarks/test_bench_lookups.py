"""The clients of Figure 10 look up files that are there, in the index, in a snapshot and bare."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bench_lookups import BareLookups, Lookups, make
from tests.services.redis_processes import RedisProcess

FILES = 300


def test_look_ups_find_what_was_put(tmp_path: Path) -> None:
    with RedisProcess(tmp_path / "redis") as server:
        snapshot = make(tmp_path / "data", server.url, FILES)
        for files, is_there in ((FILES, True), (10 * FILES, False)):
            clients: list[Lookups | BareLookups] = [
                Lookups(tmp_path / "data", server.url, files),
                Lookups(tmp_path / "data", server.url, files, snapshot),
                BareLookups(tmp_path / "data", server.url, files),
            ]
            for client in clients:
                if is_there:
                    assert client.run(1, 20) > 0
                else:
                    with pytest.raises(Exception, match=r"image|not there|no such"):
                        client.run(1, 100)
                client.close()
