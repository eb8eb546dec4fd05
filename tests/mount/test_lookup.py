"""lookup: what is there, what is not, and names the kernel may remember as absent."""

import errno
import os
from pathlib import Path

import pytest

from tests.mount.mounting import Mount, both_fronts

pytestmark = both_fronts


def errno_of_stat(path: bytes | os.PathLike[str]) -> int:
    with pytest.raises(OSError) as raised:
        os.stat(path)
    assert raised.value.errno is not None
    return raised.value.errno


def test_absent_names_are_not_found(sample_mount: Mount) -> None:
    assert errno_of_stat(sample_mount.path / "nothing") == errno.ENOENT
    assert errno_of_stat(sample_mount.path / "class" / "nothing") == errno.ENOENT
    assert errno_of_stat(sample_mount.path / "class" / "nothing" / "below") == errno.ENOENT


def test_an_absent_name_below_the_root_is_asked_for_once(small_mount: Mount) -> None:
    path = small_mount.path / "d0" / "absent"
    assert errno_of_stat(path) == errno.ENOENT
    before = small_mount.statistics()["requests"]["lookup"]
    for _ in range(100):
        assert errno_of_stat(path) == errno.ENOENT
    assert small_mount.statistics()["requests"]["lookup"] - before < 20


def test_names_make_no_request_before_erofs(kind: str, small_mount: Mount) -> None:
    before = small_mount.statistics()["requests"]
    assert errno_of_stat(small_mount.path / "d0" / "absent") == errno.ENOENT
    assert sum(len(files) for _, _, files in os.walk(small_mount.path)) >= 101
    after = small_mount.statistics()["requests"]
    asked = sum(after.values()) - sum(before.values())
    assert asked > 5 if kind == "fuse" else asked == 0


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_the_daemon_does_not_grow_with_the_names_looked_up(small_mount: Mount) -> None:
    def look_up(kind: str, count: int) -> None:
        for number in range(count):
            assert not os.path.exists(small_mount.path / "d0" / f"{kind}{number}")

    look_up("first", 1000)
    server = small_mount.server_pid
    before = resident_bytes(server)
    look_up("second", 20_000)
    assert resident_bytes(server) - before < 4 << 20, "200 bytes a name would be seen"


def test_a_file_is_no_directory(sample_mount: Mount) -> None:
    assert errno_of_stat(sample_mount.path / "nanoseconds" / "below") == errno.ENOTDIR


def test_a_name_above_255_bytes_is_too_long(sample_mount: Mount) -> None:
    assert errno_of_stat(sample_mount.path / ("x" * 256)) == errno.ENAMETOOLONG


def test_case_matters(sample_mount: Mount) -> None:
    assert errno_of_stat(sample_mount.path / "CLASS") == errno.ENOENT


def test_dot_and_dot_dot_lead_where_they_should(sample_mount: Mount) -> None:
    assert os.path.samefile(
        sample_mount.path / "class" / "." / ".." / "class", sample_mount.path / "class"
    )
