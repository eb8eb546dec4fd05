"""The lister itself, a program of its own: lists the directories that it is told of, for what that leaves in the kernel.
`python -I -S lister_process.py MOUNTPOINT`

Reads paths relative to the mountpoint from stdin, each ended by a NUL, and writes a byte for each when it has been listed, or could
not be. Ends with its stdin, or when the mount has died. Holds nothing in the mount while it waits. Why: see `dieselfs.fuse.lister`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

_libc = ctypes.CDLL(None, use_errno=True)
_PIECE_BYTES = 1 << 18  # the larger, the fewer requests
_GONE = (errno.ENOTCONN, errno.ECONNABORTED)


def main() -> int:
    with open("/proc/self/comm", "w") as name:
        name.write("dlcmd-lister")
    mountpoint = os.fsencode(sys.argv[1])
    piece = ctypes.create_string_buffer(_PIECE_BYTES)
    rest = b""
    while read := os.read(0, 1 << 16):
        *paths, rest = (rest + read).split(b"\0")
        for path in paths:
            if _list(os.path.join(mountpoint, path), piece) in _GONE:
                return 0
            try:
                os.write(1, b".")
            except BrokenPipeError:  # who asked has been killed
                return 0
    return 0


def _list(path: bytes, piece: ctypes.Array[ctypes.c_char]) -> int:
    """Without making anything of the names. Returns an errno."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return error.errno or 0
    try:
        while (size := _libc.getdents64(directory, piece, _PIECE_BYTES)) > 0:
            pass
        return ctypes.get_errno() if size < 0 else 0
    finally:
        os.close(directory)


if __name__ == "__main__":
    sys.exit(main())
