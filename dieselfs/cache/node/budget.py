"""The memory budget of a task that was given none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dieselfs.cache.node.task_folder import memory_root
from dieselfs.cache.ports.free_memory import free_memory_bytes

SHARE_OF_FREE_MEMORY: Final = 1 / 4
"""The page cache and the training processes need the rest."""
SHARE_OF_FILE_SYSTEM: Final = 0.9
"""The part of the tmpfs that a task may take.

PyTorch's workers pass batches through /dev/shm too, and that of a container may have no more than
64 MB.
"""


def default_budget_bytes(task_folder: Path | None = None) -> int:
    """Return a quarter of the free memory, but at most 90 % of the free space of the tmpfs.

    The cache blocks that a task already has there count as free. So the master that follows a dead
    one has the same budget.
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
