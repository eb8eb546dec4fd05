"""Three nodes with real clients read a dataset from each other's memories while one of them, the
network or the directory fails.

However it fails: no reader gets an error or a wrong byte, nobody is kept waiting for long, what is
lost is soon in memory again, and when the fault is over the node serves again.
DIESELFS_LONG_FAULTS=1 tries more ways to fail. The nodes are those of one task, on which all of
these tests work in turn; each begins when files come from memories alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.eventually import eventually, scaled_by_load
from tests.peers.task_nodes import Reader, TaskNodes, make_dataset
from tests.services.network_nodes import Node, network_nodes
from tests.services.redis_processes import RedisProcess
from tests.stopping import stop

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are made by root")
LONG = bool(os.environ.get("DIESELFS_LONG_FAULTS"))

FILES, SIZE_BYTES, CHUNK_BYTES = 512, 16 << 10, 64 << 10
MEMORY_BYTES = FILES * SIZE_BYTES * 70 // 100
"""A node's memory: a third of the dataset and some copies; half of it, when one of three is gone.
Then a node owns 64 ± 6 of 128 chunks, as their ids fall, and has room for 89."""
BOUND_S = 8.0
"""For a single read. A peer that is silent is given up after 1 s, and each of two may be; the rest
is for machines that stall."""
STEP_S = 0.001
"""Between two reads of a file, while the tests wait for what happens meanwhile."""
SERVES_BYTES = 20 * SIZE_BYTES
FAULTY: Path = Path(__file__).with_name("faulty_node.py")


@dataclass(frozen=True, slots=True)
class RunningTask:
    nodes: TaskNodes
    readers: list[Reader]
    redis: RedisProcess

    @property
    def lost(self) -> Node:
        """The node that something happens to, the last."""
        return self.nodes.network.nodes[-1]

    @property
    def others(self) -> list[Reader]:
        return self.readers[:-1]

    def from_store_bytes(self) -> int:
        return self.nodes.dataset.from_store_bytes()

    def settle(self) -> None:
        """Until all files are in memories, and are read from there."""

        def is_settled() -> bool:
            before = self.from_store_bytes()
            sent = [node.sent_bytes() for node in self.nodes.network.nodes]
            for seed, reader in enumerate(self.readers):
                reader.read(seed=seed)
            return self.from_store_bytes() == before and all(
                node.sent_bytes() - was >= SERVES_BYTES
                for node, was in zip(self.nodes.network.nodes, sent, strict=True)
            )

        eventually(is_settled, "all files in the memories of three nodes")


@pytest.fixture(scope="module")
def running() -> Iterator[RunningTask]:
    with network_nodes(3) as network, network.redis() as server:
        dataset = make_dataset(network.folder, FILES, SIZE_BYTES, CHUNK_BYTES)
        nodes = TaskNodes(network, dataset, server.url)
        with nodes.clients(MEMORY_BYTES) as readers:
            yield RunningTask(nodes, readers, server)


@pytest.fixture
def task(running: RunningTask) -> RunningTask:
    running.settle()
    return running


@contextmanager
def reading(readers: Sequence[Reader]) -> Iterator[float]:
    """They read, epoch by epoch, until the end of this, without an error and without waiting; since
    when."""
    since = time.monotonic()
    before = [len(reader.hear()) for reader in readers]
    for seed, reader in enumerate(readers):
        reader.tell(read="files", seed=seed, epochs=1_000_000, step_s=STEP_S)
    try:
        goes_on(readers)
        yield since
    finally:  # the next test has the same readers
        for reader in readers:
            reader.tell(cancel=True)
        ends = [reader.end_of_read(said) for reader, said in zip(readers, before, strict=True)]
    assert max(ended["longest_s"] for ended in ends) < scaled_by_load(BOUND_S)


def goes_on(readers: Sequence[Reader], files: int = FILES // 2) -> None:
    """Until each of them has read so many files more."""
    before = [reader.files() for reader in readers]
    eventually(
        lambda: all(
            reader.files() - was >= files for reader, was in zip(readers, before, strict=True)
        ),
        "readers go on",
    )


def serves(node: Node) -> None:
    """Until it sends files again."""
    before = node.sent_bytes()
    eventually(lambda: node.sent_bytes() - before >= SERVES_BYTES, f"{node.name} serves")


def send(node: Node, what: signal.Signals) -> None:
    for pid in node.processes():
        stop(pid) if what == signal.SIGSTOP else os.kill(pid, what)


Fault = Callable[[Node], None]
FAULTS: dict[str, tuple[Fault, Fault]] = {
    "stopped": (lambda node: send(node, signal.SIGSTOP), lambda node: send(node, signal.SIGCONT)),
    "cut off": (Node.cut_off, Node.heal),
    "deaf": (Node.deafen, Node.heal),
    "mute": (Node.mute, Node.heal),
    "resetting": (Node.reset, Node.heal),
    "unplugged": (Node.unplug, Node.plug),
    "losing 2 %": (lambda node: node.lose(2), Node.heal),
    "slower than a peer may be": (lambda node: node.limit_rate(100_000), Node.unlimit_rate),
}
AT_ONCE = ("resetting",)
"""These are noticed by the first who asks."""
QUICK = ("stopped", "mute", "slower than a peer may be", *AT_ONCE)


@pytest.mark.parametrize("fault", FAULTS if LONG else QUICK)
def test_a_node_is_out_of_reach_and_comes_back(task: RunningTask, fault: str) -> None:
    begin, end = FAULTS[fault]
    with reading(task.others):
        cached = task.from_store_bytes()
        begin(task.lost)
        try:
            goes_on(task.others, 2 * FILES)
            without_store(task, task.others)
            if fault in AT_ONCE:
                # What was lost, a third and some more: once in chunks, by who owns it now, and once
                # in files until both nodes know that. A busy machine makes other peers silent, too.
                limit = scaled_by_load(task.nodes.dataset.bytes * 0.8)
                assert task.from_store_bytes() - cached < limit
        finally:
            end(task.lost)
        before = task.from_store_bytes()
        serves(task.lost)
        goes_on(task.others, FILES)
    assert_from_each_other(task, before)
    task.readers[-1].read(seed=7)


def without_store(task: RunningTask, readers: Sequence[Reader]) -> None:
    """Until what was lost is in the others' memories: they read all files without the store."""

    def is_there() -> bool:
        before = task.from_store_bytes()
        goes_on(readers, FILES)
        return task.from_store_bytes() == before

    eventually(is_there, "all files in the memories of those who are left")


