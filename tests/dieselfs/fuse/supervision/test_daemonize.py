"""Where a daemon logs, and what is said of one that ended."""

import os
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs.fuse.supervision.daemonize import default_log_file, start_in_background


def test_log_files_of_different_mountpoints_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_log_file(Path("/mnt")).parent == Path(os.environ["DIESELFS_LOG_FOLDER"])
    monkeypatch.delenv("DIESELFS_LOG_FOLDER")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_log_file(Path("/mnt/a b")) == Path("/state/dieselfs/mount-mnt-a%20b.log")
    assert default_log_file(Path("/mnt/c")) != default_log_file(Path("/mnt/a b"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_log_file(Path("/mnt")) == Path("/var/log/dieselfs/mount-mnt.log")


def test_the_last_line_of_a_daemon_that_ended_is_its_error(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("an older run\n")
    command = ["sh", "-c", "echo first; echo 'dlcmd: it went wrong' >&2; exit 3"]
    with pytest.raises(MountError, match=r"^it went wrong$"):
        start_in_background(command, tmp_path, log_file=tmp_path / "log")
    assert (tmp_path / "log").read_text().startswith("an older run\nfirst\n")


def test_a_daemon_that_says_nothing_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="ended without a message"):
        start_in_background(["true"], tmp_path, log_file=tmp_path / "log")


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MountError, match="cannot write the log"):
        start_in_background(["true"], tmp_path, log_file=tmp_path / "file" / "log")


def test_a_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="cannot start"):
        start_in_background([str(tmp_path / "absent")], tmp_path, log_file=tmp_path / "log")


def test_a_large_log_is_set_aside(tmp_path: Path) -> None:
    with (tmp_path / "x.log").open("wb") as log:
        log.truncate(17 << 20)
    with pytest.raises(MountError):
        start_in_background(["true"], tmp_path, log_file=tmp_path / "x.log")
    assert (tmp_path / "x.log.1").stat().st_size == 17 << 20
    assert (tmp_path / "x.log").stat().st_size == 0
