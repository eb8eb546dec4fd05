"""Chunk ids: 16 bytes, unique without a server, sortable by time (DIESEL Table 1).

Bytes 0-3 hold seconds, 4-9 the machine, 10-12 the process and 13-15 a counter, all big-endian. The
printed form uses an alphabet whose ASCII order is its value order (plain base64 lacks this), so
sorted names are sorted ids.

Containers share MAC addresses and process numbers. So the machine field is a hash of the identities
of machine, boot and container, and the process field is drawn at random, again after every fork.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from chunkstore.after_fork import renew_now_and_after_fork

_STANDARD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_ORDERED = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_TO_ORDERED = bytes.maketrans(_STANDARD, _ORDERED)
_TO_STANDARD = bytes.maketrans(_ORDERED, _STANDARD)

COUNTER_LIMIT = 1 << 24
"""The number of ids that one second offers to a process."""
PRINTED_LENGTH = 22


def print_id(value: bytes) -> str:
    """Return 16 bytes as 22 printable characters, order preserved.

    The result is safe in file names, object keys and Redis hash tags.
    """
    return base64.b64encode(value).translate(_TO_ORDERED)[:PRINTED_LENGTH].decode("ascii")


def parse_id(text: str) -> bytes:
    """Return the bytes of a printed id: the inverse of `print_id`.

    Raise `ValueError` for any text that `print_id` does not return.
    """
    value = base64.b64decode(text.encode("ascii").translate(_TO_STANDARD) + b"==", validate=True)
    if len(value) != 16 or print_id(value) != text:
        raise ValueError(f"{text!r} is not a printed 16-byte id")
    return value


@dataclass(frozen=True, slots=True, order=True)
class ChunkId:
    """The name of one chunk, ordered by time of creation, then machine, process and counter."""

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != 16:
            raise ValueError(f"a chunk id must have 16 bytes, not {len(self.value)}")

    def __str__(self) -> str:
        return print_id(self.value)

    @classmethod
    def parse(cls, text: str) -> ChunkId:
        """Return the id of its printed form; raise `ValueError` as `parse_id` does."""
        return cls(parse_id(text))

    @property
    def seconds(self) -> int:
        """Unix time of creation, by the writer's clock."""
        return int.from_bytes(self.value[:4], "big")


def _read_identity(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def machine_field() -> bytes:
    """Return 6 bytes that differ between machines, boots and containers.

    A system without these identities (macOS) gives its network address, which differs between
    machines.
    """
    facts = [
        _read_identity("/etc/machine-id"),
        _read_identity("/proc/sys/kernel/random/boot_id"),
        _read_identity("/etc/hostname"),
        os.readlink("/proc/self/ns/pid").encode() if os.path.exists("/proc/self/ns/pid") else b"",
        os.readlink("/proc/self/ns/mnt").encode() if os.path.exists("/proc/self/ns/mnt") else b"",
    ]
    if not any(facts):
        import uuid  # it takes longer than the rest of this module

        facts.append(uuid.getnode().to_bytes(6, "big"))
    return xxhash.xxh3_64_digest(b"\0".join(facts))[:6]


def draw_process_field() -> bytes:
    """Return 3 random bytes that tell the chunk ids of one process from those of others."""
    return os.urandom(3)


class ChunkIdGenerator:
    """A generator of ids that are unique and increasing in this process. Thread-safe.

    If the clock steps back, the generator keeps the greatest second seen. If a second uses up its
    2^24 counts, the generator borrows the next one.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        machine: bytes | None = None,
        process: bytes | None = None,
    ) -> None:
        """Create it. `process` are the 3 bytes of the process field until the next fork.

        No other generator of the machine may have them. By default they are drawn.
        """
        self._clock = clock
        self._given = process
        self._machine = machine_field() if machine is None else machine
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        """Draw the process field; called at first and in a forked child."""
        self._lock = threading.Lock()
        self._process, self._given = self._given or draw_process_field(), None
        self._seconds = 0
        self._counter = 0

    def next(self) -> ChunkId:
        """Return the next id."""
        with self._lock:
            now = int(self._clock())
            if now > self._seconds:
                self._seconds, self._counter = now, 0
            elif self._counter == COUNTER_LIMIT:
                self._seconds, self._counter = self._seconds + 1, 0
            counter, self._counter = self._counter, self._counter + 1
            return ChunkId(
                self._seconds.to_bytes(4, "big")
                + self._machine
                + self._process
                + counter.to_bytes(3, "big")
            )
