"""Processes that read a mount of `made_up` files in every way there is and check each byte, what
makes it hard for them, and a watchdog that ends what hangs: a page that stays locked would block
`drop_caches` on the whole machine."""

import ctypes
import errno
import mmap
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.eventually import PATIENCE_S, eventually
from tests.mount import made_up
from tests.mount.mounting import Mount
from tests.mount.versions import Versions

ENDED = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT)
"""What a reader gets from a mount that has ended or was aborted."""
STALL_S = 100.0
"""Nothing takes that long, on a machine that does other things too, unless it hangs."""
PAGE = 4096
LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
SPAWN = multiprocessing.get_context("spawn")


FAULTS_END_S = 0.2
"""For requests that have failed already, and whose readers do not know it yet."""


class Wrong(Exception):
    """A byte, a size or a name that is in no version, or a mix of two."""


class OpenFile:
    """A file of one version, whichever it was opened in."""

    def __init__(self, mount: Path, path: str, flags: int = 0) -> None:
        self._path = path
        self.fd = os.open(mount / path, os.O_RDONLY | flags)
        self.size = os.fstat(self.fd).st_size
        self._possible = [
            version
            for version in made_up.versions_of(path)
            if len(made_up.content(path, version)) == self.size
        ]

    def check(self, data: bytes, start: int, wanted: int) -> None:
        """`data` is what came for a range."""
        self._possible = [
            version
            for version in self._possible
            if made_up.content(self._path, version)[start : start + wanted] == data
        ]
        if not self._possible:
            raise Wrong(f"{self._path}: {len(data)} bytes for {wanted} from {start} of {self.size}")

    def pread(self, length: int, start: int) -> None:
        data = os.pread(self.fd, length, start)
        while data and len(data) < min(length, self.size - start):
            # What came before an error is given first, and the error to who reads on.
            data += (more := os.pread(self.fd, length - len(data), start + len(data)))
            if not more:
                break
        self.check(data, start, length)

    def __enter__(self) -> "OpenFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.fd)


class Reader:
    def __init__(self, mount: Path, files: int, seed: int, faults: Any = None) -> None:
        """`faults` is odd while reads may fail; None if they never may."""
        self._mount = mount
        self._paths = made_up.all_paths(files)
        self._dice = random.Random(seed)
        self._direct = mmap.mmap(-1, 1 << 20)  # O_DIRECT wants whole pages
        self._faults = faults
        self._ways: list[Callable[[str], None]] = [
            *[self.whole] * 4,
            *[self.at_random] * 2,
            *[self.mapped if faults is None else self.whole] * 2,  # an error there is a signal
            *(self.past_the_cache, self.with_readahead, self.dropped),
        ]

    def read_some(self) -> None:
        """One file, a few neighbours or a listing."""
        draw = self._dice.random()
        if draw < 0.01:
            self.listing()
        elif draw < 0.02:
            first = self._dice.randrange(len(self._paths))
            for path in self._paths[first : first + 200]:
                self._one(self.whole, path)
        else:
            self._one(self._dice.choice(self._ways), self._dice.choice(self._paths))

    def _one(self, way: Callable[[str], None], path: str) -> None:
        before = 0 if self._faults is None else self._faults.value
        try:
            way(path)
        except FileNotFoundError:
            if made_up.versions_of(path) == made_up.VERSIONS:
                raise
        except OSError as error:
            may_fail = self._faults is not None and (before % 2 or self._faults.value != before)
            if error.errno != errno.EIO or not may_fail:
                raise

    def whole(self, path: str) -> None:
        with OpenFile(self._mount, path) as file:
            file.pread(file.size + 1, 0)

    def at_random(self, path: str) -> None:
        with OpenFile(self._mount, path) as file:
            for _ in range(5):
                start = self._dice.randrange(file.size + 100)
                file.pread(self._dice.randrange(1, 100_000), start)

    def mapped(self, path: str) -> None:
        with OpenFile(self._mount, path) as file:
            if not file.size:
                return
            with mmap.mmap(file.fd, 0, prot=mmap.PROT_READ) as view:
                for _ in range(5):
                    start = self._dice.randrange(file.size)
                    length = self._dice.randrange(1, 30_000)
                    file.check(view[start : start + length], start, length)
                if self._dice.random() < 0.3:
                    view.madvise(mmap.MADV_DONTNEED)
                    file.check(view[:], 0, file.size)

    def past_the_cache(self, path: str) -> None:
        try:
            opened = OpenFile(self._mount, path, os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.whole(path)  # EROFS over files has none
            return
        with opened as file:
            start = self._dice.randrange(0, file.size + 1, PAGE)
            got = os.preadv(file.fd, [self._direct], start)
            file.check(self._direct[:got], start, len(self._direct))

    def with_readahead(self, path: str) -> None:
        with OpenFile(self._mount, path) as file:
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_WILLNEED)
            for start in range(0, file.size, PAGE):
                file.pread(PAGE, start)

    def dropped(self, path: str) -> None:
        with OpenFile(self._mount, path) as file:
            for _ in range(2):
                file.pread(file.size, 0)
                os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def listing(self) -> None:
        directory = f"d{self._dice.randrange(made_up.DIRECTORIES)}"
        with os.scandir(self._mount / directory) as entries:
            names = [entry.name for entry in entries]
        if len(names) != len(set(names)) or not any(
            set(names) == made_up.names_in(directory, version, self._paths)
            for version in made_up.VERSIONS
        ):
            raise Wrong(f"{directory} lists {len(names)} names")


