"""Is a rate kept that a job is held to, and what does a byte budget cost that never binds?

1. For each of 1, 10 and 100 MB/s, reader threads and threads that fetch ahead read chunks of 4 MiB
   as fast as their budget lets them, through all wrappers, and the store notes when bytes leave it.
   Expectation: a bucket that is paid in bytes has no drift, whatever the machine does, so the rate
   between the first chunk and the last is the allowed one within 1 %. In no interval does more
   leave than the rate gives, one chunk, and the burst of 0.25 s. Readers get all: threads that
   fetch ahead wait for as long as readers do.
2. One thread reads chunks of 4 MiB from a store on a tmpfs, in turn without a budget, with one that
   has no limit, and with one of 1 TB/s. Expectation: two locks and a meter are 2 us, and 4 us
   where a chunk has just driven the code out of the caches, of 0.4 to 0.8 ms: 0.5 to 1 %.
3. The same reads with single parts of what a budget does: the key is looked at, the payer is asked,
   the bytes are counted under the lock, a meter goes along. Expectation: a part takes 0.2 to 1 us
   in a tight loop (`in_a_loop_us`), and several times as much where its code is cold.

    python -m benchmarks.bench_budget [--seconds 60] [--pairs 2000]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import report_with_bars
from chunkstore.chunk_id import ChunkId
from chunkstore.object_keys import chunk_key, dataset_of_chunk
from chunkstore.stores.budgeted import BudgetedStore
from chunkstore.stores.byte_budget import ByteBudget
from chunkstore.stores.byte_rate import BURST_S
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_meter import ReadMeter, of_thread
from chunkstore.stores.read_turn import Payer, ReadTurn, current_turn, reading
from chunkstore.stores.read_wrapper import ReadWrapper
from chunkstore.stores.resilient import ResilientStore

CHUNK_BYTES = 4 << 20
CHUNKS = 8
RATES = (1e6, 10e6, 100e6)
READERS, AHEAD = 6, 4
BARS = {"rate_error": "<= 0.03", "burst_s": "<= 0.25", "slower_by": "<= 0.01"}


class NotingStore(ReadWrapper):
    """Notes when how many bytes leave it."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.left: list[tuple[float, int]] = []

    def _read(self, read: Read) -> Buffer:
        data = read.of(self._wrapped)
        self.left.append((time.monotonic(), len(data)))
        return data


def key(number: int) -> str:
    return chunk_key("d", ChunkId((number % CHUNKS).to_bytes(16, "big")))


def filled(store: ObjectStore) -> ObjectStore:
    content = random.Random(1).randbytes(CHUNK_BYTES)
    for number in range(CHUNKS):
        store.create(key(number), [content])
    return store


def budgeted(store: ObjectStore, budget: ByteBudget) -> ObjectStore:
    return BudgetedStore(store, lambda: budget, lambda chunk: CHUNK_BYTES)


def rate_error(left: Sequence[tuple[float, int]], rate: float) -> float:
    """How far the rate between the first chunk and the last is from the allowed one."""
    seconds = left[-1][0] - left[0][0]
    return abs(sum(size for _, size in left[1:]) / seconds / rate - 1)


def burst_s(left: Sequence[tuple[float, int]], rate: float) -> float:
    """The most bytes of any interval beyond what the rate gives and one chunk, as seconds of the
    rate."""
    most = least = excess = 0.0
    for at, size in left:
        least = min(least, excess - rate * (at - left[0][0]))
        excess += size
        most = max(most, excess - rate * (at - left[0][0]) - least)
    return max(0.0, most - CHUNK_BYTES) / rate


def keep_a_rate(rate: float, seconds: float) -> None:
    noting = NotingStore(filled(MemoryObjectStore()))
    budget = ByteBudget(rate)
    store = budgeted(ResilientStore(noting), budget)
    ends = time.monotonic() + seconds
    is_over = threading.Event()
    read: dict[bool, int] = {False: 0, True: 0}

    def run(ahead: bool) -> None:
        number = 0
        while not is_over.is_set():
            with reading(ReadTurn(ahead)):
                store.get(key(number))
            read[ahead] += 1
            number += 1

    threads = [
        threading.Thread(target=run, args=(number >= READERS,), daemon=True)
        for number in range(READERS + AHEAD)
    ]
    for thread in threads:
        thread.start()
    is_over.wait(max(0.0, ends - time.monotonic()))
    found, left, chunks_ahead = budget.statistics(), sorted(noting.left), read[True]
    is_over.set()
    budget.close()
    for thread in threads:
        thread.join()
    report_with_bars(
        BARS,
        "is a rate kept",
        rate_bytes_per_s=rate,
        seconds=seconds,
        rate_error=rate_error(left, rate) if len(left) > 1 else 0.0,
        burst_s=burst_s(left, rate),
        allowed_burst_s=BURST_S,
        chunks=len(left),
        chunks_ahead=chunks_ahead,
        bound_share=found.bound_s / seconds,
    )


