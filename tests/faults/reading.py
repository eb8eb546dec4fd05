"""Reads files of a mount and checks every byte: `python reading.py MOUNT BEATS PATH…`, a program of
its own that starts in milliseconds.

Prints a byte to BEATS for each file read. Ends with 0, or with a word about the first file that was
not what `content` says.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GONE = (errno.EIO, errno.ENOTCONN, errno.ECONNABORTED)
"""The errors of a mount that nobody serves any more."""


def content(path: str, size: int = 8_000) -> bytes:
    return random.Random(path).randbytes(size)


def main() -> int:
    mount, beats, *paths = sys.argv[1:]
    log = os.open(beats, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for path in paths:
        try:
            with open(os.path.join(mount, path), "rb") as file:
                data = file.read()
        except OSError as error:
            print(f"{path}: {error.strerror}")
            return 5
        if data != content(path):
            print(f"{path}: wrong bytes")
            return 7
        os.write(log, b".")
    return 0


@dataclass(slots=True)
class Reader:
    process: subprocess.Popen[str]
    beats_file: Path

    @property
    def beats(self) -> int:
        return self.beats_file.stat().st_size if self.beats_file.exists() else 0

    def end(self, timeout_s: float) -> str:
        """What it says of a failure; nothing if there is none."""
        said, _ = self.process.communicate(timeout=timeout_s)
        return said if self.process.returncode else ""

    def end_without_mount(self, timeout_s: float) -> str:
        """What it says of a mount that is gone."""
        said = self.end(timeout_s)
        assert any(os.strerror(number) in said for number in GONE), said
        return said


def is_reading(pid: int, mount: Path) -> bool:
    """Return whether a process waits in the kernel for bytes of a file of this mount."""
    process = Path("/proc", str(pid))
    try:
        return (process / "syscall").read_text().split()[0] == "0" and any(
            link.readlink().is_relative_to(mount) for link in (process / "fd").iterdir()
        )
    except OSError:
        return False


@contextmanager
def readers(mount: Path, folder: Path, count: int, paths: Sequence[str]) -> Iterator[list[Reader]]:
    """`count` processes that read; killed at the end if need be."""
    folder.mkdir(exist_ok=True)
    found: list[Reader] = []
    try:
        for number in range(count):
            beats = folder / f"beats-{number}-{len(list(folder.iterdir()))}"
            command = [sys.executable, "-S", "-E", __file__, str(mount), str(beats), *paths]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            found.append(Reader(process, beats))
        yield found
    finally:
        for reader in found:
            reader.process.kill()
            reader.process.communicate()


if __name__ == "__main__":
    sys.exit(main())
