"""A mount that has lost its fast path serves, and says why it has none."""

from pathlib import Path

import pytest

from tests.mount.mounting import KIND, mounted
from tests.mount.packing import PackedDataset, random_bytes


@pytest.fixture
def kind() -> None:
    """Each test chooses."""


@pytest.mark.parametrize(
    ("kind_of_mount", "reason"),
    [
        ("plain", "not wanted: --plain"),
        ("unbuilt", "the extension is not there: import of dieselfs.fuse._fast_path halted"),
        ("too late", "pyfuse3 was imported before dieselfs.fuse"),
    ],
)
def test_it_serves_and_says_why(
    small: PackedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind_of_mount: str,
    reason: str,
) -> None:
    monkeypatch.setenv(KIND, kind_of_mount)
    with mounted(small, tmp_path) as mount:
        for n in range(100):
            assert (mount.path / f"d{n % 5}" / f"{n}").read_bytes() == random_bytes(2000 + n)
        found = mount.statistics()
        assert found["fast_path"] == {
            "active": False,
            "reason": found["fast_path"]["reason"],
            "threads": 0,
        }
        assert found["fast_path"]["reason"].startswith(reason)
        assert found["requests"] == found["requests_in_python"]
        assert found["requests"]["open"] >= 100
        assert not any(found["stored_ahead"].values())
        [line] = [line for line in mount.log.splitlines() if "fast path" in line]
        assert line.startswith(f"WARNING dieselfs.fuse.fast_path no fast path: {reason}")
