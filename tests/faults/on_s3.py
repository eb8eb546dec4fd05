"""`dlcmd` with a store on an S3 server behind a proxy that misbehaves as told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

from dieselfs.assembly import open_index, open_store
from dieselfs.client import Client
from tests.forked_programs import run_forked
from tests.services.faulty_http import FaultyProxy
from tests.services.s3_server import ENVIRONMENT

_LONGEST_S = 60
"""Above the bounds of all cases: a command that takes longer hangs."""
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class S3Place:
    """A store, an index, and sources; `proxy` stands before the store."""

    url: str
    proxy: FaultyProxy
    folder: Path

    def put(self, files: Files, *options: str, source: str = "source") -> CompletedProcess[str]:
        """Put these files and no others of the source."""
        top = self.folder / source
        for path, data in files.items():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(data)
        return self.dlcmd("put", "-j", "1", "--chunk-size", "16KiB", *options, f"{top}/", "dl://d")

    def dlcmd(self, *arguments: str | Path) -> CompletedProcess[str]:
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "DIESELFS_STORE": self.url,
            "DIESELFS_INDEX": f"lmdb://{self.folder}/index",
            "DIESELFS_SNAPSHOTS": f"{self.folder}/snapshots",
            "XDG_DATA_HOME": f"{self.folder}/data",
            "XDG_STATE_HOME": f"{self.folder}/state",
        }
        command = [sys.executable, "-m", "dieselfs.cli", *map(str, arguments)]
        return run_forked(command, env=environment, timeout=_LONGEST_S)

    def files(self, tag: str | None = None) -> dict[str, bytes]:
        """Return what a new client reads: all files of a tag, or of the newest commit."""
        index = open_index(f"lmdb://{self.folder}/index")
        with (
            closing(index),
            Client.connect(
                "d",
                store=open_store(self.url),
                index=index,
                snapshot_folder=self.folder / "snapshots",
            ) as client,
        ):
            if tag is not None:
                client.load_meta(tag)
            paths = [file.path for file in client.walk() if file.kind == "file"]
            return dict(zip(paths, client.get_many(paths), strict=True))
