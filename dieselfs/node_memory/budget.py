"""How much of a node's memory a task takes if nobody says how much."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dieselfs.free_memory import free_memory_bytes
from dieselfs.node_memory.task_folder import memory_root

SHARE_OF_FREE_MEMORY: Final = 1 / 4
"""The page cache and the training processes need the rest."""
SHARE_OF_FILE_SYSTEM: Final = 0.9
"""PyTorch's workers pass batches through /dev/shm too, and a container's may have no more than 64 MB."""


def default_budget_bytes(task_folder: Path | None = None) -> int:
    """A quarter of the memory that is free, but no more than 90% of what the tmpfs has free.

    The pieces that a task has there already count as free: who follows a dead master has the same budget.
    """
    there = 0
    if task_folder is not None:
        there = _bytes_in(task_folder / "chunks") + _bytes_in(task_folder / "heads")
    found = os.statvfs(task_folder or memory_root())
    budget = int((free_memory_bytes() + there) * SHARE_OF_FREE_MEMORY)
    if found.f_blocks == 0:  # a tmpfs without a limit of its own: tmpfs(5)
        return budget
    return min(budget, int((found.f_bavail * found.f_frsize + there) * SHARE_OF_FILE_SYSTEM))


def _bytes_in(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except FileNotFoundError:
        return 0
