import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dieselfs.errors import UsageError
from dieselfs.prefetch.plan_file import FOLDER, ReadingPlan, open_plan, write_plan
from tests.open_descriptors import open_descriptors

HEADER_BYTES = 136


def plan_of(files: int = 10, groups: int = 2) -> ReadingPlan:
    inodes = np.random.default_rng(files).permutation(files).astype(np.uint32)
    start = np.linspace(0, files, groups + 1).astype(np.int64)
    return ReadingPlan("7-0123456789abcdef0123456789abcdef", inodes, start, "/tmp/ä b/7.snapshot")


@pytest.mark.parametrize(("files", "groups"), [(0, 0), (0, 1), (1, 1), (10, 3), (5000, 1)])
def test_a_plan_is_read_as_it_was_written(tmp_path: Path, files: int, groups: int) -> None:
    plan = plan_of(files, groups)
    written = write_plan(tmp_path, plan, position=files // 2, after="0123456789abcdef")
    found = open_plan(written.path)
    assert found.plan.inodes.tolist() == plan.inodes.tolist()
    assert found.plan.group_start.tolist() == plan.group_start.tolist()
    assert found.plan.snapshot_id == plan.snapshot_id
    assert found.plan.snapshot_path == plan.snapshot_path
    assert (found.id, found.after) == (written.id, "0123456789abcdef")
    assert found.position == written.position == files // 2
    assert len(found.plan) == files


def test_a_path_that_is_no_text_survives(tmp_path: Path) -> None:
    plan = plan_of()
    odd = os.fsdecode(b"/snap\xff\n")
    file = write_plan(tmp_path, ReadingPlan(plan.snapshot_id, plan.inodes, plan.group_start, odd))
    assert open_plan(file.path).plan.snapshot_path == odd


def test_other_integer_types_are_converted(tmp_path: Path) -> None:
    plan = ReadingPlan("1-a", np.arange(20)[::2], np.array([0, 10], np.int32))
    file = write_plan(tmp_path, plan)
    assert open_plan(file.path).plan.inodes.tolist() == list(range(0, 20, 2))


def test_the_file_lies_in_a_private_folder_of_the_task_alone(tmp_path: Path) -> None:
    file = write_plan(tmp_path, plan_of())
    assert os.listdir(tmp_path / FOLDER) == [file.id]
    assert (tmp_path / FOLDER).stat().st_mode & 0o777 == 0o700
    assert file.path.stat().st_size < HEADER_BYTES + 10 * 4 + 3 * 8 + 100


def test_a_position_is_seen_by_who_opened_the_file_before(tmp_path: Path) -> None:
    owner = write_plan(tmp_path, plan_of())
    prefetcher = open_plan(owner.path)
    owner.position = 7
    assert prefetcher.position == 7
    owner.remove()
    owner.position = 8
    assert prefetcher.position == 8, "the position survives the name"
    owner.remove()  # once more is no error


def test_a_position_is_seen_by_another_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dieselfs.prefetch.plan_file import open_plan\n"
        "plan = open_plan(Path(sys.argv[1])); print('ready', flush=True); sys.stdin.readline()\n"
        "print(plan.position, flush=True)"
    )
    owner = write_plan(tmp_path, plan_of(), position=1)
    with subprocess.Popen(
        [sys.executable, "-c", code, owner.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        owner.position = 1 << 40
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == f"{1 << 40}\n"


def test_a_plan_is_read_until_its_owner_removes_it(tmp_path: Path) -> None:
    owner = write_plan(tmp_path, plan_of())
    prefetcher = open_plan(owner.path)
    assert prefetcher.is_read
    assert prefetcher.is_read, "looking must not change it"
    owner.remove()
    assert not prefetcher.is_read


def test_a_plan_that_its_owner_let_go_of_is_not_read(tmp_path: Path) -> None:
    owner = write_plan(tmp_path, plan_of())
    prefetcher = open_plan(owner.path)
    del owner
    assert prefetcher.path.exists()
    assert not prefetcher.is_read


def test_a_killed_owner_is_noticed_though_its_file_stays(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from dieselfs.prefetch.plan_file import ReadingPlan, write_plan\n"
        "plan = write_plan(Path(sys.argv[1]), ReadingPlan('1-a', np.arange(4, dtype='u4'), np.array([0, 4])))\n"
        "plan.position = 3; print(plan.path, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        plan = open_plan(Path(owner.stdout.readline().rstrip("\n")))
        assert plan.is_read
        owner.kill()
    assert plan.path.exists()
    assert plan.position == 3
    assert not plan.is_read


def test_a_forked_child_keeps_the_plan_read(tmp_path: Path) -> None:
    owner = write_plan(tmp_path, plan_of())
    prefetcher = open_plan(owner.path)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        del owner
        assert prefetcher.is_read
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)
    assert not prefetcher.is_read


def changed(path: Path, at: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize(
    ("at", "content"),
    [
        (0, b"dslplan2"),
        (16, b"\xff" * 8),  # files
        (24, b"\xff" * 8),  # groups
        (24, (1 << 63).to_bytes(8, "little")),
        (32, b"\x01" + bytes(7)),  # bytes of the path
        (HEADER_BYTES, b"\x01"),  # groups do not begin with 0
        (HEADER_BYTES + 8, b"\xff"),  # nor go upwards
        (HEADER_BYTES + 16, b"\x09"),  # nor end with the files
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, at: int, content: bytes) -> None:
    file = write_plan(tmp_path, plan_of())
    changed(file.path, at, content)
    with pytest.raises(UsageError, match="is not a plan"):
        open_plan(file.path)


def test_short_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = write_plan(tmp_path, plan_of()).path
    content = path.read_bytes()
    for length in [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 24, len(content) - 1]:
        other = tmp_path / f"short-{length}"
        other.write_bytes(content[:length])
        with pytest.raises(UsageError, match="is not a plan"):
            open_plan(other)
    foreign = tmp_path / "foreign"
    foreign.write_bytes(os.urandom(4096))
    with pytest.raises(UsageError, match="is not a plan"):
        open_plan(foreign)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError):
        open_plan(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        open_plan(tmp_path / "none")


def test_no_descriptor_is_left_of_files_that_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(os.urandom(4096))
    before = open_descriptors()
    for _ in range(20):
        with pytest.raises(UsageError):
            open_plan(foreign)
    assert open_descriptors() <= before


def test_an_id_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    plan = plan_of()
    with pytest.raises(ValueError, match="too long"):
        write_plan(tmp_path, ReadingPlan("1" * 65, plan.inodes, plan.group_start))
    with pytest.raises(ValueError, match="too long"):
        write_plan(tmp_path, plan, after="a" * 33)


def test_nothing_is_left_where_there_is_no_room(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (8192, limits[1])
    )  # as a full file system: a short write
    try:
        with pytest.raises(OSError):
            write_plan(tmp_path, plan_of(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path / FOLDER) == []
