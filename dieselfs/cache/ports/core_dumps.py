"""Prevention of core files of a process that holds a secret.

A core file would contain passwords of stores and indexes, and files of the dataset.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys
from typing import Final

_log = logging.getLogger(__name__)
_PR_SET_DUMPABLE: Final = 4


def prevent_core_dumps() -> None:
    """Prevent core files of this process; the size limit also applies to its children.

    Other processes of the same user cannot trace this process any more either: prctl(2).
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    if sys.platform != "linux":
        return
    # A core_pattern that names a program ignores the limit.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        _log.warning("cannot disable core files: %s", os.strerror(ctypes.get_errno()))
