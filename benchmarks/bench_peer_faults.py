"""What does a task feel of a node that is killed, and of one that is stopped and goes on?

Three nodes (network namespaces) read in random order, each with memory for two thirds of the
dataset, over a slow disk (8.3 ms a seek, 150 MB/s, one queue for all). Beside it, in the same
round, two nodes alone: what is left of three can do no better. Rates are of both surviving readers
together, in windows of half a second.

    killed    SIGKILL of all that a node runs, in mid-epoch: seconds until the others reach 0.9 of
              what two nodes give
    stopped   SIGSTOP of all that a node runs: the longest single read of the others; the time a
              file takes them afterwards, against two nodes; and after SIGCONT the seconds until
              that node serves again (until it sends 1 MB in half a second)

Expectation: a peer that is silent is given up after 1 s and asked no more; its share, a third, is
fetched in chunks, 0.6 s for 96 MB. Needs root.

    python -m benchmarks.bench_peer_faults [--rounds 3] [--quick]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.harness import report, spread
from tests.peers.task_nodes import PeerDataset, Reader, TaskNodes, make_dataset
from tests.services.network_nodes import Network, Node, network_nodes

SIZE_BYTES = 32 << 10
CHUNK_BYTES = 4 << 20
SEEK_S, BYTES_PER_S = 8.3e-3, 150e6
WINDOW_S = 0.5
EPOCHS = 100_000
"""More than there is time for: the readers are cancelled."""
SERVES_BYTES = 1_000_000
"""Sent within a window by a node that serves."""
BARS = {"back_s": 5.0, "longest_s": 2.0, "time": 1.1, "used_again_s": 10.0}


@dataclass(slots=True)
class Seen:
    """A value for each round."""

    back_s: list[float] = field(default_factory=list)
    """Until 0.9 of two nodes' rate."""
    killed_longest_s: list[float] = field(default_factory=list)
    stopped_longest_s: list[float] = field(default_factory=list)
    time: list[float] = field(default_factory=list)
    """Of a file without the stopped peer, relative to two nodes alone."""
    used_again_s: list[float] = field(default_factory=list)
    two_nodes: list[float] = field(default_factory=list)
    """Files a second."""
    three_nodes: list[float] = field(default_factory=list)
    """Of two of them."""


