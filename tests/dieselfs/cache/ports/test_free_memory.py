"""Free memory: the machine's, and what a control group leaves of it."""

from pathlib import Path

import pytest

from dieselfs.cache.ports import free_memory
from dieselfs.cache.ports.free_memory import (
    UNLIMITED,
    free_memory_bytes,
    usable_memory_bytes,
)

MIB = 1 << 20
VERSIONS = [free_memory._VERSION_1, free_memory._VERSION_2]


def meminfo(name: str) -> int:
    [line] = [
        ln for ln in Path("/proc/meminfo").read_text().splitlines() if ln.startswith(f"{name}:")
    ]
    return int(line.split()[1]) * 1024


def test_it_is_some_and_not_more_than_there_is() -> None:
    assert 0 < free_memory_bytes() <= meminfo("MemTotal")


def test_the_machines_memory_bounds_what_groups_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "_left_in_groups", lambda: [UNLIMITED])
    everything = free_memory_bytes()
    assert abs(everything - meminfo("MemAvailable")) < 1 << 30
    monkeypatch.setattr(free_memory, "_left_in_groups", lambda: [5 * MIB, 3 * MIB, 4 * MIB])
    assert free_memory_bytes() == 3 * MIB


def test_this_process_is_in_groups_that_can_be_asked() -> None:
    assert all(0 <= left <= 1 << 63 for left in free_memory._left_in_groups())


@pytest.mark.parametrize("names", VERSIONS)
def test_a_group_leaves_its_limit_without_what_is_used_and_not_given_back_first(
    tmp_path: Path, names: free_memory._Names
) -> None:
    (tmp_path / names.limit).write_text(f"{100 * MIB}\n")
    (tmp_path / names.used).write_text(f"{70 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"other 1\n{names.inactive_file} {20 * MIB}\nlast 3\n")
    assert free_memory._left_in(tmp_path, names) == 50 * MIB
    (tmp_path / "memory.stat").write_text("other 1\n")
    assert free_memory._left_in(tmp_path, names) == 30 * MIB
    (tmp_path / names.used).write_text(f"{101 * MIB}\n")
    assert free_memory._left_in(tmp_path, names) == 0


@pytest.mark.parametrize("names", VERSIONS)
@pytest.mark.parametrize("limit", [None, "max", "", "nonsense"])
def test_a_group_that_says_no_limit_has_none(
    tmp_path: Path, names: free_memory._Names, limit: str | None
) -> None:
    if limit is not None:
        (tmp_path / names.limit).write_text(f"{limit}\n")
    assert free_memory._left_in(tmp_path, names) == UNLIMITED


@pytest.mark.parametrize("names", VERSIONS)
def test_the_least_limit_of_machine_and_groups_is_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: free_memory._Names
) -> None:
    groups = [tmp_path / "inner", tmp_path / "outer", tmp_path / "none"]
    monkeypatch.setattr(free_memory, "_groups", lambda: [(folder, names) for folder in groups])
    assert usable_memory_bytes() == meminfo("MemTotal")
    for folder, limit in zip(groups, (f"{9 * MIB}\n", f"{5 * MIB}\n", "max\n"), strict=True):
        folder.mkdir()
        (folder / names.limit).write_text(limit)
    assert usable_memory_bytes() == 5 * MIB
