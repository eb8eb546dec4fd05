"""A mount that is refreshed again and again under readers, and refreshes that fail.

The suite refreshes some tens of times; `DIESELFS_LONG_FAULTS=1` (`make faults`) 1,000 times.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.eventually import PATIENCE_S, eventually
from tests.faults.case import Measured, fault_case
from tests.faults.flapping_store import set_mode
from tests.faults.reading import content
from tests.faults.served import NAME, Place, Served
from tests.mount.mounting import is_alive

REFRESHES = 1000 if os.environ.get("DIESELFS_LONG_FAULTS") else 20
WARM = 5
"""The refreshes after which everything that is loaded once has been loaded."""
CHUNK_BYTES = 64_000
FILES = {f"d{number % 4}/f{number:02}": content(f"f{number}", 20_000) for number in range(24)}
READERS = 2
BOUND_S = 20.0
SLACK_DESCRIPTORS = 12
SLACK_THREADS = 12
SLACK_BYTES = 8 << 20
"""The difference between two moments of one server. 20 generations of servers are 400 MB."""
PAUSE_S = 0.002
"""The pause of a reader between two reads: readers leave a processor to the refresh."""
FRONTS = ["fuse", "auto"]


@dataclass(frozen=True, slots=True)
class Held:
    """The resources of a mount's supervisor and its servers together."""

    processes: int
    descriptors: int
    threads: int
    private_bytes: int

    @classmethod
    def by(cls, mount: Served) -> Held:
        """Read it; `OSError` if a process ends meanwhile."""
        processes = [Path("/proc", str(pid)) for pid in (mount.pid, *mount.servers())]
        return cls(
            len(processes),
            sum(len(list((process / "fd").iterdir())) for process in processes),
            sum(len(list((process / "task").iterdir())) for process in processes),
            sum(private_bytes(process) for process in processes),
        )

    def __str__(self) -> str:
        mib = self.private_bytes / (1 << 20)
        return (
            f"{self.processes} processes, {self.descriptors} descriptors, "
            f"{self.threads} threads, {mib:.1f} MiB"
        )


def private_bytes(process: Path) -> int:
    """Anonymous memory that no other process shares, which a fork server's children mostly do."""
    lines = (process / "smaps_rollup").read_text().splitlines()
    [kib] = [line.split()[1] for line in lines if line.startswith("Private_Dirty:")]
    return int(kib) << 10


def settled(mount: Served) -> Held:
    """Return what the mount holds when one server is left."""

    def found() -> Held | None:
        held = Held.by(mount)
        return held if held.processes == 2 else None

    return eventually(found, "the end of older servers", ignored=OSError)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "place")
    place.make(FILES, CHUNK_BYTES).close()
    return place