def assert_from_each_other(task: RunningTask, before: int) -> None:
    """A node that returns has its share from who had it: what leaves the store is a few chunks,
    while views differ."""
    assert task.from_store_bytes() - before < scaled_by_load(task.nodes.dataset.bytes / 3)


def test_a_master_is_killed_and_its_reader_goes_on(task: RunningTask) -> None:
    """The next one adopts what is in the folder."""
    killed = task.nodes.master(task.lost)
    with reading(task.readers):
        os.kill(killed, signal.SIGKILL)
        goes_on(task.readers)
        eventually(lambda: task.nodes.master(task.lost) != killed, "another master")
        serves(task.lost)
        without_store(task, task.readers)


@pytest.mark.parametrize("fault", ["wrong", "other", "short", "drip"] if LONG else ["wrong"])
def test_a_peer_that_knows_the_secret_is_faulty(task: RunningTask, fault: str) -> None:
    order = {
        "fault": fault,
        "task": task.nodes.task,
        "redis": task.nodes.index,
        "address": task.nodes.network.hub.address,
        "weight": MEMORY_BYTES >> 20,
        "disk": str(task.nodes.dataset.disk),
        "snapshot": str(task.nodes.dataset.snapshot),
    }
    before = task.from_store_bytes()
    process = task.nodes.network.hub.start(
        [sys.executable, FAULTY, json.dumps(order)],
        {"DIESELFS_TASK_SECRET": task.nodes.secret},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process, reading(task.readers):
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        goes_on(task.readers, 3 * FILES)
        process.communicate("")
        goes_on(task.readers)
    # Peers that a busy machine makes silent cost reads of the store too.
    assert task.from_store_bytes() - before < scaled_by_load(2 * task.nodes.dataset.bytes)


def test_redis_is_away_and_comes_back_empty(task: RunningTask) -> None:
    before = task.from_store_bytes()
    with reading(task.readers):
        task.redis.stop()
        away_since = time.monotonic()
        eventually(lambda: time.monotonic() - away_since > 7.0, "the length of a lease")
        goes_on(task.readers)
        serves(task.lost)  # peers ask one that a busy machine made silent again after a while
        task.redis.forget()
        task.redis.start()
        goes_on(task.readers)
        serves(task.lost)
    assert_from_each_other(task, before)


@pytest.mark.parametrize("difference", ["secret", "task"] if LONG else ["secret"])
def test_another_task_gets_nothing(task: RunningTask, difference: str) -> None:
    """The same dataset and Redis, on a node of the first task."""
    sent = [node.sent_bytes() for node in task.nodes.network.nodes]
    stranger = replace(
        task.nodes,
        **{difference: "of somebody else, and long enough"[:24].replace(" ", "-").replace(",", "")},
    )
    options = {
        "DIESELFS_MEMORY_FOLDER": str(task.nodes.network.hub.folder / "memory"),
        "DIESELFS_PEER_NAME": "stranger",
    }
    before = task.from_store_bytes()
    with stranger.clients(MEMORY_BYTES, options, [task.nodes.network.hub]) as [reader]:
        reader.read(seed=1)
        assert task.from_store_bytes() - before >= task.nodes.dataset.bytes
    assert all(
        node.sent_bytes() - was < SERVES_BYTES
        for node, was in zip(task.nodes.network.nodes, sent, strict=True)
    )
