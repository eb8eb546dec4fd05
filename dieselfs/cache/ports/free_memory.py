"""The memory of the machine and what is free of it, or what control groups allow and leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class _Names:
    """The files of a control group, and a line of memory.stat.

    The line counts the pages that the kernel evicts first when memory is short.
    """

    root: Path
    limit: str
    used: str
    inactive_file: str


_VERSION_1: Final = _Names(
    Path("/sys/fs/cgroup/memory"),
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)
_VERSION_2: Final = _Names(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file")


def free_memory_bytes() -> int:
    """Return how much memory can be allocated without swapping. Costs a dozen system calls."""
    return min(_of_machine("MemAvailable"), *_left_in_groups())


def usable_memory_bytes() -> int:
    """Return how much memory this process may have at most: the machine's, or a group's limit."""
    limits = (_limit_of(folder, names) for folder, names in _groups())
    return min(_of_machine("MemTotal"), UNLIMITED, *limits)


def _of_machine(field: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


def _left_in_groups() -> Iterator[int]:
    """Yield the free bytes of each control group of this process."""
    yield UNLIMITED
    for folder, names in _groups():
        yield _left_in(folder, names)


def _groups() -> Iterator[tuple[Path, _Names]]:
    """Yield each control group of this process: its own and those above."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names = _VERSION_1 if controllers else _VERSION_2
        group = names.root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(names.root):
                yield folder, names


def _limit_of(group: Path, names: _Names) -> int:
    try:
        return int((group / names.limit).read_text())
    except (OSError, ValueError):  # "max", or a container's own view begins higher up
        return UNLIMITED


def _left_in(group: Path, names: _Names) -> int:
    try:
        limit = (group / names.limit).read_text().strip()
        if limit == "max":
            return UNLIMITED
        used = int((group / names.used).read_text())
        statistics = dict(
            line.split(maxsplit=1) for line in (group / "memory.stat").read_text().splitlines()
        )
        return max(0, int(limit) - used + int(statistics.get(names.inactive_file, 0)))
    except (OSError, ValueError):
        return UNLIMITED  # missing or not readable: a container's own view begins higher up
