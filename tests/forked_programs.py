"""Programs of tests that start in a hundredth of a second: forked from a process that has imported
their modules.

Python needs 0.3 s of CPU time to start and import what a mount needs, and the tests start hundreds
of mounts. The daemon that a forked `dlcmd` starts is forked too. A forked program is a process like
another: it has its own process id, session, environment, streams, folder and command line, and it
ends as Python does, without the teardown of modules. What `python -m` itself does is not tested by
it; the tests of what starts import (`tests/dieselfs/test_starts.py`), those of ordinary users, some
of upgrades, and those of the pages in docs/ start Python.

`python -m tests.forked_programs DESCRIPTOR PADDING MODULE…` is the process that forks. It has one
thread.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from chunkstore.ssd import ssd_service
from dieselfs.cache.task import master_process
from dieselfs.fuse.supervision import daemonize
from dieselfs.fuse.supervision.readiness import VARIABLE

_CHECKOUT = Path(__file__).resolve().parents[1]
_MAIN = {
    "-m tests.mount.daemon": "tests.mount.daemon",
    "-m dieselfs.cache.task.master_process": "dieselfs.cache.task.master_process",
    "-m dieselfs.cli": "dieselfs.cli",
    "-m dieselfs": "dieselfs.cli",
    f"{_CHECKOUT}/benchmarks/dlcmd_disk.py": "benchmarks.dlcmd_disk",
    f"{_CHECKOUT}/tests/faults/dlcmd_flapping.py": "tests.faults.dlcmd_flapping",
}
"""The programs that can be forked, by what follows `python`, and the module of their `main`;
besides, all `python -c CODE`."""
_IMPORTED_FIRST = (
    "asyncio",
    "benchmarks.shared_slow_store",
    "chunkstore.ssd.policy_runner",
    "chunkstore.ssd.tier",
    "chunkstore.ssd.tiered_store",
    "dieselfs.cache.cluster.cache_node",
    "dieselfs.cache.jobs.job_name",
    "dieselfs.cache.jobs.job_watcher",
    "dieselfs.cache.jobs.published_order",
    "dieselfs.cache.jobs.registries",
    "dieselfs.cache.read_stack",
    "dieselfs.cache.ssd.warmup_notes",
    "dieselfs.cache.task.master_process",
    "dieselfs.checking",
    "dieselfs.cli",
    "dieselfs.cli.commands.alloc",
    "dieselfs.cli.commands.cat",
    "dieselfs.cli.commands.cluster",
    "dieselfs.cli.commands.dataset",
    "dieselfs.cli.commands.fsck",
    "dieselfs.cli.commands.gc",
    "dieselfs.cli.commands.get",
    "dieselfs.cli.commands.jobs",
    "dieselfs.cli.commands.ls",
    "dieselfs.cli.commands.mount",
    "dieselfs.cli.commands.mounts",
    "dieselfs.cli.commands.purge",
    "dieselfs.cli.commands.put",
    "dieselfs.cli.commands.recover",
    "dieselfs.cli.commands.rm",
    "dieselfs.cli.commands.run",
    "dieselfs.cli.commands.scrub",
    "dieselfs.cli.commands.serve",
    "dieselfs.cli.commands.snapshot",
    "dieselfs.cli.commands.stat",
    "dieselfs.cli.commands.stats",
    "dieselfs.cli.commands.task",
    "dieselfs.cli.commands.umount",
    "dieselfs.cli.commands.warmup",
    "dieselfs.cli.mounting.mount_serving",
    "dieselfs.cli.rendering.json_logs",
    "dieselfs.client",
    "dieselfs.client.downloading",
    "dieselfs.client.extraction.extraction",
    "dieselfs.client.writing",
    "dieselfs.config.shared.stored",
    "dieselfs.fuse.mount",
    "dieselfs.fuse.starting.configured_request",
    "dieselfs.fuse.starting.start",
    "dieselfs.fuse.starting.store_probe",
    "dieselfs.housekeeping.garbage",
    "dieselfs.housekeeping.garbage_deletion",
    "dieselfs.housekeeping.lease_keeper",
    "dieselfs.housekeeping.purge.chunk_merging",
    "dieselfs.housekeeping.purge.purge",
    "dieselfs.packing.pack",
    "dieselfs.recovery",
    "dieselfs.snapshots.freshness",
    "dieselfs.snapshots.put_snapshots",
    "dieselfs.snapshots.snapshot_pruning",
    "difflib",
    "encodings.idna",
    "metadata.kv.lmdb_file",
    "metadata.kv.redis_server",
    "multiprocessing.popen_fork",
    "numpy.ma",
    "tests.dieselfs.cache.patience",
    "tests.faults.flapping_store",
    "tests.mount.daemon",
)
"""What forked programs need, or each of them would import it again."""
PATIENT = "DIESELFS_TEST_PATIENT"
"""Forked programs with this variable, and those that they start, bear peers and masters that
stall."""
SSD_DEADLINE_S = 30.0
"""The deadline of an SSD in the tests' process and in forked programs: on a busy machine it is late
too. Tests of a late one give the deadline themselves."""
_PADDING = "x" * 8192
"""Room for the command lines of programs, which others read in /proc."""
_MAX_REQUEST_BYTES = 1 << 17
_ARGUMENTS_START, _ARGUMENTS_END = 45, 46
"""Fields of /proc/PID/stat behind the name, proc(5)."""


class ForkedProgram:
    """A running program. Its methods are those of `subprocess.Popen`.

    An ended program stays as a zombie until its status is taken, as a child does.
    """

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    """Of a program that `Forker.start_piped` has started."""

    def __init__(self, args: Sequence[str], status: socket.socket) -> None:
        self.args = args
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()
        self.pid = int(status.recv(64))
        self._process = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        found = self._ended(None if timeout is None else timeout * 1000)
        if found is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return found

    def __enter__(self) -> ForkedProgram:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()
        self.wait()

    def communicate(self) -> tuple[bytes, bytes]:
        """Return the output, which must fit into two pipes, when all that has these is gone."""
        with self:
            self.stdin.close()
            return self.stdout.read(), self.stderr.read()

    def _ended(self, timeout_ms: float | None) -> int | None:
        waiting = select.poll()
        waiting.register(self._process, select.POLLIN)
        if self.returncode is None and waiting.poll(timeout_ms):
            with self._lock:
                if self.returncode is None:
                    # The process that forks may be gone, with the run of the tests.
                    self.returncode = int(self._status.recv(64) or b"1")
                    self._status.close()
        return self.returncode

    def __del__(self) -> None:
        self._status.close()
        os.close(self._process)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """The process that forks, started when the first program is. It imports `modules` first."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._starting = threading.Lock()

    def start(
        self,
        args: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        env: Mapping[str, str],
        cwd: Path | None = None,
    ) -> ForkedProgram:
        """Start `python -m MODULE ARGUMENT…` in a session of its own."""
        control = self._started()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"args": list(args), "env": dict(env), "cwd": str(cwd or os.getcwd())}
        with theirs:
            descriptors = [theirs.fileno(), stdin, stdout, stderr]
            socket.send_fds(control, [json.dumps(request).encode()], descriptors)
        return ForkedProgram(args, ours)

    def start_piped(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdin: IO[bytes] | None = None,
    ) -> ForkedProgram:
        """Start a program with pipes for its output, and for its input where none is given."""
        (given, stdin_end), (stdout, out), (stderr, err) = os.pipe(), os.pipe(), os.pipe()
        try:
            program = self.start(
                args,
                stdin=given if stdin is None else stdin.fileno(),
                stdout=out,
                stderr=err,
                env=env,
                cwd=cwd,
            )
        finally:
            for fd in (given, out, err):
                os.close(fd)
        program.stdin = open(stdin_end, "wb")  # noqa: SIM115
        program.stdout, program.stderr = open(stdout, "rb"), open(stderr, "rb")  # noqa: SIM115
        return program

    def _started(self) -> socket.socket:
        with self._starting:
            if self._control is None:
                self._control = self._start_process()
        return self._control

    def _start_process(self) -> socket.socket:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            own = [sys.executable, "-m", "tests.forked_programs", str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*own, _PADDING, *self._modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=_CHECKOUT,
                start_new_session=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # NumPy's own threads
            )
        return control

    def can_start(self) -> bool:
        """Return False in a child of the tests' process that has forked before this one started."""
        return self._control is not None or self._owner == os.getpid()

    def adopt(self, control: socket.socket) -> None:
        """Let the process at the other end of a socket, which is started already, fork."""
        self._control, self._owner = control, os.getpid()

    def close(self) -> None:
        """End the process; programs that run go on."""
        if self._control is not None and self._owner == os.getpid():
            self._control.send(b"end")
            self._control.close()
            assert self._process is not None
            self._process.wait()
        self._control = None


