"""Touches files of a mount for what that does in the kernel, a program of its own.
`python -I -S kernel_pages_process.py MOUNTPOINT`

Reads batches from stdin: a letter, D to drop the files' pages or L to look the files up, the length of what follows in 4 bytes (little
endian), and paths relative to the mountpoint, each ended by a NUL. Writes a byte for each batch when it is done, as far as there are such files. Ends
with its stdin, or when the mount has died. Holds nothing in the mount while it waits. Why: see `dieselfs.fuse.kernel_pages`.
"""

from __future__ import annotations

import errno
import os
import sys

_HEADER_BYTES = 5
_GONE = (errno.ENOTCONN, errno.ECONNABORTED)


def main() -> int:
    with open("/proc/self/comm", "w") as name:
        name.write("dlcmd-pages")
    mountpoint = os.fsencode(sys.argv[1])
    actions = {ord("D"): _drop, ord("L"): _look_up}
    while header := _read(_HEADER_BYTES):
        paths = _read(int.from_bytes(header[1:], "little")).split(b"\0")
        paths.pop()
        try:
            os.chdir(mountpoint)
            actions[header[0]](paths)
        except OSError as error:
            if error.errno in _GONE:
                return 0
        finally:
            os.chdir("/")
        os.write(1, b".")
    return 0


def _read(size: int) -> bytes:
    """All of it, or b"" at the end."""
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            return b""
        data += piece
    return data


def _drop(paths: list[bytes]) -> None:
    open_, advise, close = os.open, os.posix_fadvise, os.close
    flags, dont_need = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, os.POSIX_FADV_DONTNEED
    for path in paths:
        try:
            file = open_(path, flags)
        except OSError as error:
            if error.errno in _GONE:
                raise
            continue
        advise(file, 0, 0, dont_need)
        close(file)


def _look_up(paths: list[bytes]) -> None:
    access = os.access
    for path in paths:
        access(path, os.F_OK)  # a walk to the file, and nothing else


if __name__ == "__main__":
    sys.exit(main())
