"""The helper processes that are masters of clients' tasks."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.eventually import eventually
from tests.mount.mounting import is_alive


def helpers_of(task: str) -> list[int]:
    """Processes that listen for members of the task."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if b"dieselfs.cache.task.master_process" in command and is_alive(int(process.name)):
                log = (process / "fd" / "2").readlink()
                if task in str(log):
                    found.append(int(process.name))
        except OSError:
            continue
    return found


def end_helpers(task: str) -> None:
    """End those that would linger for 5 s."""
    for helper in helpers_of(task):
        with suppress(ProcessLookupError):  # its end may be under way
            os.kill(helper, signal.SIGTERM)
    eventually(lambda: not helpers_of(task), "the end of the helper")
