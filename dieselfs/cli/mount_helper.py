"""The arguments of `mount -t dieselfs` and of fstab lines.

mount(8) runs /sbin/mount.dieselfs, a link to `dlcmd`, as

    mount.dieselfs SOURCE MOUNTPOINT [-sfnv] [-N namespace] [-o options] [-t type.subtype]

The one-letter options are those of mount(8), not of `dlcmd`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

HELPER_NAMES: Final = ("mount.dieselfs", "mount.fuse.dieselfs")
_WITH_VALUE: Final = ("-N", "-t")


def is_mount_helper(program: str) -> bool:
    """Return True if mount(8) has started `program`, by its name."""
    return os.path.basename(program) in HELPER_NAMES


def as_dlcmd(arguments: Sequence[str]) -> list[str] | None:
    """Return the arguments for `dlcmd`.

    None means that mount(8) only asks if it would work (its option -f, "fake").
    """
    command = ["mount"]
    remaining = iter(arguments)
    for argument in remaining:
        if argument in _WITH_VALUE:
            next(remaining, None)
        elif argument == "-o":
            command += ["-o", next(remaining, "")]
        elif argument.startswith("-") and set(argument[1:]) <= set("sfnv") and argument != "-":
            if "f" in argument:
                return None
        else:
            command.append(argument)
    return command
