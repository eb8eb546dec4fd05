"""Some seconds of what `make soak` does for half an hour, and what it has found."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.reading import content
from tests.faults.served import Place
from tests.faults.soak import soak
from tests.heap_arenas import arenas

SECONDS = float(os.environ.get("DIESELFS_SOAK_SECONDS", "3"))


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 240)
def test_soak(tmp_path: Path) -> None:
    found = soak(tmp_path, SECONDS)
    assert found["batches"] > 0
    assert found["faults"] > 0
    assert found["mounts"] > 0


def test_all_threads_of_a_server_share_one_arena(tmp_path: Path) -> None:
    """The peaks of many arenas made the soak's daemon grow from 50 to 89 MB."""
    place = Place(tmp_path / "place")
    files = {f"f{number:03}": content(f"f{number:03}") for number in range(200)}
    place.make(files, target_bytes=64_000).close()
    with place.mounted(tmp_path / "mnt", "--prefill", "0") as mount:
        with ThreadPoolExecutor(16) as readers:
            read = readers.map(Path.read_bytes, [mount.path / path for path in files])
            assert list(read) == list(files.values())
        assert arenas(mount.servers()[0]) == 0
