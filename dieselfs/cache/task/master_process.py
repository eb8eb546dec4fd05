"""The helper process that leads a task for its clients.

Its command is `python -m dieselfs.cache.task.master_process`.

A client may fork workers that outlive it, so no client leads. The first client that finds no master
starts this process, which belongs to all of them. `start` hands it what it needs on stdin, pickled.
The helper reports in one line on stdout whether it serves.

It is a grandchild of the process that started it, so no process waits for it and none has it as a
zombie. It ends `linger_s` after its last member has left, in whatever way that member left.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import subprocess
import sys
from types import FrameType
from typing import IO, Final

from chunkstore.chunk_source import ChunkSource
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.core_dumps import prevent_core_dumps
from dieselfs.cache.ports.process_heap import keep_heap_small
from dieselfs.cache.task.leader import Leader, MemorySettings
from dieselfs.errors import LocalFileError, MasterGone

log = logging.getLogger(__name__)

LOG: Final = "master.log"
"""The name of the log file in the task's folder."""
_START_TIMEOUT_S: Final = 10.0  # it takes 0.4 s on an idle machine
_FIRST_MEMBER_S: Final = 5.0
"""The time for the first member to connect.

The process that started the helper may have been killed.
"""
_SERVING: Final = "serving"
_LED: Final = "led"
_NOT_PORTABLE: Final = "cannot hand the source of chunks to another process"
_ONE_THREAD: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class HelperKilled(MasterGone):
    """The helper ended without a report. Another attempt may succeed."""


class SourceNotPortable(MasterGone):
    """The source of chunks cannot be handed to another process.

    It cannot be pickled, or is not found there.
    """


def start(settings: MemorySettings, source: ChunkSource) -> None:
    """Return when a helper serves, or when another process leads. About 0.4 s.

    Raises `MasterGone` or `SourceNotPortable`.
    """
    try:
        pickled = pickle.dumps(settings) + pickle.dumps(source)
    except Exception as error:  # objects report in their own way that they can't be pickled
        raise SourceNotPortable(f"{_NOT_PORTABLE}: {error}") from error
    try:
        line = _started(pickled)
    except OSError as error:
        raise MasterGone(f"cannot start a master: {error}") from error
    if not line:
        raise HelperKilled("cannot start a master: it ended without a report")
    if line.startswith(_NOT_PORTABLE):
        raise SourceNotPortable(line)
    if line not in (_SERVING, _LED):
        raise MasterGone(f"cannot start a master: {line}")


def _started(pickled: bytes) -> str:
    """Start a helper with its pickles and return its report. Kill it if it reports nothing."""
    with os.fdopen(
        os.memfd_create(__name__), "w+b"
    ) as given:  # a pipe may fill; a named file could stay behind
        given.write(pickled)
        given.seek(0)
        process = _start_process(given)
    with process:
        assert process.stdout is not None
        waiting = select.poll()
        waiting.register(process.stdout, select.POLLIN)
        try:
            # Wait for a line, not for the end of the pipe: a process that another thread has forked
            # just now may hold the pipe too.
            if waiting.poll(_START_TIMEOUT_S * 1000):
                return process.stdout.readline().decode(errors="replace").strip()
            raise TimeoutError(f"it did not report within {_START_TIMEOUT_S:g} s")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # the helper itself is a grandchild
            raise


def _start_process(given: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={
            **os.environ,
            **dict.fromkeys(_ONE_THREAD, "1"),  # it forks, and computes nothing
            "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
        },
        start_new_session=True,  # Ctrl-C is meant for the client
    )


def main() -> int:
    """Run the helper; return its exit status."""
    if os.fork():
        os._exit(0)
    keep_heap_small()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_in_order)
    try:
        settings: MemorySettings = pickle.load(sys.stdin.buffer)
        _log_to(settings.folder)
        prevent_core_dumps()  # the store of the source may have a password
        source: ChunkSource = pickle.load(sys.stdin.buffer)
    except Exception as error:  # unpickling runs the source's own code
        _report(f"{_NOT_PORTABLE}: {error!r}")
        return 1
    try:
        return _lead(settings, source)
    except Exception as error:
        log.exception("the master of %s has failed", settings.folder.path)
        _report(f"it failed: {error}")
        return 1


def _lead(settings: MemorySettings, source: ChunkSource) -> int:
    leader = Leader.begin(settings, source)
    if leader is None:
        _report(_LED)
        return 0
    payers, master = settings.payers, leader.master
    if payers is not None:
        payers.serve_members()
        payers.keeps_memory(master.blocks.set_quota, lambda: master.statistics().cached_bytes)
    try:
        _report(_SERVING)
        leader.server.wait_until_left(settings.linger_s, _FIRST_MEMBER_S)
    finally:
        if payers is not None:
            payers.close()
        leader.end()
    return 0


def _end_in_order(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _log_to(folder: TaskFolder) -> None:
    """Send stderr to the task's log; if that cannot be opened, stderr stays at /dev/null."""
    try:
        folder.make()  # it may have been swept since the client made it
        fd = os.open(folder.path / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except (OSError, LocalFileError):
        return
    os.dup2(fd, 2)
    os.close(fd)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _report(line: str) -> None:
    """Write the line to stdout and close stdout."""
    os.write(1, f"{line}\n".encode())
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 1)
    os.close(nothing)


if __name__ == "__main__":
    sys.exit(main())
