"""Processes that read chunks for a job within its allocation, for benchmarks: real readers, real
byte budgets and a store in memory that notes when bytes leave it."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.object_keys import chunk_key
from chunkstore.stores.budgeted import BudgetedStore
from chunkstore.stores.byte_budget import ByteBudget
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.allocation.readers.allocation_settings import AllocationSettings
from dieselfs.allocation.readers.observed import JobProgress
from dieselfs.allocation.readers.reader_allocation import ReaderAllocation

CHUNK_BYTES = 4 << 20
_LOOK_S = 0.1
_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class ReaderKind:
    """What a reader does."""

    job: str
    chunks: int = 1
    """The chunks of each step."""
    speed_bytes_per_s: float = float("inf")
    """How fast it reads if it never waits."""
    in_step: bool = False
    """Whether the readers of the job begin each step together, as those of a training do."""
    fixed_bytes_per_s: float | None = None
    """A budget of its own, that no directory knows."""
    chunk_bytes: int = CHUNK_BYTES
    threads: int = 1
    """How many chunks of a step it asks for at a time."""


@dataclass
class Noted:
    """What a reader has seen; times are by the machine's monotonic clock."""

    left: list[tuple[float, int]] = field(default_factory=list)
    """When how many bytes left the store."""
    allowed: list[tuple[float, float | None]] = field(default_factory=list)
    """The rate allowed to it, ten times a second."""
    errors: int = 0


class _NotingStore(ReadWrapper):
    def __init__(self, store: ObjectStore, noted: Noted) -> None:
        super().__init__(store)
        self._noted = noted

    def _read(self, read: Read) -> Buffer:
        data = read.of(self._wrapped)
        self._noted.left.append((time.monotonic(), len(data)))
        return data


class ReaderProcess:
    """A running reader; `noted` is there when it has ended."""

    def __init__(self, process: Any, ours: Any, kind: ReaderKind) -> None:
        self._process, self._ours, self.kind = process, ours, kind
        self.noted = Noted()

    def end(self) -> None:
        self._ours.send("end")
        self.noted = self._ours.recv()
        self._process.join()


@contextmanager
def reader_processes(index_url: str, kinds: Sequence[ReaderKind]) -> Iterator[list[ReaderProcess]]:
    """Start a process for each; they end with the block."""
    in_step = sum(kind.in_step for kind in kinds)
    barrier = _fork.Barrier(in_step) if in_step else None
    started = []
    for kind in kinds:
        ours, theirs = _fork.Pipe()
        process = _fork.Process(
            target=_run, args=(index_url, kind, barrier if kind.in_step else None, theirs)
        )
        process.start()
        started.append(ReaderProcess(process, ours, kind))
    try:
        yield started
    finally:
        if barrier is not None:
            barrier.abort()
        for each in started:
            each.end()


def _run(index_url: str, kind: ReaderKind, barrier: Any, control: Any) -> None:
    noted = Noted()
    allocation = ReaderAllocation(
        AllocationSettings(kind.job, index_url),
        DatasetRef(kind.job, kind.job.encode().ljust(16, b"-")[:16]),
    )
    fixed = None if kind.fixed_bytes_per_s is None else ByteBudget(kind.fixed_bytes_per_s)
    source = MemoryObjectStore()
    key = chunk_key("d", ChunkId(bytes(16)))
    source.create(key, [bytes(kind.chunk_bytes)])
    payer = allocation.payer if fixed is None else (lambda: fixed)
    store = BudgetedStore(_NotingStore(source, noted), payer, lambda chunk: kind.chunk_bytes)
    if fixed is None:
        allocation.reads(1 << 40, lambda: _progress(noted, allocation, kind))
        allocation.begin()
    ended = threading.Event()

    def get() -> None:
        try:
            store.get(key)
        except Exception:
            noted.errors += 1

    pool = ThreadPoolExecutor(kind.threads)

    def read() -> None:
        due = time.monotonic()
        while not ended.is_set():
            if barrier is not None:
                try:
                    barrier.wait()
                except threading.BrokenBarrierError:
                    return
            list(pool.map(lambda _: get(), range(kind.chunks)))
            due = max(due, time.monotonic() - 1.0)
            due += kind.chunks * kind.chunk_bytes / kind.speed_bytes_per_s
            ended.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    while not control.poll(_LOOK_S):
        noted.allowed.append((time.monotonic(), allocation.statistics().allowed_bytes_per_s))
    ended.set()
    if fixed is not None:
        fixed.close()
    allocation.close()
    thread.join(2.0)
    pool.shutdown(cancel_futures=True)
    with suppress(BrokenPipeError):
        control.send(noted)


def _progress(noted: Noted, allocation: ReaderAllocation, kind: ReaderKind) -> JobProgress:
    return JobProgress(None, len(noted.left) * kind.chunk_bytes, allocation.statistics().waited_s)