@pytest.fixture(params=FRONTS)
def mount(place: Place, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    task = f"refreshes-{os.getpid()}-{request.param}"
    options = ("--task", task, "--front", request.param)
    with place.mounted(tmp_path / "mnt", *options) as mount:
        yield mount
        set_mode(place.folder, "ok")


@contextmanager
def read_meanwhile(mount: Served) -> Iterator[None]:
    """Threads read all files, and each byte and each error counts."""
    stop, wrong, reads = threading.Event(), [], [0] * READERS

    def read(number: int) -> None:
        while not stop.is_set():
            for path, data in FILES.items():
                try:
                    if (mount.path / path).read_bytes() != data:
                        wrong.append(path)
                except OSError as error:
                    wrong.append(f"{path}: {error}")
                reads[number] += 1
                if stop.wait(PAUSE_S):
                    return

    threads = [threading.Thread(target=read, args=[number]) for number in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: all(reads), "reads")
        yield
        before = list(reads)
        eventually(
            lambda: all(now > then for now, then in zip(reads, before, strict=True)), "later reads"
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert wrong == []


def refresh(place: Place, mount: Served) -> str:
    """Return what `dlcmd mount --refresh` complains of; empty if it succeeds."""
    done = place.dlcmd("mount", "--refresh", NAME, mount.path)
    assert bool(done.returncode) == bool(done.stderr.startswith("dlcmd:")), done.stderr
    return done.stderr if done.returncode else ""


def put(place: Place, number: int) -> None:
    place.make({"new": content(f"new{number}", 1000)}, CHUNK_BYTES).close()


@fault_case(
    "a mount refreshed again and again under readers, each time after a put, a file open across "
    "each refresh",
    promise="a generation that nobody has open is released as a whole: the mount's processes, "
    "descriptors, threads and memory stay; an open file keeps its bytes",
    bound_s=BOUND_S,
    check="dieselfs.fuse.supervision.served_mount:ServedMount.close=none",
)
@pytest.mark.long
@pytest.mark.timeout(240 + 4 * REFRESHES)
def test_refreshed_often(place: Place, mount: Served, measured: Measured) -> None:
    with read_meanwhile(mount):
        for number in range(WARM + REFRESHES):
            if number == WARM:
                warm = settled(mount)
            with open(mount.path / "d0/f00", "rb") as kept:
                put(place, number)
                with measured.felt():
                    assert refresh(place, mount) == ""
                    assert (mount.path / "new").read_bytes() == content(f"new{number}", 1000)
                assert kept.read() == FILES["d0/f00"]
        assert refresh(place, mount) == "", "nothing is newer"
        last = settled(mount)
    measured.note(f"{REFRESHES} refreshes: {warm}, then {last}")
    assert last.descriptors <= warm.descriptors + SLACK_DESCRIPTORS
    assert last.threads <= warm.threads + SLACK_THREADS
    assert last.private_bytes <= warm.private_bytes + SLACK_BYTES


@fault_case(
    "a refresh while the supervisor of the mount may open few descriptors, or none",
    promise="`dlcmd mount --refresh` says why it failed, the mount stays as it was, readers notice "
    "nothing; with descriptors the next refresh succeeds",
    bound_s=BOUND_S,
    why="the supervisor and the new server each count what they will need before they change "
    "anything; without either count some limits still fail in time",
)
@pytest.mark.parametrize("mount", ["fuse"], indirect=True)
def test_no_descriptors(place: Place, mount: Served, measured: Measured) -> None:
    shown = (mount.path / ".dieselfs/dataset.json").read_bytes()
    put(place, 0)
    _, hard = resource.prlimit(mount.pid, resource.RLIMIT_NOFILE)
    open_now = max(map(int, os.listdir(f"/proc/{mount.pid}/fd"))) + 1
    servers = mount.servers()
    with read_meanwhile(mount):
        for more in range(0, 60, 2):
            limit = open_now + more
            resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (limit, hard))
            with measured.felt():
                complaint = refresh(place, mount)
            if not complaint:
                break
            assert "Too many open files" in complaint
            eventually(lambda: mount.servers() == servers, "the end of the new server")
            assert (mount.path / ".dieselfs/dataset.json").read_bytes() == shown
        measured.note(f"refused with less than {more} descriptors")
        assert more > 0
        resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (hard, hard))
        put(place, 1)
        assert refresh(place, mount) == ""
    assert (mount.path / "new").read_bytes() == content("new1", 1000)
    assert is_alive(mount.pid)


@fault_case(
    "a refresh while the newest snapshot is damaged, or the store is out",
    promise="`dlcmd mount --refresh` says why it failed, the mount stays as it was, readers notice "
    "nothing; a sound snapshot is shown by the next refresh",
    bound_s=BOUND_S,
    check="metadata.snapshot:Snapshot.verify=none + metadata.snapshot:Snapshot.check_hash=none",
)
def test_damaged_or_out(place: Place, mount: Served, measured: Measured) -> None:
    shown = (mount.path / ".dieselfs/dataset.json").read_bytes()
    for path in FILES:  # so that node memory has it while the store is out
        (mount.path / path).read_bytes()
    with place.make({"new": content("new0", 1000)}, CHUNK_BYTES) as snapshot:
        newest = snapshot.path
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    with read_meanwhile(mount):
        for mode, complaint in (("ok", "damaged"), ("out", "connection refused")):
            set_mode(place.folder, mode)
            with measured.felt():
                said = refresh(place, mount)
            assert said
            measured.note(f"{mode}: {complaint}")
            assert complaint in said
            assert (mount.path / ".dieselfs/dataset.json").read_bytes() == shown
        set_mode(place.folder, "ok")
        # The command returns when the new server says why it refuses, before that server ends.
        eventually(lambda: len(mount.servers()) == 1, "the end of the servers that refused")
        put(place, 1)
        assert refresh(place, mount) == ""
    assert (mount.path / "new").read_bytes() == content("new1", 1000)
