"""A program that touches files of a mount for the effect in the kernel.

It is run as `python -I -S page_helper_process.py MOUNTPOINT READAHEAD_BYTES`. It reads batches from
stdin: a letter, W to load the files' pages, D to drop them or L to look the files up, the length of
the rest in 4 bytes (little endian), and paths relative to the mountpoint, each ended by a NUL. For
each finished batch it writes a byte, which ignores missing files: `.`, or `-` if one could not be
loaded. It ends with its stdin, or when the mount has died. It has nothing in the mount open while
it waits. `dieselfs.fuse.pages.page_helper` gives the reasons.
"""

from __future__ import annotations

import errno
import os
import sys

_HEADER_BYTES = 5
_GONE = (errno.ENOTCONN, errno.ECONNABORTED)
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_OPEN_FILES = 64
"""Files open at a time: enough to have many requests under way."""


def main() -> int:
    """Serve batches from stdin; return the exit status."""
    with open("/proc/self/comm", "w") as name:
        name.write("dlcmd-pages")
    mountpoint, readahead_bytes = os.fsencode(sys.argv[1]), int(sys.argv[2])
    actions = {
        ord("W"): lambda paths: _load(paths, readahead_bytes),
        ord("D"): _drop,
        ord("L"): _look_up,
    }
    while header := _read(_HEADER_BYTES):
        paths = _read(int.from_bytes(header[1:], "little")).split(b"\0")
        paths.pop()
        done = False
        try:
            os.chdir(mountpoint)
            done = actions[header[0]](paths)
        except OSError as error:
            if error.errno in _GONE:
                return 0
        finally:
            os.chdir("/")
        try:
            os.write(1, b"." if done else b"-")
        except BrokenPipeError:  # the reader was killed meanwhile
            return 0
    return 0


def _read(size: int) -> bytes:
    """Read all of it; b"" at the end."""
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            return b""
        data += part
    return data


def _open(path: bytes) -> int:
    """Open the file; -1 if that fails."""
    try:
        return os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in _GONE:
            raise
        return -1


def _load(paths: list[bytes], step: int) -> bool:
    done = True
    for first in range(0, len(paths), _OPEN_FILES):
        files = [file for path in paths[first : first + _OPEN_FILES] if (file := _open(path)) >= 0]
        try:
            sizes = [_advise(file, step) for file in files]
            for file, size in zip(files, sizes, strict=True):
                done &= _arrives(file, size)
        finally:
            for file in files:
                os.close(file)
    return done


def _advise(file: int, step: int) -> int:
    """Have the file read, in steps of what the kernel reads for one advice; return its size."""
    size = os.fstat(file).st_size
    for at in range(0, size, step):
        os.posix_fadvise(file, at, min(step, size - at), os.POSIX_FADV_WILLNEED)
    return size


def _arrives(file: int, size: int) -> bool:
    """Wait for the last page."""
    try:
        return not size or bool(os.pread(file, 1, size - 1))
    except OSError as error:
        if error.errno in _GONE:
            raise
        return False


def _drop(paths: list[bytes]) -> bool:
    open_, advise, close = _open, os.posix_fadvise, os.close
    dont_need = os.POSIX_FADV_DONTNEED
    for path in paths:
        file = open_(path)
        if file >= 0:
            advise(file, 0, 0, dont_need)
            close(file)
    return True


def _look_up(paths: list[bytes]) -> bool:
    access = os.access
    for path in paths:
        access(path, os.F_OK)  # a walk to the file, and nothing else
    return True


if __name__ == "__main__":
    sys.exit(main())
