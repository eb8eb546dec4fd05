"""Readers and allocators that share a Redis, when allocators or the Redis are killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from chunkstore.chunk_format import DatasetRef
from dieselfs.allocation.allocator import allocator as allocator_module
from dieselfs.allocation.allocator.allocator import Allocator
from dieselfs.allocation.directory.redis_directory import RedisDirectory
from dieselfs.allocation.policies.naming import named_policy
from dieselfs.allocation.readers.allocation_settings import AllocationSettings
from dieselfs.allocation.readers.observed import JobProgress
from dieselfs.allocation.readers.reader_allocation import ReaderAllocation
from dieselfs.errors import RegistryUnavailable
from tests.dieselfs.allocation.made_leases import entry, lease
from tests.eventually import eventually, scaled_by_load
from tests.forked_programs import FORKER, ForkedProgram
from tests.services.redis_processes import RedisProcess

pytestmark = pytest.mark.usefixtures("patient_redis")  # it is killed, and never paused

TOTAL = 10e6
DATASET_BYTES = 1 << 40
SPEEDS = {"fast": 30e6, "slow": 2e6}


class Clock(threading.local):
    """The time, and when this thread has looked last."""

    looked_at = 0.0

    def __call__(self) -> float:
        self.looked_at = time.monotonic()
        return self.looked_at


class Readers:
    """Real readers: two of a fast job, and one of a slow job; nobody waits for their budgets."""

    def __init__(self, url: str) -> None:
        began, clock = time.monotonic(), Clock()
        self.all: list[ReaderAllocation] = []
        for job in ("fast", "fast", "slow"):
            reader = ReaderAllocation(
                AllocationSettings(job, url), DatasetRef(job, job.encode().ljust(16, b"-")), clock
            )
            speed = SPEEDS[job]
            # A beat that stalls between its look at the time and this one measures no other speed.
            reader.reads(
                DATASET_BYTES,
                lambda speed=speed: JobProgress(0, int(speed * (clock.looked_at - began)), 0.0),
            )
            reader.begin()
            self.all.append(reader)

    def rates(self) -> dict[str, float | None]:
        found = [reader.statistics() for reader in self.all]
        return {each.job: each.job_bytes_per_s for each in found}

    def allowed(self) -> list[float]:
        """What each may use; infinite without a limit."""
        found = [reader.statistics().allowed_bytes_per_s for reader in self.all]
        return [float("inf") if each is None else each for each in found]

    def silence_s(self) -> float:
        """The time since one of them was answered last."""
        return min(reader.statistics().age_s or 0.0 for reader in self.all)


@contextmanager
def readers_of(url: str) -> Iterator[Readers]:
    readers = Readers(url)
    try:
        yield readers
    finally:
        for reader in readers.all:
            reader.close()


@contextmanager
def watched(readers: Readers) -> Iterator[list[float]]:
    """Look all the time at what readers may use together; the sums."""
    ended = threading.Event()
    sums: list[float] = []

    def look() -> None:
        while not ended.wait(0.01):
            sums.append(sum(readers.allowed()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield sums
    finally:
        ended.set()
        thread.join()


@contextmanager
def allocator_process(url: str) -> Iterator[ForkedProgram]:
    """A `dlcmd alloc run`; it is killed at the end."""
    command = [sys.executable, "-m", "dieselfs.cli", "alloc", "run", "--remote-io", str(int(TOTAL))]
    environment = {**os.environ, "DIESELFS_INDEX": url}
    program = FORKER.start_piped([*command, "--cache", "0"], env=environment)
    with program:
        assert b"allocating" in program.stdout.readline()
        try:
            yield program
        finally:
            program.send_signal(signal.SIGKILL)


def near(rates: Mapping[str, float | None]) -> object:
    return pytest.approx(rates, rel=0.05)


def test_allocators_and_the_redis_are_killed(own_redis_server: RedisProcess) -> None:
    url = own_redis_server.url
    directory = RedisDirectory(url)
    with ExitStack() as processes, readers_of(url) as readers:
        started = [processes.enter_context(allocator_process(url)) for _ in range(2)]
        eventually(
            lambda: (
                sum(readers.allowed()) == pytest.approx(TOTAL)
                and None not in readers.rates().values()
            ),
            "an allocation",
        )
        eventually(lambda: max(readers.allowed()) < 0.6 * TOTAL, "equal shares")
        before = readers.rates()
        with watched(readers) as sums:
            # The leader is killed: the other one takes over.
            first = eventually(lambda: _leader(own_redis_server), "a leader")
            [leading] = [each for each in started if f":{each.pid}:" in first]
            leading.send_signal(signal.SIGKILL)
            killed_at = time.monotonic()
            eventually(lambda: _leader(own_redis_server) not in ("", first), "another one leads")
            assert time.monotonic() - killed_at < scaled_by_load(5.5)
            assert readers.rates() == near(before)

            # All allocators and the Redis are killed: readers keep what they had.
            for each in started:
                each.send_signal(signal.SIGKILL)
            own_redis_server.stop()
            own_redis_server.forget()
            eventually(lambda: readers.silence_s() > 1.5, "the Redis is missed")
            assert readers.rates() == near(before)

            # It comes back empty: a new allocator finds the same from leases alone.
            own_redis_server.start()
            processes.enter_context(allocator_process(url))
            came_back_at = time.monotonic()
            eventually(
                lambda: (
                    {each.job: each.bytes_per_s for each in directory.decisions().ios}
                    == near(before)
                ),
                "the same allocation",
                ignored=RegistryUnavailable,
            )
            assert time.monotonic() - came_back_at < scaled_by_load(10)
            eventually(lambda: readers.silence_s() < 1.5, "all see it")
            assert readers.rates() == near(before)
        assert len(sums) > 100
        assert max(sums) <= TOTAL * 1.001
        assert min(sums) >= TOTAL * 0.9
    directory.close()


def _leader(server: RedisProcess) -> str:
    with server.client() as client:
        return (client.hget("dieselfs:{allocation}:leader", "id") or b"").decode()


def test_a_redis_that_is_restarted_with_its_data_changes_nothing(
    own_redis_server: RedisProcess,
) -> None:
    directory = RedisDirectory(own_redis_server.url)
    directory.allocate_remote_io("fast", 8e6, origin="hand")
    directory.allocate_remote_io("slow", 2e6, origin="allocator")
    with readers_of(own_redis_server.url) as readers:
        eventually(lambda: readers.allowed() == [4e6, 4e6, 2e6], "the shares")
        with watched(readers) as sums:
            own_redis_server.stop()
            eventually(lambda: readers.silence_s() > 1.5, "the Redis is missed")
            own_redis_server.start()
            directory.allocate_remote_io("slow", 1e6, origin="allocator")
            eventually(lambda: readers.allowed() == [4e6, 4e6, 1e6], "the change")
        assert max(sums) == 10e6
    directory.close()


def test_an_allocator_puts_back_what_people_had_put(
    own_redis_server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator_module, "SETTLED_S", 0.0)
    directory = RedisDirectory(own_redis_server.url)
    directory.allocate_remote_io("slow", 1e6, origin="hand")
    directory.allocate_cache_size("imagenet", "1" * 32, 5, origin="hand")
    directory.put_job(entry("fast"))
    directory.beat(lease("fast"), 60.0)
    allocator = Allocator(named_policy("fifo"), lambda: (10, TOTAL))
    for _ in range(2):
        allocator.beat(directory)
    before, jobs = directory.decisions(), directory.jobs()
    with own_redis_server.client() as client:
        client.flushall()
    directory.beat(lease("fast"), 60.0)
    for _ in range(3):
        allocator.beat(directory)
    found = directory.decisions()
    assert found.life != before.life
    assert {each.key: each.bytes_per_s for each in found.ios} == {
        each.key: each.bytes_per_s for each in before.ios
    }
    assert {each.key: each.size_bytes for each in found.caches} == {
        each.key: each.size_bytes for each in before.caches
    }
    assert [each.job for each in directory.jobs()] == [each.job for each in jobs]
    directory.close()
