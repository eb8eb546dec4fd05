"""The racy part of the suite: the tests that wait for threads, processes, mounts and peers.

`python -m tests.racy_part` prints their files, and `scripts/test-racy.sh` repeats them. No list
names them, so that a new file of tests cannot be forgotten: a file belongs to the part if it
imports a module of `WAITING`. In `PLACES` it also does if a module that it imports, be it the
code under test or what tests share, imports one of these.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).parents[1]
WAITING: Final = {
    *("_thread", "concurrent", "multiprocessing", "select", "socket", "threading"),
    "tests.eventually",
}
PLACES: Final = (
    *("tests/chunkstore/ssd", "tests/chunkstore/stores", "tests/metadata/kv", "tests/peers"),
    *("tests/dieselfs/cache", "tests/dieselfs/fuse", "tests/dieselfs/prefetch"),
    "tests/faults/test_damaged_chunks.py",
)
_PUTS: Final = "kills puts at calls that it chooses, again and again, and waits for their ends"
LEFT_OUT: Final = {
    "tests/ceph": "needs a Ceph",
    "tests/slurm": "needs a Slurm",
    "tests/dieselfs/cli/commands/test_put.py": _PUTS,
    "tests/dieselfs/integrations": "trainings, which wait for the processes of other frameworks",
    "tests/dieselfs/fuse/pages/test_planned_pages.py": "a simulated mount has no threads",
    "tests/dieselfs/packing/test_pack.py": _PUTS,
    "tests/faults/test_many_writers.py": _PUTS,
    "tests/faults/test_puts_together.py": _PUTS,
    "tests/metadata/test_path_lookup.py": "its threads only look names up, at length",
    "tests/metadata/test_snapshot.py": "its process is one that a function is called in",
}
"""Files and folders that import what waits and do not belong to the part, with the reason."""


def racy_part() -> list[str]:
    """Return the files of the racy part, relative to the checkout."""
    files = (os.fspath(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("tests/**/test_*.py"))
    return sorted(file for file in files if _is_racy(file))


def _is_racy(file: str) -> bool:
    if _is_below(file, LEFT_OUT):
        return False
    return _waits(file) or (_is_below(file, PLACES) and any(map(_waits, _imported_files(file))))


def _is_below(file: str, places: dict[str, str] | tuple[str, ...]) -> bool:
    return any(file == place or file.startswith(f"{place}/") for place in places)


def _waits(file: str) -> bool:
    return any(
        name in WAITING or name.partition(".")[0] in WAITING for name in _imported_names(file)
    )


def _imported_files(file: str) -> Iterator[str]:
    for name in _imported_names(file):
        imported = name.replace(".", "/") + ".py"
        if (CHECKOUT / imported).exists():
            yield imported


@cache
def _imported_names(file: str) -> frozenset[str]:
    """Return the modules that a file imports, and what it imports of them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((CHECKOUT / file).read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{file}\n" for file in racy_part()))
