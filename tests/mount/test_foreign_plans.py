"""Plans of readers that cannot write into the task's folder: they are told through the mount, and
the reader is read ahead for like any other.
"""

import errno
import json
import os
import signal
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from dieselfs.prefetch import announcement
from dieselfs.prefetch.announcement import announce
from dieselfs.prefetch.foreign_plan import TOLD_EVERY, ForeignPlanFile
from dieselfs.prefetch.plan_file import ReadingPlan
from metadata.snapshot import Snapshot
from tests.eventually import PATIENCE_S, eventually
from tests.forked_programs import ForkedProgram, Forker
from tests.mount.conftest import FOR_ALL
from tests.mount.mounting import Mount, both_fronts, is_alive, mounted
from tests.mount.packing import PackedDataset
from tests.mount.test_plans import content, pack_files

FILES = 1200
SAMPLES = 400
STRANGER = 61003
AWAY = ["--user", str(STRANGER), "--namespace"]

pytestmark = [
    both_fronts,
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users as root"),
]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    return pack_files(FILES, tmp_path_factory.mktemp("foreign"))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everyone can reach, which pytest's own are not: so nobody else can open the
    snapshot either."""
    with tempfile.TemporaryDirectory(prefix="dieselfs-foreign-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def mount(packed: PackedDataset, open_folder: Path) -> Iterator[Mount]:
    with mounted(packed, open_folder, *FOR_ALL) as running:
        yield running


class Reader:
    """A `foreign_reader`."""

    def __init__(self, process: ForkedProgram, questions: IO[str], answers: IO[str]) -> None:
        self.process = process
        self._questions, self._answers = questions, answers
        self.begun = self.said()

    def said(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self._answers.readline())
        for path, checksum in said["read"]:
            assert zlib.crc32(content(path)) == checksum, path
        return said

    def ask(self, samples: int) -> None:
        self._questions.write(f"{samples}\n")
        self._questions.flush()

    def read(self, samples: int) -> int:
        self.ask(samples)
        return len(self.said()["read"])


READERS = Forker("tests.mount.foreign_reader")
"""PyTorch needs more than a second of CPU time to be imported."""


@pytest.fixture(scope="module", autouse=True)
def readers() -> Iterator[None]:
    yield
    READERS.close()


@contextmanager
def reader(mount: Mount, *options: str) -> Iterator[Reader]:
    args = [sys.executable, "-m", "tests.mount.foreign_reader", str(mount.path), *options]
    stdin, questions = os.pipe()
    answers, stdout = os.pipe()
    with open(questions, "w") as writer, open(answers) as lines:
        try:
            process = READERS.start(args, stdin=stdin, stdout=stdout, stderr=2, env=os.environ)
        finally:
            os.close(stdin)
            os.close(stdout)
        try:
            yield Reader(process, writer, lines)
        finally:
            # PyTorch's workers do not notice that their parent ends before they have begun.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)


def sources(mount: Mount) -> dict[str, Any]:
    found: dict[str, Any] = mount.statistics()["plan_sources"]
    return found


def kinds(mount: Mount) -> list[int]:
    """The plans that are read now: in shared memory, through the mount, from lists."""
    return [sources(mount)[name] for name in ("shared_memory", "mount", "lists")]


def no_plan_is_left(mount: Mount) -> bool:
    return kinds(mount) == [0, 0, 0] and sources(mount)["foreign"]["bytes"] == 0


@pytest.mark.parametrize(
    "options",
    [
        ["--user", str(STRANGER)],
        ["--namespace"],
        [*AWAY, "--workers", "2"],
        [*AWAY, "--read-only"],
    ],
    ids=["another user", "another namespace", "both", "both, read-only"],
)
def test_a_reader_elsewhere_is_read_ahead_for(mount: Mount, options: Sequence[str]) -> None:
    with reader(mount, *options) as away:
        assert (away.begun["samples"], away.begun["warnings"]) == (SAMPLES, [])
        assert kinds(mount) == [0, 1, 0]
        eventually(lambda: mount.statistics()["plan"]["fetched"] > 0, "a chunk ahead")
        assert mount.statistics()["plan"]["files"] == SAMPLES
        assert away.read(SAMPLES) + 4 == SAMPLES
        away.ask(0)
        assert away.process.wait(PATIENCE_S) == 0
    eventually(lambda: no_plan_is_left(mount), "the end of the plan")
    assert sources(mount)["foreign"]["told"] == 2  # this epoch's and the next one's


def test_the_mounts_user_goes_the_quick_way(mount: Mount) -> None:
    with reader(mount) as at_home:
        assert at_home.begun["warnings"] == []
        assert kinds(mount) == [1, 0, 0]
        assert sources(mount)["foreign"] == {"told": 0, "refused": 0, "bytes": 0, "requests": 0}


def test_the_plan_of_a_killed_reader_goes(mount: Mount) -> None:
    """With it go its workers, which have the file open too."""
    with reader(mount, *AWAY, "--workers", "2") as away:
        assert kinds(mount) == [0, 1, 0]
        assert away.read(8), "both workers have begun, and notice their parent's end"
        away.process.send_signal(signal.SIGKILL)
        away.process.wait(PATIENCE_S)
        eventually(lambda: no_plan_is_left(mount), "the end of the plan")


def plan_of(packed: PackedDataset, files: int = FILES, snapshot_id: str = "") -> ReadingPlan:
    with Snapshot.open(packed.snapshot) as snapshot:
        order = np.arange(files, dtype=np.uint32)
        return ReadingPlan(snapshot_id or str(snapshot.id), order, np.array([0, files]))


def foreign(mount: Mount, plan: ReadingPlan, after: str = "") -> ForeignPlanFile:
    def is_taken(name: str) -> bool:
        return bool(announcement._answer(mount.path, name).get("accepted"))

    return ForeignPlanFile(mount.path / ".dieselfs" / "plan", plan, after, is_taken)


def followed(mount: Mount, plan: ReadingPlan, position: int = 0) -> ForeignPlanFile:
    told = foreign(mount, plan)
    told.tell(position)
    assert announcement._answer(mount.path, told.name) == {"accepted": True}
    return told


def test_its_position_is_a_request_for_a_thousand_files(
    mount: Mount, packed: PackedDataset
) -> None:
    told = followed(mount, plan_of(packed))
    before = sources(mount)["foreign"]["requests"]
    for position in range(FILES):
        told.position = position
    assert sources(mount)["foreign"]["requests"] == before + FILES // TOLD_EVERY
    told.remove()
    eventually(lambda: no_plan_is_left(mount), "the end of the plan")


@pytest.mark.parametrize("way", ["killed", "upgraded"])
def test_the_next_server_is_told_the_plan_again(
    mount: Mount, packed: PackedDataset, way: str
) -> None:
    told = followed(mount, plan_of(packed))
    if way == "killed":
        mount.kill_server()
    else:
        before = mount.server_pid
        os.kill(mount.pid, signal.SIGUSR2)
        mount.await_server_after(before)
        eventually(lambda: not is_alive(before), "the end of a server that takes positions still")
    eventually(lambda: kinds(mount) == [0, 0, 0], "a server without the plan")
    told.position = TOLD_EVERY
    eventually(lambda: kinds(mount) == [0, 1, 0], "the plan, told again")
    assert sources(mount)["foreign"]["told"] == 1
    assert told.position == TOLD_EVERY
    told.remove()
    eventually(lambda: no_plan_is_left(mount), "the end of the plan")


def test_a_mount_that_takes_no_foreign_plans(
    packed: PackedDataset, open_folder: Path, kind: str
) -> None:
    with mounted(packed, open_folder, *FOR_ALL, "--no-foreign-plans") as mount:
        with reader(mount, *AWAY) as away:
            [warning] = away.begun["warnings"]
            assert "--no-foreign-plans" in warning
            assert kinds(mount) == [0, 0, 0]
            assert away.read(SAMPLES) + 4 == SAMPLES
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):
            with pytest.raises(PermissionError):
                os.open(mount.path / ".dieselfs/plan/0123456789abcdef.plan", flags)
        with reader(mount) as at_home:
            assert at_home.begun["warnings"] == []
            assert kinds(mount) == [1, 0, 0]


def test_a_plan_of_another_snapshot_is_an_error_that_says_so(
    mount: Mount, packed: PackedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = plan_of(packed, snapshot_id="99-0123456789abcdef")
    with pytest.raises(OSError) as raised:
        foreign(mount, other).tell(0)
    assert raised.value.errno == errno.ESTALE
    assert "it is of snapshot '99-0123456789abcdef'" in mount.log

    def refuse(*arguments: object, **keywords: object) -> None:
        raise PermissionError(errno.EACCES, "as for another user")

    monkeypatch.setattr(announcement, "write_plan", refuse)
    monkeypatch.setattr(announcement, "_warned", set())
    with pytest.warns(RuntimeWarning, match="another snapshot: start again"):
        assert announce(mount.path, other) is None
    with warnings.catch_warnings(record=True) as again:
        assert announce(mount.path, other) is None
    assert again == []
    assert sources(mount)["foreign"]["refused"] == 3


def test_a_plan_that_needs_too_much_memory_says_what_fits(
    packed: PackedDataset, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise PermissionError(errno.EACCES, "as for another user")

    monkeypatch.setattr(announcement, "write_plan", refuse)
    monkeypatch.setattr(announcement, "_warned", set())
    with mounted(packed, open_folder, "--cache-bytes", str(1 << 20)) as mount:
        with pytest.warns(RuntimeWarning, match="this order needs .* group size of"):
            assert announce(mount.path, plan_of(packed)) is None
        eventually(lambda: no_plan_is_left(mount), "the end of the plan")


def test_what_is_no_plan_is_an_error_for_its_writer(mount: Mount, packed: PackedDataset) -> None:
    damaged = plan_of(packed)
    damaged.inodes[7] = FILES
    with pytest.raises(OSError) as raised:
        foreign(mount, damaged).tell(0)
    assert raised.value.errno == errno.EINVAL
    assert "it names files that the snapshot does not have" in mount.log
    assert no_plan_is_left(mount)


def test_many_hostile_writers_cost_nothing_but_their_own_plans(
    mount: Mount, packed: PackedDataset
) -> None:
    """They keep files open, write half a plan, and write what they like; the mount serves on."""
    mine = followed(mount, plan_of(packed))
    folder = mount.path / ".dieselfs" / "plan"
    held = []
    try:
        for number in range(300):
            half = foreign(mount, plan_of(packed))
            with pytest.raises(OSError):
                foreign(mount, plan_of(packed, snapshot_id=f"{number}-x")).tell(0)
            held.append(os.open(folder / half.name, os.O_RDONLY))
        assert kinds(mount) == [0, 1, 0]
        assert (mount.path / "c00/00000").read_bytes() == content("c00/00000")
        mine.position = FILES
    finally:
        for fd in held:
            os.close(fd)
        mine.remove()
    eventually(lambda: no_plan_is_left(mount), "the end of all plans")


def test_everything_else_in_the_control_directory_is_read_only(mount: Mount, kind: str) -> None:
    control = mount.path / ".dieselfs"
    attempts: list[Callable[[], object]] = [
        lambda: os.open(control / "new", os.O_WRONLY | os.O_CREAT),
        lambda: os.open(control / "stats.json", os.O_WRONLY),
        lambda: os.open(control / "stats.json", os.O_RDWR | os.O_TRUNC),
        lambda: os.open(control / "plan/new", os.O_WRONLY | os.O_CREAT),
        lambda: os.open(control / "shuffle/seed=1", os.O_WRONLY | os.O_CREAT),
        lambda: (control / "folder").mkdir(),
        lambda: (control / "shuffle/folder").mkdir(),
        lambda: (control / "stats.json").unlink(),
        lambda: (control / "plan").rmdir(),
        lambda: (control / "stats.json").rename(control / "other"),
        lambda: (control / "link").symlink_to("stats.json"),
        lambda: (control / "hard").hardlink_to(control / "stats.json"),
        lambda: (control / "stats.json").chmod(0o666),
        lambda: os.chown(control / "stats.json", 0, 0),
        lambda: os.utime(control / "stats.json"),
        lambda: os.truncate(control / "stats.json", 0),
        lambda: os.setxattr(control / "stats.json", "user.x", b"1"),
        lambda: os.mkfifo(control / "fifo"),
    ]
    for number, attempt in enumerate(attempts):
        with pytest.raises(OSError) as raised:
            attempt()
        assert raised.value.errno == errno.EROFS, number
    assert not os.access(control / "stats.json", os.W_OK)
