"""A mount's daemon for tests: `python -m tests.mount.daemon SNAPSHOT STORE MOUNTPOINT [options]`.

Its source fails as the file given by --faults says at the time of each read: empty for no fault, else
corrupt, unavailable, missing, bug, short or stuck; or as what is fetched into its memory does: store-stuck. On SIGUSR1 it takes the snapshot whose path is in the file given by
--next, if there is one. Its fast path can be driven over the socket given by --remote (`tests.mount.remote_fast_path`).
"""

import argparse
import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent
from chunkstore.errors import Corrupt, NotFound, Unavailable
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.ending import Ending
from dieselfs.errors import DieselFSError
from dieselfs.fuse.mount import MountOptions, run_mount
from dieselfs.fuse.refresh import NewerSnapshot
from dieselfs.node_memory.node_memory import CLOSE_S, NodeMemory
from dieselfs.node_memory.task_folder import TaskFolder
from dieselfs.shuffle import parse_parameters
from metadata.snapshot import Snapshot
from tests.mount import remote_fast_path

ERRORS = {"corrupt": Corrupt, "unavailable": Unavailable, "missing": NotFound}


class HangingSource:
    """A `ChunkSource` over another that does not answer when told so."""

    def __init__(self, source: ChunkSource, faults: Path) -> None:
        self._source = source
        self._faults = faults

    def payload(self, chunk: ChunkRef) -> memoryview:
        self._hang()
        return self._source.payload(chunk)

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        self._hang()
        return self._source.read(file, start, length)

    def _hang(self) -> None:
        if self._faults.read_text() == "store-stuck":
            threading.Event().wait()


class FaultySource:
    """A `CachedSource` over another that fails on demand, also where the other has the bytes."""

    def __init__(self, source: NodeMemory, faults: Path, remote: Path | None = None) -> None:
        self._source = source
        self._faults = faults
        self._remote = remote

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        fault = self._faults.read_text()
        if fault == "peek-bug":
            raise ZeroDivisionError("a bug in peek")
        return None if fault else self._source.peek(file, start, length)

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        fault = self._faults.read_text()
        if fault in ERRORS:
            raise ERRORS[fault](f"{fault}, because the test says so")
        if fault == "bug":
            raise ZeroDivisionError("a bug in read")
        if fault == "stuck":
            threading.Event().wait()
        if fault == "short":
            return memoryview(bytes(length // 2))
        return self._source.read(file, start, length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def observe(self, observer: Any) -> None:
        if self._remote is not None:
            observer = remote_fast_path.serve(self._remote, observer, self._source)
        self._source.observe(observer)


def newer_in(file: Path | None) -> NewerSnapshot:
    def newer(shown: Snapshot) -> Snapshot | None:
        return Snapshot.open(file.read_text()) if file is not None and file.exists() else None

    return newer


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--faults", type=Path)
    parser.add_argument("--remote", type=Path)
    parser.add_argument("--next", type=Path)
    parser.add_argument("--cache-bytes", type=int, default=256 << 20)
    parser.add_argument("--eviction", default="lru")
    parser.add_argument("--task", default=f"test-{os.getpid()}", help="by default its own")
    parser.add_argument("--shuffle", type=parse_parameters)
    parser.add_argument("--allow-other", action="store_true")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--nonempty", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--store-ahead-bytes", type=int)
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    task = TaskFolder.at(chosen.task)
    options = MountOptions(
        chosen.mountpoint,
        task_folder=task.path,
        memory_bytes=chosen.cache_bytes,
        shuffle=chosen.shuffle,
        store_url=f"file://user:secret@host{chosen.store}",
        allow_other=chosen.allow_other,
        uid=chosen.uid,
        gid=chosen.gid,
        nonempty=chosen.nonempty,
        plain=chosen.plain,
        store_ahead_bytes=chosen.store_ahead_bytes,
    )
    try:
        with Snapshot.open(chosen.snapshot) as snapshot:
            reader: ChunkSource = ChunkReader(LocalDirectory(chosen.store), snapshot.dataset)
            if chosen.faults:
                reader = HangingSource(reader, chosen.faults)
            memory = NodeMemory.open(
                task, reader, budget_bytes=chosen.cache_bytes, policy=chosen.eviction, lead=True
            )
            source = memory
            if chosen.faults:
                source = FaultySource(memory, chosen.faults, chosen.remote)
            ending = Ending(forced=True)
            try:
                run_mount(snapshot, source, options, newer=newer_in(chosen.next), ending=ending)
            finally:
                memory.close(ending.left_s(CLOSE_S))
    except DieselFSError as error:
        print(f"dlcmd: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
