"""What libfuse is told, and what must work on a machine without FUSE."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dieselfs.errors import MountError
from dieselfs.fuse import mount
from dieselfs.fuse.mount import MountOptions, check_mountable, fuse_options


def snapshot_of(name: str) -> Any:
    return SimpleNamespace(dataset=SimpleNamespace(name=name), id="7-abc")


def test_a_mount_is_read_only_and_says_what_it_is() -> None:
    chosen = fuse_options(snapshot_of("imagenet"), MountOptions(Path("/mnt")))
    assert chosen == {
        "ro",
        "default_permissions",
        "subtype=dieselfs",
        "fsname=dieselfs:imagenet@7-abc",
    }


def test_other_users_are_let_in_on_request_only() -> None:
    options = MountOptions(Path("/mnt"), allow_other=True)
    assert "allow_other" in fuse_options(snapshot_of("x"), options)


@pytest.mark.parametrize("name", ["a,suid", "ünï", "a b", "a\\,b"])
def test_no_name_can_smuggle_in_an_option(name: str) -> None:
    [source] = [
        option
        for option in fuse_options(snapshot_of(name), MountOptions(Path("/mnt")))
        if option.startswith("fsname=")
    ]
    assert source.isascii()
    assert not set(source) & set(", \\")


def test_a_machine_without_fuse_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mount, "_FUSE_DEVICE", tmp_path / "fuse")
    with pytest.raises(MountError, match="fuse is missing") as raised:
        check_mountable(MountOptions(tmp_path))
    assert "modprobe" in str(raised.value.hint)


def test_listing_and_unmounting_need_no_pyfuse3() -> None:
    modules = "background, mountpoint, mount_table, readiness"
    check = f"import sys; from dieselfs.fuse import {modules}; sys.exit('pyfuse3' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=Path(__file__).parents[2])
