"""A process that holds a secret leaves no core file: passwords of stores and indexes would be in it, and files of the dataset."""

from __future__ import annotations

import ctypes
import logging
import os
import resource
from typing import Final

_log = logging.getLogger(__name__)
_PR_SET_DUMPABLE: Final = 4


def prevent_core_dumps() -> None:
    """For this process, and for the size limit also its children. Other processes of the same user can't trace it any more either: prctl(2)."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    # A core_pattern that names a program ignores the limit.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        _log.warning("core files can't be prevented: %s", os.strerror(ctypes.get_errno()))