def _read_on(
    mount: Path,
    files: int,
    number: int,
    beats: Any,
    ended: Any,
    may_end: bool,
    report: Path,
    faults: Any,
) -> None:
    """The main function of a reading process. It ends well, or says why in `report`."""
    try:
        reader = Reader(mount, files, number, faults)
        for directory in range(
            made_up.DIRECTORIES
        ):  # as a data loader begins: the kernel learns the inodes
            with os.scandir(mount / f"d{directory}") as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # the other version may have come
                        entry.stat()
        while not ended.is_set():
            reader.read_some()
            beats[number] += 1
    except OSError as error:
        if not (may_end and error.errno in ENDED):
            report.write_text(f"{error!r}: {error.filename}")
    except BaseException as error:
        report.write_text(repr(error))


@dataclass
class Readers:
    """Eight processes; `beats` counts what each has read. As a context it lets them end."""

    mount: Mount
    files: int
    folder: Path
    may_end: bool = False
    """The mount may end below them: they end with it."""
    count: int = 8
    may_fail: bool = False
    """Reads may fail while `faults` is odd; nothing is mapped then."""
    faults: Any = None
    beats: Any = None
    processes: list[SpawnProcess] = field(default_factory=list)
    _ended: Any = None

    def __enter__(self) -> "Readers":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.beats = SPAWN.Array("Q", self.count, lock=False)
        self._ended = SPAWN.Event()
        if self.may_fail:
            self.faults = SPAWN.Value("Q", 0)
        for number in range(self.count):
            report = self.folder / f"reader{number}"
            arguments = (
                *(self.mount.path, self.files, number, self.beats, self._ended),
                *(self.may_end, report, self.faults),
            )
            process = SPAWN.Process(target=_read_on, args=arguments)
            process.start()
            self.processes.append(process)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        for process in self.processes:
            process.join(PATIENCE_S)
            process.kill()
            process.join(PATIENCE_S)

    def complaints(self) -> list[str]:
        exits = [
            f"reader {number} ended with {process.exitcode}"
            for number, process in enumerate(self.processes)
            if process.exitcode not in (0, -signal.SIGBUS if self.may_end else 0)
        ]
        return exits + [f"{path.name}: {path.read_text()}" for path in self.folder.glob("reader*")]


class Watchdog:
    """Ends the connection of a mount, by killing its servers, and kills its readers, when one of
    them has stopped reading or the time is over."""

    def __init__(self, mount: Mount, readers: Readers, limit_s: float) -> None:
        self._mount = mount
        self._readers = readers
        self._deadline = time.monotonic() + limit_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._found: list[str] = []

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._found:
            raise AssertionError("\n".join(self._found)) from error

    def _watch(self) -> None:
        seen: dict[int, tuple[int, float]] = {}
        while not self._stop.wait(0.5):
            now = time.monotonic()
            stalled = ["the time is over"] if now > self._deadline else []
            for number, process in enumerate(self._readers.processes):
                beats = self._readers.beats[number]
                if beats != seen.get(number, (-1, now))[0]:
                    seen[number] = beats, now
                elif process.is_alive() and now - seen[number][1] > STALL_S:
                    stalled.append(f"reader {number} hangs after {beats} reads")
            if stalled:
                self._bite(stalled)
                return

    def _bite(self, why: list[str]) -> None:
        serving = [self._mount.pid, *self._mount.servers()]
        pids = [*serving, *(process.pid for process in self._readers.processes), os.getpid()]
        self._found = why + [line for pid in pids for line in stacks(pid)]
        for pid in serving:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._readers.processes:
            process.kill()


