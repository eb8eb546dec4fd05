"""`mount -t dieselfs` and fstab lines: mount(8) runs /sbin/mount.dieselfs, a link to `dlcmd`, as

    mount.dieselfs SOURCE MOUNTPOINT [-sfnv] [-N namespace] [-o options] [-t type.subtype]

whose one-letter options are mount's own, not ours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

HELPER_NAMES: Final = ("mount.dieselfs", "mount.fuse.dieselfs")
_WITH_VALUE: Final = ("-N", "-t")


def is_mount_helper(program: str) -> bool:
    return os.path.basename(program) in HELPER_NAMES


def as_dlcmd(arguments: Sequence[str]) -> list[str] | None:
    """The arguments for `dlcmd`; None if mount(8) only asks whether it would work (its -f, "fake")."""
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
