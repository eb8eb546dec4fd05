"""Users without a home, and those whose home is another user's."""

import errno
import os
import pwd
from pathlib import Path
from typing import NoReturn

import pytest

from dieselfs.assembly import private_snapshot_folder
from dieselfs.cli.rendering.exit_codes import explain
from dieselfs.config import cache_folder, load_config, state_folder
from dieselfs.snapshots.lifecycle import list_local


def unknown(user_id: int) -> NoReturn:
    raise KeyError(user_id)


def denied(path: object, *_: object, **__: object) -> NoReturn:
    raise PermissionError(errno.EACCES, "Permission denied", os.fspath(str(path)))


@pytest.mark.parametrize("environment", [{}, {"HOME": ""}, {"HOME": "here"}])
def test_a_user_without_a_home(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert state_folder(environment) == known / ".local/state/dieselfs"
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    found = load_config(environment=environment)
    assert found.store.value == "file:///nonexistent/.local/share/dieselfs/store"
    assert cache_folder(environment) == Path("/nonexistent/.cache/dieselfs")


def test_a_home_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    for name in ("stat", "read_bytes"):
        monkeypatch.setattr(Path, name, denied)
    monkeypatch.setattr(os, "stat", denied)
    found = load_config(environment={"HOME": str(tmp_path)})
    folder = private_snapshot_folder(found)
    assert list_local(folder, "pets") == []
    failed = explain(PermissionError(errno.EACCES, "Permission denied", str(folder)))
    assert "set HOME to a folder of yours" in failed.hint