def stacks(pid: int | None) -> list[str]:
    """Where the kernel keeps each thread of a process."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            with suppress(OSError):
                stack = (task / "stack").read_text().split("\n")
                place = (task / "wchan").read_text()
                found.append(f"{pid}/{task.name} {state} {place}: {' < '.join(stack)}")
    return found


def forget_names(mount: Path) -> None:
    """Let the kernel drop every name of this mount that is not in use, and with it inodes and
    pages, as `drop_caches` does to all mounts: a remount that changes nothing does so. Root only.
    """
    flags = MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV
    if LIBC.mount(None, os.fsencode(mount), None, flags, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def drop_caches(what: int) -> None:
    """Of the whole machine: 1 pages, 2 names and inodes, 3 both."""
    Path("/proc/sys/vm/drop_caches").write_text(str(what))


def disturb(
    mount: Mount,
    versions: Versions,
    seconds: float,
    *,
    whole_machine: bool,
    faults: Any = None,
    starts_servers: bool = True,
) -> dict[str, int]:
    """Make it hard for the readers of a mount that shows the first version; what was done, and how
    often.

    `faults`: of readers that may fail; reads of the store fail now and then. `starts_servers`: it
    is refreshed, killed and upgraded, each at least once.
    """
    dice = random.Random(0)
    begun = time.monotonic()
    done = {"refreshes": 0, "kills": 0, "upgrades": 0, "failures": 0, "forgotten": 0, "dropped": 0}
    started = ("refreshes", "kills", "upgrades") if starts_servers else ()
    while time.monotonic() - begun < seconds or not all(done[what] for what in started):
        draw = dice.random()
        if not starts_servers and draw < 0.43:
            mount.statistics()
        elif draw < 0.3:
            done["refreshes"] += 1
            packed = versions.after if done["refreshes"] % 2 else versions.before
            mount.refresh(packed.snapshot)
        elif draw < 0.4:
            mount.kill_server()
            done["kills"] += 1
        elif draw < 0.43:
            before = mount.server_pid
            os.kill(mount.pid, signal.SIGUSR2)
            mount.await_server_after(before)
            done["upgrades"] += 1
        elif draw < 0.5 and faults is not None:
            faults.value += 1
            mount.fail_with("corrupt")
            time.sleep(dice.uniform(0, 0.3))
            mount.fail_with("")
            time.sleep(FAULTS_END_S)
            faults.value += 1
            done["failures"] += 1
        elif draw < 0.6 and os.geteuid() == 0:
            forget_names(mount.path)
            done["forgotten"] += 1
        elif draw < 0.65 and whole_machine and os.geteuid() == 0:
            drop_caches(dice.choice((1, 2, 3)))
            done["dropped"] += 1
        else:
            mount.statistics()
        time.sleep(dice.uniform(0, 0.3))
    return done


class MemoryGroup:
    """A memory control group for the processes of one mount. Raises `OSError` where this machine
    lets us have none."""

    def __init__(self) -> None:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        version_1 = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
        root = "/sys/fs/cgroup/memory" if version_1 else "/sys/fs/cgroup"
        own = version_1[0] if version_1 else next(path for _, names, path in lines if not names)
        self._folder = Path(f"{root}{own}", f"dieselfs-test-{os.getpid()}")
        self._limit, self._used, self._cached, self._hits = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "memory.failcnt")
            if version_1
            else ("memory.max", "memory.current", "file", "memory.events")
        )
        self._folder.mkdir()
        with ExitStack() as undo:
            undo.callback(self._folder.rmdir)
            (self._folder / self._limit).read_text()  # absent where the controller is not delegated
            undo.pop_all()

    def __enter__(self) -> "MemoryGroup":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        def is_removed() -> bool:
            self._folder.rmdir()
            return True

        eventually(is_removed, "every process of the group has ended", ignored=OSError)

    def add(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))

    def leave_free(self, free_bytes: int) -> None:
        """Limit the group to what its processes use without page cache, and a little more."""
        lines = (self._folder / "memory.stat").read_text().splitlines()
        cached = int(dict(line.split() for line in lines)[self._cached])
        used = int((self._folder / self._used).read_text())
        (self._folder / self._limit).write_text(str(used - cached + free_bytes))

    @property
    def times_full(self) -> int:
        text = (self._folder / self._hits).read_text()
        return int(text.split("\nmax ")[1].split()[0] if "\nmax " in text else text)


@contextmanager
def tortured(
    mount: Mount,
    files: int,
    folder: Path,
    limit_s: float,
    *,
    may_end: bool = False,
    may_fail: bool = False,
    count: int = 8,
) -> Iterator[Readers]:
    """Readers of a mount, under a watchdog. Raises for what they found wrong."""
    readers = Readers(mount, files, folder, may_end, count, may_fail)
    with Watchdog(mount, readers, limit_s), readers:
        yield readers
    if complaints := readers.complaints():
        raise AssertionError("\n".join(complaints))