class _Part(ReadWrapper):
    """A read with one part of what a `BudgetedStore` does. Subclasses define it."""

    def __init__(self, store: ObjectStore, budget: ByteBudget) -> None:
        super().__init__(store)
        self._payer: Payer = lambda: budget
        self._budget = budget


class NoPart(_Part):
    def _read(self, read: Read) -> Buffer:
        return read.of(self._wrapped)


class LooksAtTheKey(_Part):
    def _read(self, read: Read) -> Buffer:
        dataset_of_chunk(read.key)
        return read.of(self._wrapped)


class AsksForThePayer(_Part):
    def _read(self, read: Read) -> Buffer:
        (current_turn().payer or self._payer)()
        return read.of(self._wrapped)


class Counts(_Part):
    def _read(self, read: Read) -> Buffer:
        self._budget.take_now(CHUNK_BYTES)
        return read.of(self._wrapped)


class Meters(_Part):
    def _read(self, read: Read) -> Buffer:
        of_thread.meter = ReadMeter(self._budget.charge)
        try:
            return read.of(self._wrapped)
        finally:
            of_thread.meter = None


PARTS = (NoPart, LooksAtTheKey, AsksForThePayer, Counts, Meters)


class Nowhere(ReadWrapper):
    """Answers at once, so that nothing drives the code of its wrappers out of the caches."""

    def _read(self, read: Read) -> Buffer:
        return b""


def in_a_loop_us(part: type[_Part]) -> float:
    """The time of a read of no bytes in a tight loop."""
    store, rounds = part(Nowhere(MemoryObjectStore()), ByteBudget()), 20_000
    return min(timeit.repeat(partial(store.get, key(0)), number=rounds, repeat=5)) / rounds * 1e6


def cost(pairs: int) -> None:
    """Compare reads in turn: each with a budget is paired with the one without before it."""
    with tempfile.TemporaryDirectory(prefix="dieselfs-budget-", dir="/dev/shm") as folder:
        plain = ResilientStore(filled(LocalDirectory(Path(folder))))
        contenders = {
            "none": plain,
            "no limit": budgeted(plain, ByteBudget()),
            "1 TB/s": budgeted(plain, ByteBudget(1e12)),
            **{part.__name__: part(plain, ByteBudget()) for part in PARTS},
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(pairs + pairs // 10):
            order = random.Random(number).sample(sorted(contenders), len(contenders))
            for name in order:
                took = timed(partial(contenders[name].get, key(number)))
                if number >= pairs // 10:  # the warm-up is over
                    seconds[name].append(took)
    without = statistics.median(seconds["none"])
    for name in ("no limit", "1 TB/s"):
        more = [own - base for own, base in zip(seconds[name], seconds["none"], strict=True)]
        report_with_bars(
            BARS,
            "what does a budget cost that never binds",
            budget=name,
            pairs=pairs,
            slower_by=statistics.median(more) / without,
            standard_error=1.25 * statistics.stdev(more) / len(more) ** 0.5 / without,
            median_ms=without * 1e3,
            cost_us=statistics.median(more) * 1e6,
        )
    nothing_us = in_a_loop_us(NoPart)
    for part in PARTS:
        own = seconds[part.__name__]
        more = [each - base for each, base in zip(own, seconds["none"], strict=True)]
        report_with_bars(
            BARS,
            "what does a part of a budget cost",
            part=part.__name__,
            pairs=pairs,
            cost_us=statistics.median(more) * 1e6,
            standard_error_us=1.25 * statistics.stdev(more) / len(more) ** 0.5 * 1e6,
            in_a_loop_us=in_a_loop_us(part) - nothing_us,
        )


def timed(read: Callable[[], object]) -> float:
    begin = time.perf_counter()
    read()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for each rate; 0: none")
    parser.add_argument("--pairs", type=int, default=2000, help="of reads; 0: none")
    options = parser.parse_args()
    for rate in RATES if options.seconds else ():
        keep_a_rate(rate, options.seconds)
    if options.pairs:
        cost(options.pairs)


if __name__ == "__main__":
    main()
