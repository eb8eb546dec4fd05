"""Processes that read through node memory, and what is waited for. In a module of its own, which
spawned processes import."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.task.node_memory import NodeMemory
from tests.dieselfs.cache.logged_source import LoggedSource, chunk, content, extent
from tests.dieselfs.cache.patience import be_patient_members
from tests.eventually import PATIENCE_S

DEADLINE_S = PATIENCE_S
LINGER_S = 0.2
BUDGET_BYTES = 64 << 20

FORK: ForkContext = multiprocessing.get_context("fork")
SPAWN: SpawnContext = multiprocessing.get_context("spawn")


def opened(folder: TaskFolder, source: LoggedSource, **options: object) -> NodeMemory:
    options = {"budget_bytes": BUDGET_BYTES, "linger_s": LINGER_S, **options}
    return NodeMemory.open(folder, source, **options)  # type: ignore[arg-type]


def is_right(memory: NodeMemory, number: int, start: int = 0, length: int = 4096) -> bool:
    ref = chunk(number)
    return memory.read(extent(ref), start, length) == content(ref)[start : start + length]


def is_alive(pid: int) -> bool:
    """Not a zombie either."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before its file was opened, or read
        return False


def in_threads(count: int, work: Callable[[], bool]) -> bool:
    """Whether `work` came to True in each of so many threads."""
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(work())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return found == [True] * count


def read_in_threads(memory: NodeMemory, numbers: Sequence[int], threads: int) -> None:
    """Of a process: read these chunks in each thread; exits with 1 if a byte is wrong."""
    be_patient_members()
    right = in_threads(threads, lambda: all(is_right(memory, number) for number in numbers))
    memory.close()
    os._exit(0 if right else 1)


def open_and_read_together(
    folder: TaskFolder, source: LoggedSource, numbers: Sequence[int], threads: int, others: Barrier
) -> None:
    """Of a process: it reads when all others have opened the memory too, and stays until they have
    read."""
    be_patient_members()
    memory = opened(folder, source)
    others.wait(DEADLINE_S)
    right = in_threads(threads, lambda: all(is_right(memory, number) for number in numbers))
    others.wait(DEADLINE_S)
    memory.close()
    os._exit(0 if right else 1)


def read_until(memory: NodeMemory, numbers: Sequence[int], stop: Path, rounds: Path) -> None:
    """Of a process: read these chunks over and over until `stop` is there; a byte to `rounds` each
    time; 1 if a byte is wrong."""
    with open(rounds, "ab", buffering=0) as done:
        while not stop.exists():
            for number in numbers:
                if not is_right(memory, number):
                    os._exit(1)
                memory._blocks.mapped.clear()  # so that it is asked again, or mapped again
            done.write(b".")
    memory.close()
    os._exit(0)


def open_and_wait(folder: TaskFolder, source: LoggedSource, ready: Path, lead: bool) -> None:
    """Of a process that is to be killed: read chunk 1, say so, and stay."""
    be_patient_members()
    memory = opened(folder, source, lead=lead)
    assert is_right(memory, 1)
    ready.touch()
    threading.Event().wait()


def all_ended_well(processes: Sequence[BaseProcess]) -> bool:
    for process in processes:
        process.join(DEADLINE_S)
    return [process.exitcode for process in processes] == [0] * len(processes)
