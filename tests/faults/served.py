"""Datasets on disk, and mounts of them by `dlcmd mount` itself, that a test breaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkstore.object_keys import chunk_key
from chunkstore.stores.cloud import CloudStore
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.object_store import ObjectStore
from dieselfs.client import Client
from dieselfs.fuse.mounts.mount_table import entry_at
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.snapshot import Snapshot
from tests.eventually import PATIENCE_S, eventually
from tests.faults.flapping_store import set_mode
from tests.forked_programs import run_forked
from tests.mount.mounting import is_alive

PROGRAM = Path(__file__).resolve().with_name("dlcmd_flapping.py")
NAME = "d"

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Place:
    """A store, an index and snapshots in one folder, and `dlcmd` that uses them."""

    folder: Path

    @property
    def objects(self) -> LocalDirectory:
        return LocalDirectory(self.folder / "store")

    @property
    def store(self) -> ObjectStore:
        return self.objects

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DIESELFS_STORE": f"flapping://{self.folder}",
            "DIESELFS_INDEX": f"lmdb://{self.folder}/index",
            "DIESELFS_SNAPSHOTS": f"{self.folder}/snapshots",
            "XDG_STATE_HOME": f"{self.folder}/state",
            "HOME": str(self.folder),
        }

    def make(self, files: Files, target_bytes: int = 1 << 20) -> Snapshot:
        """Put `files` into the dataset, which may exist; the snapshot of what it is then."""
        self.folder.mkdir(exist_ok=True)
        set_mode(self.folder, "ok")
        index = LmdbFileStore(self.folder / "index")
        client = Client.connect(
            NAME,
            store=self.store,
            index=index,
            create=True,
            snapshot_folder=self.folder / "snapshots",
            target_bytes=target_bytes,
            open_chunks=1,
        )
        try:
            with client:
                for path, data in files.items():
                    client.put(data, path)
                client.flush()
                path = client.save_meta()
        finally:
            index.close()
        return Snapshot.open(path)

    def holding(self, files: Files, target_bytes: int = 64_000) -> Place:
        """This place, with a dataset of `files`."""
        self.make(files, target_bytes).close()
        return self

    def object_file(self, key: str) -> Path:
        """The file of an object, to be damaged."""
        return Path(self.objects._path(key))

    def chunk_file(self, snapshot: Snapshot, number: int) -> Path:
        return self.object_file(chunk_key(NAME, snapshot.chunk(number).id))

    def dlcmd(
        self, *arguments: str | Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return run_forked(
            [sys.executable, str(PROGRAM), *map(str, arguments)],
            env=self.environment | dict(environment or {}),
            timeout=2 * PATIENCE_S,
        )

    def refused(self, mountpoint: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """What `dlcmd mount` says, which is expected not to mount; nothing stays mounted."""
        mountpoint.mkdir(exist_ok=True)
        try:
            return self.dlcmd("mount", *arguments, NAME, mountpoint)
        finally:
            if entry_at(mountpoint) is not None:
                subprocess.run(["umount", "--lazy", mountpoint], check=False)

    @contextmanager
    def mounted(self, mountpoint: Path, *options: str) -> Iterator[Served]:
        served = self.mount(mountpoint, *options)
        try:
            yield served
        finally:
            served.end()

    def mount(self, mountpoint: Path, *options: str) -> Served:
        mountpoint.mkdir(exist_ok=True)
        done = self.dlcmd("mount", "--json", "--no-index", *options, NAME, mountpoint)
        assert done.returncode == 0, done.stderr
        record = json.loads(done.stdout)
        return Served(mountpoint, record["pid"], Path(record["log"]))


@dataclass(frozen=True)
class CloudPlace(Place):
    """A place whose store has a URL, which `store` opens in this process."""

    url: str

    @property
    def store(self) -> ObjectStore:
        return CloudStore(self.url)

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "DIESELFS_STORE": self.url}


@dataclass(frozen=True)
class Served:
    """A mount by `dlcmd mount`."""

    path: Path
    pid: int
    log_file: Path
    log_begins: int = field(default=0)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def wrong(self, files: Files) -> list[str]:
        """The paths below which other bytes are read."""
        return [path for path, data in files.items() if (self.path / path).read_bytes() != data]

    def statistics(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.path / ".dieselfs/stats.json").read_text())
        return document

    def statistics_or_none(self) -> dict[str, Any] | None:
        """None while one server follows another."""
        try:
            return self.statistics()
        except (OSError, ValueError):
            return None

    def servers(self) -> list[int]:
        """The processes that its supervisor, which must be alive, has started and that serve."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(child) for child in children]

    def kill(self) -> None:
        """SIGKILL of the supervisor, then of its servers: nobody serves any more."""
        send(signal.SIGKILL, self.pid, *self.servers())

    def end(self) -> None:
        if is_alive(self.pid):
            with suppress(OSError):  # it ends meanwhile
                send(signal.SIGCONT, *self.servers())
            send(signal.SIGTERM, self.pid)
        eventually(lambda: not is_alive(self.pid), f"the end of daemon {self.pid}")
        while entry_at(self.path) is not None:
            subprocess.run(["umount", "-l", self.path], check=False)

    def resources(self) -> tuple[int, int]:
        """(descriptors, threads) of the server."""
        eventually(self.servers, "a server")  # another one may be about to follow
        server = self.servers()[0]
        process = Path("/proc", str(server))
        return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))


def send(number: signal.Signals, *pids: int) -> None:
    """Send a signal to those of the processes that have not ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def errno_of(path: Path) -> int | None:
    """Of reading all of the file; None if that works."""
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno
    return None


def paths_in_chunk(snapshot: Snapshot, number: int) -> list[str]:
    return [os.fsdecode(snapshot.path_of(inode)) for inode in snapshot.files_in_chunk(number)]
