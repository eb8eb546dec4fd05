"""memcached for one benchmark, as Debian has it, and its client in C."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.shared_slow_store import SharedSlowStore
from chunkstore.chunk_reader import ChunkReader
from metadata.snapshot import Snapshot
from tests.services.redis_processes import free_port


class MemcachedServer:
    """`stop` it as a crash does."""

    def __init__(self, memory_mib: int, threads: int = 4) -> None:
        for attempt in range(5):
            self.port = free_port()
            if self._start(memory_mib, threads):
                return
            if attempt == 4:
                raise RuntimeError("memcached does not start")

    def _start(self, memory_mib: int, threads: int) -> bool:
        command = ["setpriv", "--pdeathsig", "KILL"]
        command += memcached_command("127.0.0.1", self.port, memory_mib, threads)
        self._process = subprocess.Popen(command)
        deadline = time.monotonic() + 10
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            except OSError:
                time.sleep(0.01)
        self.stop()
        return False

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def memcached_command(host: str, port: int, memory_mib: int, threads: int = 4) -> list[str]:
    """To start a server in the foreground. `FileNotFoundError` says what to install."""
    program = shutil.which("memcached")
    if program is None:
        raise FileNotFoundError("memcached: install the package of that name")
    command = [program, "-l", host, "-U", "0", "-p", str(port)]
    command += ["-m", str(memory_mib), "-t", str(threads), "-I", "8m"]
    if os.geteuid() == 0:
        command += ["-u", "root"]  # it refuses to be root unless told to
    return command


@contextmanager
def memcached_servers(
    count: int, memory_mib: int, threads: int = 4
) -> Iterator[list[MemcachedServer]]:
    """`memory_mib` and `threads` are of each."""
    servers: list[MemcachedServer] = []
    try:
        for _ in range(count):
            servers.append(MemcachedServer(memory_mib, threads))
        yield servers
    finally:
        for server in servers:
            server.stop()


def memcached_client(servers: Sequence[int | str]) -> Any:
    """pylibmc, over libmemcached; keys are spread over the servers by their hash. A server is
    HOST:PORT, or a port of this machine."""
    import pylibmc

    addresses = [f"127.0.0.1:{each}" if isinstance(each, int) else each for each in servers]
    return pylibmc.Client(addresses, behaviors={"tcp_nodelay": True})


class CacheAside:
    """Files from memcached; what is not there is read from the store, file by file, and put there,
    if that can be done."""

    def __init__(self, servers: Sequence[int | str], disk: Path, snapshot: Path) -> None:
        import pylibmc

        self._failure = pylibmc.Error
        self._client = memcached_client(servers)
        self._snapshot = Snapshot.open(snapshot)
        self._store = ChunkReader(SharedSlowStore(disk), self._snapshot.dataset)

    def read(self, path: str) -> bytes:
        try:
            found: bytes | None = self._client.get(path)
        except self._failure:
            found = None
        return self._from_store(path) if found is None else found

    def answering(self) -> int:
        """Servers."""
        return len(self._client.get_stats())

    def close(self) -> None:
        self._client.disconnect_all()
        self._snapshot.close()

    def _from_store(self, path: str) -> bytes:
        inode = self._snapshot.resolve(path.encode())
        assert inode is not None
        file = self._snapshot.extent(inode)
        data = bytes(self._store.read(file, 0, file.length))
        try:
            self._client.set(path, data)
        except self._failure:
            pass
        return data
