"""What must work on a machine without FUSE."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs.fuse.mounts import system_parts
from dieselfs.fuse.mounts.mountpoint import check_mountable
from dieselfs.fuse.mounts.service_client import SERVICE_VARIABLE

PROGRAMS = ("fusermount3", "apt-get")


@pytest.fixture
def ordinary_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An ordinary user without a mount service; returns the folder of all programs."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv(SERVICE_VARIABLE, str(tmp_path / "mountd.sock"))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(system_parts, "_DEVICE", tmp_path)
    return programs


def complaint() -> tuple[str, str]:
    with pytest.raises(MountError) as raised:
        system_parts.check_parts()
    return str(raised.value), str(raised.value.hint)


def test_a_machine_without_fuse_is_told_so(
    monkeypatch: pytest.MonkeyPatch, ordinary_user: Path, tmp_path: Path
) -> None:
    system_parts.check_parts()
    monkeypatch.setattr(system_parts, "_DEVICE", tmp_path / "fuse")
    with pytest.raises(MountError, match="fuse is missing") as raised:
        check_mountable(tmp_path)
    assert str(raised.value.hint).startswith("run `sudo modprobe fuse`; a container needs")


def test_both_commands_are_named(
    monkeypatch: pytest.MonkeyPatch, ordinary_user: Path, tmp_path: Path
) -> None:
    (ordinary_user / "fusermount3").unlink()
    what, hint = complaint()
    assert what == "fusermount3 is not installed"
    assert hint == "run `sudo apt-get install fuse3`"
    monkeypatch.setattr(system_parts, "_DEVICE", tmp_path / "fuse")
    what, hint = complaint()
    assert what == f"{tmp_path}/fuse and fusermount3 are missing"
    assert hint.startswith("run `sudo modprobe fuse` and `sudo apt-get install fuse3`; ")


def test_the_command_is_that_of_the_distribution(ordinary_user: Path) -> None:
    (ordinary_user / "fusermount3").unlink()
    (ordinary_user / "apt-get").rename(ordinary_user / "dnf")
    assert complaint()[1] == "run `sudo dnf install fuse3`"


def test_root_and_users_of_the_service_need_no_fusermount(
    monkeypatch: pytest.MonkeyPatch, ordinary_user: Path, tmp_path: Path
) -> None:
    (ordinary_user / "fusermount3").unlink()
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(tmp_path / "mountd.sock"))
        system_parts.check_parts()
    (tmp_path / "mountd.sock").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    system_parts.check_parts()


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