FORKER = Forker(*_IMPORTED_FIRST)


def can_fork(args: Sequence[str]) -> bool:
    """Return True if a command is one of the programs that can be forked."""
    if len(args) < 2 or args[0] != sys.executable:
        return False
    return args[1] == "-c" or " ".join(args[1 : _words(args)]) in _MAIN


def _words(args: Sequence[str]) -> int:
    """Return the number of words of a command that say which program is run."""
    return 3 if args[1] == "-m" else 2


def run_forked(
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    input: bytes = b"",
    merges: bool = False,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program as `subprocess.run` does, and capture what it writes.

    `merges`: both streams are in the order in which they were written, as `stdout`.
    """
    assert can_fork(args), args
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out:
        with tempfile.TemporaryFile() as err:
            given.write(input)
            given.seek(0)
            program = FORKER.start(
                args,
                stdin=given.fileno(),
                stdout=out.fileno(),
                stderr=(out if merges else err).fileno(),
                env=env,
                cwd=cwd,
            )
            try:
                status = program.wait(timeout)
            except BaseException:
                program.kill()
                raise
            out.seek(0)
            err.seek(0)
            said = os.fsdecode(out.read()), os.fsdecode(err.read())  # they may name any file
            return subprocess.CompletedProcess(list(args), status, *said)


def start_forked(args: Sequence[str], *, env: Mapping[str, str]) -> ForkedProgram:
    """Start a program as `subprocess.Popen` does, with pipes for its input and output."""
    assert can_fork(args), args
    return FORKER.start_piped(args, env=env)


@contextmanager
def daemons_are_forked() -> Iterator[None]:
    """Let daemons of mounts and masters of tasks that this process, and the programs forked for it,
    start be forked."""
    started, start_master = daemonize._started, master_process._start_process
    _fork_daemons()
    try:
        yield
    finally:
        daemonize._started, master_process._start_process = started, start_master
        FORKER.close()


def _fork_daemons() -> None:
    started, start_master = daemonize._started, master_process._start_process

    def forked(command: Sequence[str], log_output: IO[bytes], address: str) -> Any:
        if not (can_fork(command) and FORKER.can_start()):
            return started(command, log_output, address)
        log, environment = log_output.fileno(), {**os.environ, VARIABLE: address}
        with open(os.devnull) as nothing:
            return FORKER.start(
                command, stdin=nothing.fileno(), stdout=log, stderr=log, env=environment
            )

    def forked_master(given: IO[bytes]) -> Any:
        if not FORKER.can_start():
            return start_master(given)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", master_process.__name__]
        return FORKER.start_piped(command, env=environment, stdin=given, cwd=Path("/"))

    daemonize._started = forked
    master_process._start_process = forked_master


class _Programs:
    """The programs that were forked, until their statuses are taken."""

    def __init__(self, waiting: select.poll) -> None:
        self._waiting = waiting
        self._running: dict[int, tuple[int, socket.socket]] = {}
        self._ended: dict[int, tuple[int, socket.socket]] = {}
        """Process id and socket by the socket's descriptor."""

    def add(self, pid: int, status: socket.socket) -> None:
        self._running[status.fileno()] = pid, status

    def report_ended(self) -> None:
        """Send the statuses of those that have ended."""
        for fd, (pid, status) in list(self._running.items()):
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                continue
            self._ended[fd] = self._running.pop(fd)
            self._waiting.register(fd, 0)  # until the other end is closed
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            try:
                status.send(str(code).encode())
            except BrokenPipeError:  # nobody waits for it any more
                pass

    def reap(self, fds: Iterable[int]) -> None:
        """Take away those whose statuses are taken."""
        for fd in fds:
            if fd in self._ended:
                pid, status = self._ended.pop(fd)
                self._waiting.unregister(fd)
                status.close()
                os.waitpid(pid, 0)

    def close(self) -> None:
        for _, status in (*self._running.values(), *self._ended.values()):
            status.close()


def serve(control: socket.socket) -> Callable[[], Any] | None:
    """Fork a program for each request; return what a forked program runs, or None at the end."""
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    waiting = select.poll()
    for end in (control, ours, wake_read):
        waiting.register(end, select.POLLIN)
    programs = _Programs(waiting)
    while True:
        events = dict(waiting.poll())
        if wake_read in events:
            os.read(wake_read, 4096)
            programs.report_ended()
        programs.reap(events)
        asking = next((end for end in (control, ours) if end.fileno() in events), None)
        if asking is None:
            continue
        data, descriptors = _received(asking)
        if not descriptors:
            return None
        status = socket.socket(fileno=descriptors[0])
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (wake_read, wake_write):
                os.close(fd)
            programs.close()
            os.setsid()
            status.send(str(os.getpid()).encode())
            for each in (control, ours, status):
                each.close()
            FORKER.adopt(theirs)
            _fork_daemons()
            return _become(json.loads(data), descriptors[1:])
        programs.add(pid, status)
        for fd in descriptors[1:]:
            os.close(fd)


def _received(control: socket.socket) -> tuple[bytes, list[int]]:
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(4 * descriptors.itemsize)
    data, ancillary, _, _ = control.recvmsg(_MAX_REQUEST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for _, _, sent in ancillary:
        descriptors.frombytes(sent)
    return data, list(descriptors)


def _become(request: dict[str, Any], streams: Sequence[int]) -> Callable[[], Any]:
    """Make this process the program of a request; return its main function."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    if PATIENT in os.environ:
        patience = importlib.import_module("tests.dieselfs.cache.patience")
        patience.be_patient()
        patience.be_patient_members()
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if folder and folder not in sys.path:
            sys.path.append(folder)
    os.chdir(request["cwd"])
    args = request["args"]
    _show_command_line(args)
    if args[1] == "-c":
        sys.argv = ["-c", *args[3:]]
        return partial(exec, compile(args[2], "<string>", "exec"), {"__name__": "__main__"})
    said = args[1 : _words(args)]
    module = importlib.import_module(_MAIN.get(" ".join(said), said[-1]))
    sys.argv = [str(module.__file__) if said[0] == "-m" else said[0], *args[_words(args) :]]
    main: Callable[[], Any] = module.main
    return main


def _show_command_line(args: Sequence[str]) -> None:
    """Show another command line in /proc: the kernel reads it from the memory of the process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
    shown = b"".join(os.fsencode(word) + b"\0" for word in args)[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _run_to_its_end(program: Callable[[], int | None]) -> NoReturn:
    """Run a program and end as Python does, but for the teardown of its modules: that takes 30 ms
    of CPU time, most of it for copies of the pages that all forked programs share."""
    try:
        status = program()
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        status = end.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    for module in sys.argv[3:]:
        importlib.import_module(module)
    ssd_service.DEADLINE_S = SSD_DEADLINE_S
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        program = serve(requests)
    if program is not None:
        _run_to_its_end(program)
