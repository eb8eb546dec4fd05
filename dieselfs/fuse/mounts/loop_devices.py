"""Loop devices: block devices over files, for kernels that mount EROFS from block devices only.

A device is configured in one step (LOOP_CONFIGURE, Linux 5.8), read-only, and the kernel frees it
when its last user has closed it: a mount is such a user, so a crash leaves nothing to clean up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError

CONTROL: Final = "/dev/loop-control"
_GET_FREE: Final = 0x4C82
_CONFIGURE: Final = 0x4C0A
_READ_ONLY, _AUTOCLEAR, _DIRECT_IO = 1, 4, 16
# struct loop_config: fd, block_size, then loop_info64 (five u64, four u32 with lo_flags last, two
# names of 64 bytes, a key of 32, two u64), then eight reserved u64.
_CONFIG: Final = struct.Struct("=II 40x 12x I 64s 112x 64x")
_BLOCK_BYTES: Final = 4096
_ATTEMPTS: Final = 32
"""The attempts: between GET_FREE and CONFIGURE another process may take the device."""
_SYS_BLOCK: Final = Path("/sys/dev/block")
_DELETED: Final = " (deleted)"


def attach_loop(fd: int, *, direct_io: bool) -> tuple[str, int]:
    """Return the path and a descriptor of a read-only loop device over the file that `fd` has open.

    The device ends when the descriptor is closed and no mount uses it. `direct_io` bypasses the
    file's page cache. Raises `MountError`.
    """
    for _ in range(_ATTEMPTS):
        path = f"/dev/loop{_free_number()}"
        device = _opened(path)
        try:
            _configure(device, fd, direct_io)
        except OSError as error:
            os.close(device)
            if error.errno != errno.EBUSY:
                raise MountError(f"{path} cannot be set up: {error.strerror}") from error
        except BaseException:
            os.close(device)
            raise
        else:
            return path, device
    raise MountError("no loop device is free: other processes take them", "try again")


def backing_file(major: int, minor: int) -> Path | None:
    """Return the file behind a loop device, by its path at the time; None for any other device.

    A deleted file has the path that it had. The path is the kernel's text; another file may have it
    by now.
    """
    try:
        text = (_SYS_BLOCK / f"{major}:{minor}" / "loop" / "backing_file").read_bytes()
    except OSError:
        return None
    shown = os.fsdecode(text.removesuffix(b"\n"))
    return Path(shown.removesuffix(_DELETED)) if shown else None


def _free_number() -> int:
    try:
        control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(
            f"loop devices are not available: {CONTROL}: {error.strerror}",
            "load the module loop; in a container, mount on the host or use --front fuse",
        ) from error
    try:
        return fcntl.ioctl(control, _GET_FREE)
    except OSError as error:
        raise MountError(f"no loop device is free: {error.strerror}") from error
    finally:
        os.close(control)


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(
            f"{path} cannot be opened: {error.strerror}",
            "in a container, mount on the host or use --front fuse",
        ) from error


def _configure(device: int, fd: int, direct_io: bool) -> None:
    flags = _READ_ONLY | _AUTOCLEAR | (_DIRECT_IO if direct_io else 0)
    name = os.readlink(f"/proc/self/fd/{fd}").encode(errors="surrogateescape")[:63]
    fcntl.ioctl(device, _CONFIGURE, _CONFIG.pack(fd, _BLOCK_BYTES, flags, name))
