"""A mount's daemon for tests: `python -m tests.mount.daemon SNAPSHOT STORE MOUNTPOINT [options]`.

Its source fails as the file given by --faults says at the time of each read: empty for no fault, else
corrupt, unavailable, missing, bug, short or stuck. On SIGUSR1 it takes the snapshot whose path is in the file given by
--next, if there is one. Its fast path can be driven over the socket given by --remote (`tests.mount.remote_fast_path`).
"""

import argparse
import logging
import sys
import threading
from pathlib import Path

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import FileExtent
from chunkstore.errors import Corrupt, NotFound, Unavailable
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.chunk_cache import CacheObserver, CacheStatistics, ChunkCache
from dieselfs.errors import DieselFSError
from dieselfs.fuse.mount import MountOptions, run_mount
from dieselfs.fuse.refresh import NewerSnapshot
from metadata.snapshot import Snapshot
from tests.mount import remote_fast_path

ERRORS = {"corrupt": Corrupt, "unavailable": Unavailable, "missing": NotFound}


class FaultySource:
    """A `CachedSource` over another that fails on demand, also where the other has the bytes."""

    def __init__(self, source: ChunkCache, faults: Path, remote: Path | None = None) -> None:
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

    def payload(self, chunk):
        return self._source.payload(chunk)

    def observe(self, observer: CacheObserver) -> None:
        self._source.observe(observer)
        if self._remote is not None:
            remote_fast_path.serve(self._remote, observer, self._source)

    def discard(self, chunk: ChunkId) -> None:
        self._source.discard(chunk)

    def statistics(self) -> CacheStatistics:
        return self._source.statistics()


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
    parser.add_argument("--allow-other", action="store_true")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--nonempty", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--store-ahead-bytes", type=int)
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    options = MountOptions(
        chosen.mountpoint,
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
            reader = ChunkReader(LocalDirectory(chosen.store), snapshot.dataset)
            source = ChunkCache(reader, chosen.cache_bytes)
            if chosen.faults:
                source = FaultySource(source, chosen.faults, chosen.remote)
            run_mount(snapshot, source, options, newer=newer_in(chosen.next))
    except DieselFSError as error:
        print(f"dlcmd: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
