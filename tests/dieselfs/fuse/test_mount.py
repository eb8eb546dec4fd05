"""What must work on a machine without FUSE."""

import subprocess
import sys
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs.fuse.mounts import mountpoint
from dieselfs.fuse.mounts.mountpoint import check_mountable


def test_a_machine_without_fuse_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mountpoint, "_FUSE_DEVICE", tmp_path / "fuse")
    with pytest.raises(MountError, match="fuse is missing") as raised:
        check_mountable(tmp_path)
    assert "modprobe" in str(raised.value.hint)


def test_listing_and_unmounting_load_no_server() -> None:
    folder = "dieselfs.fuse"
    modules = (
        "supervision.daemonize",
        "mounts.mountpoint",
        "mounts.mount_table",
        "supervision.readiness",
    )
    server = "dieselfs.fuse.requests.kernel_connection"
    check = f"import sys, {', '.join(f'{folder}.{name}' for name in modules)}; sys.exit({server!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=Path(__file__).parents[3])
