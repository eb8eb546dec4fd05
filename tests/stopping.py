"""Stopping a process as a test means it."""

import os
import signal
from pathlib import Path

from tests.eventually import eventually


def stop(pid: int) -> None:
    """Stop a process, and wait until all its threads have stopped.

    A thread that sleeps stops when it is scheduled: until then another one of the process may take
    a request, which nobody answers.
    """
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")

    def has_stopped() -> bool:
        states = [file.read_text().rpartition(")")[2].split()[0] for file in threads.glob("*/stat")]
        return set(states) == {"T"}

    # A thread that ends has no file, or one that cannot be read any more.
    gone = FileNotFoundError, ProcessLookupError
    eventually(has_stopped, "all threads have stopped", ignored=gone)
