"""Processes that read a mount of `made_up` files in every way there is and check each byte, what
makes it hard for them, and a watchdog that ends what hangs: a page that stays locked would block
`drop_caches` on the whole machine."""

import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.eventually import PATIENCE_S, eventually
from tests.fork_server import FORK_SERVER
from tests.mount.mounting import Mount
from tests.mount.torture_readers import read_on
from tests.mount.versions import Versions

STALL_S = 100.0
"""Nothing takes that long, on a machine that does other things too, unless it hangs."""
LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32

FAULTS_END_S = 0.2
"""For requests that have failed already, and whose readers do not know it yet."""


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
    processes: list[ForkServerProcess] = field(default_factory=list)
    _ended: Any = None

    def __enter__(self) -> "Readers":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.beats = FORK_SERVER.Array("Q", self.count, lock=False)
        self._ended = FORK_SERVER.Event()
        if self.may_fail:
            self.faults = FORK_SERVER.Value("Q", 0)
        for number in range(self.count):
            report = self.folder / f"reader{number}"
            arguments = (
                *(self.mount.path, self.files, number, self.beats, self._ended),
                *(self.may_end, report, self.faults),
            )
            process = FORK_SERVER.Process(target=read_on, args=arguments)
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
    dice = random.Random(123)  # it draws something of each kind in the first second
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
