"""Some seconds of what `make soak` does for half an hour."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.soak import soak

SECONDS = float(os.environ.get("DIESELFS_SOAK_SECONDS", "5"))


@pytest.mark.timeout(SECONDS + 240)
def test_soak(tmp_path: Path) -> None:
    found = soak(tmp_path, SECONDS)
    assert found["batches"] > 0
    assert found["faults"] > 0
    assert found["mounts"] > 0
