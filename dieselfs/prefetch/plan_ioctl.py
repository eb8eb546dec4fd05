"""The ioctl by which a program tells a plan where it may not write: its view is read-only.

A container's volume may be read-only, and so is every mount of the front `fuse`. The kernel passes
an ioctl on nevertheless. The number of the command has the size of its argument, which is an offset
and bytes that belong there; a FUSE server gets at most 16 KiB with a request.
"""

from __future__ import annotations

import fcntl
import struct
from typing import Final

PLAN_ARGUMENT: Final = struct.Struct("=Q")
"""The offset; the bytes follow it."""
_TYPE, _NUMBER = ord("D"), 1
_WRITES: Final = 1 << 30
MAX_ARGUMENT_BYTES: Final = (1 << 14) - 8
"""14 bits of the command are the size; a multiple of 8 bytes."""


def is_plan_command(command: int) -> bool:
    """Return True if a command is this ioctl, whatever the size of its argument."""
    return command >> 30 == 1 and command & 0xFFFF == _TYPE << 8 | _NUMBER


def write_by_ioctl(fd: int, data: bytes | memoryview, start: int) -> int:
    """Hand over the first of these bytes for offset `start`; return how many. Raises `OSError`."""
    part = data[: MAX_ARGUMENT_BYTES - PLAN_ARGUMENT.size]
    argument = bytearray(PLAN_ARGUMENT.pack(start)) + part
    fcntl.ioctl(fd, _WRITES | len(argument) << 16 | _TYPE << 8 | _NUMBER, argument)
    return len(part)
