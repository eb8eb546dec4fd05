"""memcached on loopback for one benchmark, as Debian has it, and its client in C."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
        program = shutil.which("memcached")
        if program is None:
            raise FileNotFoundError("memcached: install the package of that name")
        command = ["setpriv", "--pdeathsig", "KILL", program, "-l", "127.0.0.1", "-U", "0"]
        command += ["-p", str(self.port), "-m", str(memory_mib), "-t", str(threads), "-I", "8m"]
        if os.geteuid() == 0:
            command += ["-u", "root"]  # it refuses to be root unless told to
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


def memcached_client(ports: Sequence[int]) -> Any:
    """pylibmc, over libmemcached; keys are spread over the servers by their hash."""
    import pylibmc

    return pylibmc.Client([f"127.0.0.1:{port}" for port in ports], behaviors={"tcp_nodelay": True})
