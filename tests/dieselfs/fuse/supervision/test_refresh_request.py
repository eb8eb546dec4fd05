"""A supervisor that closes descriptors, or ends, while another process looks at it."""

import os
from pathlib import Path

import pytest

from dieselfs.fuse.supervision.refresh_request import _holds_fuse_device


@pytest.mark.parametrize("target", ["/dev/fuse", "/dev/null"])
def test_descriptors_that_are_closed_meanwhile_are_passed_over(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0", "1", "2"):
        (tmp_path / name).symlink_to(target)
    looks: list[str] = []
    read = os.readlink

    def readlink(path: Path) -> str:
        looks.append(path.name)
        if len(looks) == 1:
            path.unlink()
        return read(path)

    monkeypatch.setattr(os, "readlink", readlink)
    assert _holds_fuse_device(tmp_path) is (target == "/dev/fuse")
    assert len(looks) == (2 if target == "/dev/fuse" else 3)


def test_a_process_that_has_gone_has_ended(tmp_path: Path) -> None:
    with pytest.raises(ProcessLookupError):
        _holds_fuse_device(tmp_path / "gone")
