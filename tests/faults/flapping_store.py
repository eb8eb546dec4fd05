"""A store that fails on command, in whatever process has opened it: `flapping:///FOLDER`.

FOLDER holds the real store, `store`; the file `mode` with what it does now; and `calls`, to which
every process appends a line for each read that was tried (`try KEY`) and each that was answered
(`got KEY`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from chunkstore.errors import Unavailable
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.object_store import Buffer, ObjectInfo
from tests.eventually import eventually

T = TypeVar("T")

MODES = ("ok", "out", "hung", "slow", "resetting", "errors", "short", "wrong")
SLOW_S = 0.3
HUNG_S = 600.0
"""Longer than any test lets it hang."""


class FlappingStore:
    """Implements `ObjectStore`; pickles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = LocalDirectory(folder / "store")

    def __reduce__(self) -> tuple[type[FlappingStore], tuple[Path]]:
        return type(self), (self.folder,)

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        self._meet(key)
        self._store.create(key, parts)

    def get(self, key: str) -> bytes:
        return self._read(key, lambda: self._store.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._read(key, lambda: self._store.get_range(key, offset, length))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._meet(prefix)
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._meet(key)
        self._store.delete(key)

    def stat(self, key: str) -> ObjectInfo:
        self._meet(key)
        return self._store.stat(key)

    def _read(self, key: str, read) -> bytes:  # type: ignore[no-untyped-def]
        self._note("try", key)
        mode = self._meet(key)
        data: bytes = read()
        if mode == "resetting":
            raise Unavailable(f"{key}: connection reset after {len(data) // 2} bytes")
        if mode == "short":
            data = data[: len(data) // 2]
        elif mode == "wrong":
            data = data[:-1] + bytes([data[-1] ^ 1])
        self._note("got", key)
        return data

    def _meet(self, key: str) -> str:
        """What it does now, after having done of it what comes before the answer."""
        mode = mode_of(self.folder)
        if mode == "out":
            raise Unavailable(f"{key}: connection refused")
        if mode == "errors":
            raise Unavailable(f"{key}: 503 Service Unavailable")
        if mode == "slow":
            time.sleep(SLOW_S)
        if mode == "hung":
            eventually(lambda: mode_of(self.folder) != "hung", "the end of it", HUNG_S)
            raise Unavailable(f"{key}: the connection has died meanwhile")
        return mode

    def _note(self, what: str, key: str) -> None:
        log = os.open(self.folder / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(log, f"{what} {key}\n".encode())
        finally:
            os.close(log)


def mode_of(folder: Path) -> str:
    return (folder / "mode").read_text()


def set_mode(folder: Path, mode: str) -> None:
    assert mode in MODES
    new = folder / "mode.new"
    new.write_text(mode)
    new.rename(folder / "mode")


def calls(folder: Path, what: str) -> Counter[str]:
    """How often each key was tried (`try`), or answered (`got`)."""
    try:
        lines = (folder / "calls").read_text().splitlines()
    except FileNotFoundError:
        return Counter()
    return Counter(line.partition(" ")[2] for line in lines if line.startswith(f"{what} "))
