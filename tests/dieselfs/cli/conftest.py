"""`dlcmd` in this process, on a dataset in memory, or on disk where a daemon must open it too."""

import json
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dieselfs.assembly import open_index, open_store
from dieselfs.cli import run_dlcmd
from dieselfs.client import Client
from dieselfs.fuse.mounts import mount_table
from dieselfs.fuse.supervision.daemonize import default_log_file

FILES = {
    "readme.txt": b"hello\n",
    "cat/1.jpg": b"c" * 1000,
    "cat/2.jpg": b"C" * 5000,
    "dog/big/3.jpg": b"d" * 300_000,  # more than a block
    "dog/notes.xml": b"<x/>",
    b"odd/caf\xe9 \x1b[31m\n.txt": b"odd",
}
TIME_NS = 1_577_840_523_123_456_789  # 2020-01-01T01:02:03.123456789Z


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode(errors="surrogateescape").splitlines()

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Dlcmd = Callable[..., Result]
_WAITS = (
    "dieselfs.cache.task.remote_master.CONNECT_TIMEOUT_S",
    "dieselfs.cache.task.remote_master.STATISTICS_TIMEOUT_S",
    "dieselfs.cli.commands.mount._ANSWER_TIMEOUT_S",
    "dieselfs.cli.commands.stats._TIMEOUT_S",
    "dieselfs.cli.commands.task._TIMEOUT_S",
    "dieselfs.cli.commands.why._TIMEOUT_S",
    "dieselfs.fuse.mounts.mountpoint._ANSWER_TIMEOUT_S",
    "dieselfs.fuse.starting.start.ANSWER_TIMEOUT_S",
)
"""The times in which a mount or the master of a task must answer a command."""
_WAIT_S = 30.0
"""A mount that shares a busy machine may need more than the seconds that a user waits."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Store and index of this test; nothing of the user's is used."""
    url = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setenv("DIESELFS_STORE", url)
    monkeypatch.setenv("DIESELFS_INDEX", url)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TZ", "UTC")
    for name in ("DIESELFS_PROFILE", "DIESELFS_SNAPSHOTS"):
        monkeypatch.delenv(name, raising=False)
    return url


@pytest.fixture
def dlcmd(
    url: str, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Dlcmd:
    for wait in _WAITS:
        monkeypatch.setattr(wait, _WAIT_S)
    monkeypatch.setattr(mount_table.mounts, "__defaults__", (_WAIT_S,))

    def call(*arguments: str | Path) -> Result:
        capfdbinary.readouterr()
        code = run_dlcmd([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Result(code, out, err.decode())

    return call


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    return tmp_path / "data/dieselfs/snapshots"


@pytest.fixture
def pets(url: str, snapshots: Path) -> Iterator[Client]:
    """The dataset `pets`, as a client that has not been used."""

    def connect() -> Client:
        return Client.connect(
            "pets",
            store=open_store(url),
            index=open_index(url),
            create=True,
            snapshot_folder=snapshots,
        )

    with connect() as client:
        for path, data in FILES.items():
            client.put(data, path, mode=0o640, mtime_ns=TIME_NS)
    with connect() as client:
        yield client


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "mnt"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", "-l", folder], check=False, stderr=subprocess.DEVNULL)
    default_log_file(folder).unlink(missing_ok=True)  # another run may have the same folder


@pytest.fixture
def dataset(dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The source of the dataset `pets` in embedded places on disk, which a daemon can open too."""
    monkeypatch.delenv("DIESELFS_STORE")
    monkeypatch.delenv("DIESELFS_INDEX")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = tmp_path / "source"
    (source / "cat").mkdir(parents=True)
    (source / "cat/1.jpg").write_bytes(b"meow" * 100)
    assert dlcmd("put", f"{source}/", "pets", "-j", "1").code == 0
    return source


def put_pictures(dlcmd: Dlcmd, source: Path, file_bytes: int, *options: str) -> None:
    """Put files of random content into the dataset `pets`, and its snapshot into the store."""
    for number in range(160):
        file = source / f"{number // 4}" / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(os.urandom(file_bytes))
    assert dlcmd("put", f"{source}/", "pets", "-j", "1", *options).code == 0
    assert dlcmd("snapshot", "create", "pets").code == 0


@pytest.fixture
def pictures(dlcmd: Dlcmd, dataset: Path) -> Path:
    """The dataset `pets` in some dozens of chunks, with its snapshot in the store."""
    put_pictures(dlcmd, dataset, 5000, "--chunk-size", "32KiB", "--order", "path")
    return dataset


@pytest.fixture
def photographs(dlcmd: Dlcmd, dataset: Path) -> Path:
    """The dataset `pets` with larger files, in chunks of 1 MiB: progress shows by some MiB."""
    (dataset / "cat/1.jpg").write_bytes(os.urandom(200_000))
    put_pictures(dlcmd, dataset, 200_000, "--chunk-size", "1MiB")
    return dataset