class Bench:
    def __init__(self, network: Network, dataset: PeerDataset, watch_s: float) -> None:
        self._network = network
        self._dataset = dataset
        self._watch_s = watch_s
        self._tasks = 0
        self.seen = Seen()

    def round(self) -> None:
        *staying, lost = self._network.nodes
        with self._reading(staying) as readers:
            alone = rate(readers, *self._steady())
        self.seen.two_nodes.append(alone)
        with self._reading(self._network.nodes) as readers:
            self.seen.three_nodes.append(rate(readers[:2], *self._steady()))
            killed = time.monotonic()
            lost.end_processes()
            time.sleep(self._watch_s)
            self.seen.back_s.append(seconds_until(readers[:2], killed, 0.9 * alone))
            self.seen.killed_longest_s.append(longest(readers[:2], killed))
        with self._reading(self._network.nodes) as readers:
            self._steady()
            stopped = time.monotonic()
            send(lost, signal.SIGSTOP)
            time.sleep(self._watch_s)
            self.seen.stopped_longest_s.append(longest(readers[:2], stopped))
            self.seen.time.append(alone / rate(readers[:2], *self._steady()))
            send(lost, signal.SIGCONT)
            self.seen.used_again_s.append(seconds_until_served(lost))

    def _steady(self) -> tuple[float, float]:
        """A while in which nothing happens; its bounds."""
        began = time.monotonic()
        time.sleep(self._watch_s)
        return began, time.monotonic()

    @contextmanager
    def _reading(self, nodes: Sequence[Node]) -> Iterator[list[Reader]]:
        """A task of its own, warm, whose readers go on until the end; nothing is left of it
        then."""
        self._tasks += 1
        self._dataset.set_speed(seek_s=SEEK_S, bytes_per_s=BYTES_PER_S)
        with self._network.redis() as server:
            task = TaskNodes(
                self._network,
                self._dataset,
                server.url,
                task=f"faults{self._tasks}",
                options={"DIESELFS_PEER_NODES": str(len(nodes))},
            )
            try:
                with task.clients(self._dataset.bytes * 2 // 3, nodes=nodes) as readers:
                    for reader in readers:
                        reader.read(seed=0)
                    for number, reader in enumerate(readers):
                        reader.tell(read="files", seed=1000 * number, epochs=EPOCHS, verify=True)
                    yield readers
                    for reader in readers:
                        if reader.process.poll() is None:
                            reader.tell(cancel=True)
                            reader.wait_for("ended", len(reader.said))
                        assert not any(said.get("failure") for said in reader.hear())
            finally:
                for node in nodes:
                    node.end_processes()


def rate(readers: Sequence[Reader], began: float, ended: float) -> float:
    """Files a second of all together."""
    files = sum(
        said["files"]
        for reader in readers
        for said in reader.hear()
        if "at" in said and began < said["at"] <= ended
    )
    return files / (ended - began)


def longest(readers: Sequence[Reader], since: float) -> float:
    return max(
        said["longest_s"]
        for reader in readers
        for said in reader.hear()
        if said.get("at", 0) > since
    )


def seconds_until(readers: Sequence[Reader], since: float, files_per_s: float) -> float:
    """Until the end of the first window at this rate at least; infinite if there was none."""
    last = max(said["at"] for reader in readers for said in reader.hear() if "at" in said)
    at = since
    while at + WINDOW_S <= last:
        at += WINDOW_S / 5
        if rate(readers, at - WINDOW_S / 5, at + WINDOW_S * 4 / 5) >= files_per_s:
            return at + WINDOW_S * 4 / 5 - since
    return float("inf")


def seconds_until_served(node: Node, timeout_s: float = 30.0) -> float:
    began = time.monotonic()
    while time.monotonic() < began + timeout_s:
        before = node.sent_bytes()
        time.sleep(WINDOW_S)
        if node.sent_bytes() - before >= SERVES_BYTES:
            return time.monotonic() - began
    return float("inf")


def send(node: Node, what: signal.Signals) -> None:
    for pid in node.processes():
        os.kill(pid, what)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=9_000)
    parser.add_argument("--watch", type=float, default=6.0, help="seconds of each phase")
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.files, options.watch = 1, 1_000, 3.0
    with network_nodes(3) as network:
        dataset = make_dataset(network.folder, options.files, SIZE_BYTES, CHUNK_BYTES)
        bench = Bench(network, dataset, options.watch)
        for _ in range(options.rounds):
            bench.round()
    seen = bench.seen
    rates = {
        "two_nodes": statistics.median(seen.two_nodes),
        "two_of_three_nodes": statistics.median(seen.three_nodes),
    }
    report(
        "one of three nodes killed in mid-epoch: seconds until 0.9 of two nodes' rate",
        back_s=spread(seen.back_s),
        bar=BARS["back_s"],
        met=max(seen.back_s) <= BARS["back_s"],
        longest_read_s=max(seen.killed_longest_s),
        files_per_s=rates,
    )
    report(
        "a peer stopped, and the same peer continued",
        longest_read_s=spread(seen.stopped_longest_s),
        longest_bar=BARS["longest_s"],
        time_of_two_nodes=spread(seen.time),
        time_bar=BARS["time"],
        used_again_s=spread(seen.used_again_s),
        used_again_bar=BARS["used_again_s"],
        met=max(seen.stopped_longest_s) <= BARS["longest_s"]
        and statistics.median(seen.time) <= BARS["time"]
        and max(seen.used_again_s) <= BARS["used_again_s"],
        files_per_s=rates,
    )


if __name__ == "__main__":
    main()
