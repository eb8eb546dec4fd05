"""Node memory of its own: in the usual folder masters of others sweep, and their jobs are seen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from dieselfs.cache.node.task_folder import VARIABLE


@contextmanager
def own_node_memory() -> Iterator[Path]:
    """Have this process, and those that it starts, use a folder that is removed afterwards."""
    with (
        tempfile.TemporaryDirectory(
            prefix="dieselfs-test-", dir="/dev/shm", ignore_cleanup_errors=True
        ) as folder,
        patch.dict(os.environ, {VARIABLE: folder}),
    ):
        yield Path(folder)
