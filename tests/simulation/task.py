"""One run: a task of some nodes, its readers, what happens to it, and what must hold all the same.

What must hold, with the names that failures are reported by:

right      every read returns the source's bytes, and none raises: the store is sound
in time    every read ends within `read_bound_s` of virtual time
once       if nothing happens, and all know each other and have room, each chunk leaves the store
           once, whole, whoever reads it
few        and a process has one connection a peer at most
in vain    nobody waits for an answer until his patience ends, unless a peer works for ever, or
           nearly so
breaker    a peer that has failed is asked nothing by the same process for a second
healed     `HEAL_S` after the last fault all nodes see all others again, and every breaker is closed
           (or `HEAL_S` less a breaker's longest hold: who failed again and again is given longer
           and longer pauses by design); then each chunk, read by each process past its memory,
           leaves the store once at most, asked of its owner
refetched  after a node was killed and the survivors' views agree, what leaves the store does so
           once a chunk at most, and nothing does that its owner holds
nothing left   no thread, no stream, no listener, once all are closed
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from chunkstore.chunk_format import BLOCK_BYTES
from dieselfs.cache.membership.placement import Placement
from dieselfs.cache.ports.members import View
from dieselfs.cache.wire.messages import Ping
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.errors import MasterGone, PeerFailed
from tests.simulation.dataset import SimulatedStore, small_dataset
from tests.simulation.network import Network
from tests.simulation.node import Reader, SimulatedNode
from tests.simulation.registries import Directories
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scenario import Fault, Scenario
from tests.simulation.scheduler import Host, Scheduler, SimulationFailed, Task

HEAL_S: Final = 10.0
SETTLE_S: Final = 10.0
QUESTION_S: Final = 2.5
"""What a question to a peer that is silent costs: a connect or a hello and then an answer, each
within 1 s, the timeouts' rounding, and latencies."""
WORK_S: Final = 15.5
"""And to one that says for ever that it works."""
SLOW_STORE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run that held all that must."""

    steps: int
    virtual_s: float
    reads: int
    store_calls: int
    digest: float
    """Equal for equal runs: the next number of the generator that decided everything."""


class World:
    """One run. Everything in it runs in the calling thread."""

    def __init__(self, scenario: Scenario, trace: Callable[[str], None] | None = None) -> None:
        self.scenario, self.seed = scenario, scenario.seed
        self.scheduler = Scheduler(
            f"run {scenario.seed}", preempt=scenario.preempt, trace=trace, max_time_s=600.0
        )
        self.network = Network(self.scheduler, window=scenario.window, cutting=scenario.cutting)
        self.dataset = small_dataset(scenario.dataset)
        self.store = SimulatedStore(self.scheduler, self.dataset, scenario.store_latency_s)
        self.controller = SimulatedRuntime(
            self.scheduler, self.network, Host("controller"), "10.0.1.1"
        )
        self.directories = Directories(scenario.registry, len(scenario.nodes))
        self.nodes = [SimulatedNode(self, at, plan) for at, plan in enumerate(scenario.nodes)]
        self._restarted: list[Task] = []
        """Readers of nodes that were killed and started again."""
        self.reads = 0
        self.longest_read_s = 0.0

    def run(self) -> Outcome:
        scheduler = self.scheduler
        with production_logs(scheduler):
            try:
                scheduler.run(self._main, self.controller.host)
                left = self.network.left()
                if left:
                    raise SimulationFailed("left open:\n  " + "\n  ".join(left))
                if scheduler.left():
                    raise SimulationFailed("threads left:\n  " + "\n  ".join(scheduler.left()))
            finally:
                scheduler.bury()
        return Outcome(
            scheduler.steps,
            scheduler.now - 1000.0,
            self.reads,
            self.store.calls,
            scheduler.random.random(),
        )

    def saw(self, node: SimulatedNode, view: View) -> None:
        if self.scheduler.tracing:
            up = [member.id for member in view.members if member.id not in view.silent]
            answered = {id: round(at - 1000.0, 3) for id, at in view.answered.items()}
            self.scheduler.trace(f"view of {node.id}: {up} of {len(view.members)}, {answered}")

    # The course of a run.

    def _main(self) -> None:
        scenario, here = self.scenario, self.controller
        starts = [here.start(self._starter(node), f"start {node.id}") for node in self.nodes]
        for start in starts:
            assert start.join(60.0)
        if scenario.settles:
            self._until(self._all_see_all, SETTLE_S, "all nodes see each other")
            self.store.gets.clear()
        readers = [task for node in self.nodes for task in self._begin_reading(node)]
        faults = [
            here.start(lambda f=fault: self._happen(f), f"fault {fault.kind}")
            for fault in scenario.faults
        ]  # type: ignore[misc]
        self._wait_for_readers(readers)
        for fault in faults:
            assert fault.join(120.0)
        if scenario.kind == "kill":
            self._check_refetched()
        else:
            self._wait_for_readers(self._restarted)
            if faults:
                self._wait_for_readers(
                    [t for node in self.nodes for t in self._begin_reading(node)]
                )
            self._check_healed()
            if scenario.kind == "calm":
                self._check_once()
        self._check_connections()
        self._close()

    def _starter(self, node: SimulatedNode) -> Callable[[], None]:
        def start() -> None:
            if self.scenario.settles and node.number:
                self.controller.sleep(node.plan.starts_after_s)
            node.start()

        return start

    def _close(self) -> None:
        closing = []
        for node in self.nodes:
            if node.alive:
                closing.append(self.scheduler.spawn(node.close, "close", node.host))
        for task in closing:
            if not self.scheduler.join(task, 60.0):
                raise SimulationFailed(
                    "a node does not close:\n  " + "\n  ".join(self.scheduler.left())
                )
        # Threads of servers and readers may be about to end.
        deadline = self.scheduler.now + 5.0
        while len(self.scheduler.left()) > 1 and self.scheduler.now < deadline:
            self.scheduler.sleep(0.1)

    # Readers.

    def _begin_reading(self, node: SimulatedNode) -> list[Task]:
        if not node.alive:
            return []
        tasks = []
        if self.scenario.policy == "oneshot":
            tasks.append(
                self.scheduler.spawn(lambda: node.fill(self.dataset.chunks), "fill", node.host)
            )
        for process in node.processes:
            for number in range(node.plan.readers):
                name = f"reader {process.name}.{number}"
                draw = random.Random(f"{self.seed} {name} {node.lives} {self.scheduler.now}")
                run = self._reader(node, process, draw)
                tasks.append(self.scheduler.spawn(run, name, node.host))
        return tasks

    def _reader(
        self, node: SimulatedNode, process: Reader, draw: random.Random
    ) -> Callable[[], None]:
        def run() -> None:
            scenario, scheduler = self.scenario, self.scheduler
            step_s = max(scenario.pause_s, 0.05)
            for _ in range(scenario.reads):
                if scenario.in_step:
                    step = int(scheduler.now / step_s) + 1
                    scheduler.sleep(step * step_s - scheduler.now, "the next step")
                    choice = random.Random(f"{self.seed} {step}")
                    if draw.random() < 0.3:
                        continue  # held up by something else
                else:
                    if scenario.pause_s:
                        scheduler.sleep(draw.expovariate(1 / scenario.pause_s), "its next read")
                    choice = draw
                begun = scheduler.now
                try:
                    self._read(node, process, choice)
                except MasterGone:
                    assert process.has_left, "its node is there"
                if process.has_left:
                    return
                self._check_time(node, begun)
                self.reads += 1

        return run

    def _read(self, node: SimulatedNode, process: Reader, draw: random.Random) -> None:
        files, chunks = self.dataset.files, self.dataset.chunks
        if self.scenario.kind == "calm":
            # What a node owns its memory has room for, so nothing of that is read past it.
            elsewhere = process.source.owner_is_elsewhere
            others = [(file, content) for file, content in files if elsewhere(file.chunk.id)]
            chunks = tuple(chunk for chunk in chunks if elsewhere(chunk.id))
        else:
            others = list(files)
        way = draw.choices(["file", "past memory", "many", "chunk"], [4, 2, 2, 1])[0]
        if not others:
            way = "file"
        if way == "many":
            some = [draw.choice(others) for _ in range(draw.randint(1, 12))]
            self.scheduler.trace(f"reads {len(some)} files at once")
            got = process.source.read_many([file for file, _ in some])
            self._check_right([bytes(data) for data in got], [content for _, content in some])
            return
        if way == "chunk":
            chunk = draw.choice(chunks)
            self.scheduler.trace(f"reads chunk {chunk.id}")
            head, payload = process.source.whole(chunk)
            self._check_right(bytes(payload), self.dataset.payloads[chunk.id])
            self._check_right(bytes(head), self.dataset.heads[chunk.id])
            return
        file, content = draw.choice(list(files) if way == "file" else others)
        self.scheduler.trace(f"reads a file of chunk {file.chunk.id} ({way})")
        if way == "file":
            self._check_right(node.read_file(process, file), content)
        else:
            start, data = node.read_past_memory(process, file, draw)
            self._check_right(data, content[start : start + len(data)])

    def _check_right(self, got: object, expected: object) -> None:
        if got != expected:
            raise SimulationFailed(f"not right: got {got!r:.200}, expected {expected!r:.200}")

    def read_bound_s(self, node: SimulatedNode) -> float:
        """How long a read may take, from docs/decisions/0011-peer-cache.md, points 3 and 7.

        A reader asks two peers at most, then the store. A peer that is asked may itself ask one,
        and then read the store, before it answers; all that time it says that it works, or else is
        given up. One that works for ever is given up after 15 s. Who waits for another's fetch
        waits for a part of that one, and then asks itself. A node that does not run, or runs
        slowly, takes so much longer.
        """
        faults = self.scenario.faults
        if self.scenario.kind == "calm":
            # Nobody is silent: the store, for an owner and perhaps for oneself, and the network.
            return 30 * self.scenario.store_latency_s + (
                2.0 if self.dataset.has_large_file else 0.5
            )
        slow = SLOW_STORE_S if any(fault.kind == "slow store" for fault in faults) else 0.0
        store_s = 15 * max(self.scenario.store_latency_s, slow) + 0.1
        works = any(
            fault.vice == "works for ever" or fault.kind in ("slow host", "pause")
            for fault in faults
        )
        answer_s = QUESTION_S + max(WORK_S if works else 0.0, QUESTION_S + store_s)
        own_s = sum(
            fault.lasts_s + 5.0
            for fault in faults
            if fault.kind in ("pause", "slow host") and fault.node == node.number
        )
        return 2 * (2 * answer_s + 2 * store_s) + own_s

    def _check_time(self, node: SimulatedNode, begun: float) -> None:
        took = self.scheduler.now - begun
        self.longest_read_s = max(self.longest_read_s, took)
        if took > (bound := self.read_bound_s(node)):
            raise SimulationFailed(
                f"not in time: a read took {took:.2f} s, the bound is {bound:.2f} s"
            )

    def _wait_for_readers(self, readers: list[Task]) -> None:
        for task in readers:
            while not task.ended and not task.host.dead:
                self.scheduler.join(task, 0.5)

    # What happens.

    def _happen(self, fault: Fault) -> None:
        scheduler, network = self.scheduler, self.network
        scheduler.sleep(fault.at_s, "its time")
        node, other = self.nodes[fault.node], self.nodes[fault.other]
        scheduler.trace(f"{fault.kind} {fault.vice or ''} {node.id} {other.id} begins")
        undo: Callable[[], None] = lambda: None  # noqa: E731
        match fault.kind:
            case "cut":
                network.cut(node.ip, other.ip)
                network.cut(other.ip, node.ip)

                def undo() -> None:
                    network.cut(node.ip, other.ip, is_cut=False)
                    network.cut(other.ip, node.ip, is_cut=False)
            case "isolated":
                self._isolate(node, is_cut=True)
                undo = lambda: self._isolate(node, is_cut=False)  # noqa: E731
            case "power off":
                if node.alive:
                    self._isolate(node, is_cut=True)
                    node.kill()

                    def undo() -> None:
                        self._isolate(node, is_cut=False)
                        self._restart(node)
            case "leave":
                if node.alive:
                    self._leave(node)
                    undo = lambda: self._restart(node)  # noqa: E731
            case "cut one way":
                network.cut(node.ip, other.ip)
                undo = lambda: network.cut(node.ip, other.ip, is_cut=False)  # noqa: E731
            case "drip":
                network.drip(node.ip, other.ip)
                undo = lambda: network.drip(node.ip, other.ip, drips=False)  # noqa: E731
            case "refuse":
                network.refuse(node.ip, other.ip)
                undo = lambda: network.refuse(node.ip, other.ip, refuses=False)  # noqa: E731
            case "reset":
                network.reset(node.ip, other.ip)
            case "kill":
                if node.alive:
                    node.kill()
                    undo = lambda: self._restart(node)  # noqa: E731
            case "pause":
                host = node.host
                scheduler.pause(host)
                undo = lambda: scheduler.resume(host)  # noqa: E731
            case "slow host":
                host = node.host
                host.lag_s = 0.05
                undo = lambda: setattr(host, "lag_s", 0.0)  # noqa: E731
            case "slow store":
                self.store.latency_s = SLOW_STORE_S
                undo = lambda: setattr(self.store, "latency_s", self.scenario.store_latency_s)  # noqa: E731
            case "vice":
                node.conscience.vice = fault.vice
                undo = lambda: setattr(node.conscience, "vice", None)  # noqa: E731
            case "directory":
                self.directories.is_out = True
                undo = lambda: setattr(self.directories, "is_out", False)  # noqa: E731
        if fault.lasts_s < 1e6:
            scheduler.sleep(fault.lasts_s, "its end")
            scheduler.trace(f"{fault.kind} {fault.vice or ''} {node.id} {other.id} ends")
            undo()

    def _isolate(self, node: SimulatedNode, *, is_cut: bool) -> None:
        for other in self.nodes:
            if other is not node:
                self.network.cut(node.ip, other.ip, is_cut=is_cut)
                self.network.cut(other.ip, node.ip, is_cut=is_cut)

    def _leave(self, node: SimulatedNode) -> None:
        """In good order, while it is read from and reads itself."""
        host = node.host
        self.scheduler.resume(host)
        closing = self.scheduler.spawn(node.close, "close", host)
        if not self.scheduler.join(closing, 60.0):
            raise SimulationFailed(f"nothing left: {node.id} does not close")
        deadline = self.scheduler.now + self.read_bound_s(node)
        while host.tasks:
            if self.scheduler.now > deadline:
                names = ", ".join(f"{task} waits for {task.waits_for}" for task in host.tasks)
                raise SimulationFailed(f"nothing left: {names}")
            self.scheduler.sleep(0.1, "the end of its threads")

    def _restart(self, node: SimulatedNode) -> None:
        node.start()
        self._restarted += self._begin_reading(node)

    # What must hold.

    def _alive(self) -> list[SimulatedNode]:
        return [node for node in self.nodes if node.alive]

    def _processes(self) -> Iterator[tuple[SimulatedNode, Reader]]:
        for node in self._alive():
            for process in node.processes:
                yield node, process

    def _all_see_all(self) -> str | None:
        """Why not, or None."""
        alive = {node.id for node in self._alive()}
        for node in self._alive():
            view = node.board.current()
            seen = {member.id for member in Placement.of(view).members} if view else set()
            if seen != alive:
                return f"{node.id} sees {sorted(seen)} of {sorted(alive)}"
        return None

    def _breakers_closed(self) -> str | None:
        for node, process in self._processes():
            view = node.board.current()
            assert view is not None
            for peer in sorted(process.breakers.states()):
                if not process.breakers.allows(peer, view.answered.get(peer)):
                    return f"the breaker of {process.name} for {peer} is open: {process.breakers.states()[peer]}"
        return None

    def _until(self, why_not: Callable[[], str | None], seconds: float, what: str) -> None:
        deadline = self.scheduler.now + seconds
        while (reason := why_not()) is not None:
            if self.scheduler.now > deadline:
                raise SimulationFailed(f"not healed: {what} after {seconds:.1f} s? {reason}")
            self.scheduler.sleep(0.1, what)

    def _longest_hold_s(self) -> float:
        now = self.scheduler.now
        return max(
            (
                state.until - now
                for _, process in self._processes()
                for state in process.breakers.states().values()
                if state.is_open
            ),
            default=0.0,
        )

    def _check_healed(self) -> None:
        patience_s = HEAL_S + max(0.0, self._longest_hold_s())
        self._until(
            lambda: self._all_see_all() or self._breakers_closed(), patience_s, "all are used again"
        )
        self.scheduler.trace("healed")
        if self.scenario.kind != "calm":
            self._renew_connections()
            self._sweep()

    def _renew_connections(self) -> None:
        """A connection that was reset while nobody used it is noticed by the next who asks, and
        that one goes to the store."""

        def renew(node: SimulatedNode, process: Reader) -> None:
            for other in self._alive():
                if other is not node:
                    with suppress(PeerFailed):
                        process.client.ask(other.me, Ping())

        tasks = [
            self.scheduler.spawn(partial(renew, node, process), f"renew {process.name}", node.host)
            for node, process in self._processes()
        ]
        self._wait_for_readers(tasks)

    def _check_refetched(self) -> None:
        self._until(self._all_see_all, SETTLE_S, "the survivors agree")
        self._until(self._breakers_closed_to_living, SETTLE_S, "the survivors trust each other")
        self._sweep()

    def _breakers_closed_to_living(self) -> str | None:
        alive = {node.id for node in self._alive()}
        for node, process in self._processes():
            view = node.board.current()
            assert view is not None
            for peer in sorted(alive & process.breakers.states().keys()):
                if not process.breakers.allows(peer, view.answered.get(peer)):
                    return f"the breaker of {process.name} for {peer} is open"
        return None

    def _sweep(self) -> None:
        """Everybody reads every chunk past its memory, in an order of its own, all at once."""
        self.store.gets.clear()
        cached = {(node.id, chunk) for node in self._alive() for chunk in node.memory.cached()}
        placement = Placement([node.me for node in self._alive()])
        owner = {chunk.id: placement.owner(chunk.id) for chunk in self.dataset.chunks}
        tasks = []
        for node, process in self._processes():

            def sweep(node: SimulatedNode = node, process: Reader = process) -> None:
                chunks = list(self.dataset.chunks)
                random.Random(f"{self.seed} {process.name}").shuffle(chunks)
                for chunk in chunks:
                    mine = owner[chunk.id]
                    if mine is not None and mine.id == node.id:
                        if self.scenario.ample:
                            node.memory.fetch(chunk)
                        continue
                    _, payload = process.source.whole(chunk)
                    self._check_right(bytes(payload), self.dataset.payloads[chunk.id])

            tasks.append(self.scheduler.spawn(sweep, f"sweep {process.name}", node.host))
        self._wait_for_readers(tasks)
        if self.scenario.ample and self._some_share():
            for chunk in self.dataset.chunks:
                whose = owner[chunk.id]
                assert whose is not None
                allowed = 0 if (whose.id, chunk.id) in cached else 1
                gets = self.store.gets.whole[chunk.id]
                if gets > allowed:
                    raise SimulationFailed(
                        f"refetched: chunk {chunk.id} of {whose.id} left the store {gets} times,"
                        f" though its owner {'held it' if not allowed else 'could have fetched it once'}"
                    )

    def _some_share(self) -> bool:
        return any(node.me.weight for node in self._alive())

    def _check_once(self) -> None:
        if not (self.scenario.ample and self.scenario.settles):
            return
        for chunk in self.dataset.chunks:
            whole, ranges = self.store.gets.whole[chunk.id], self.store.gets.ranges[chunk.id]
            large = chunk.payload_bytes > BLOCK_BYTES
            if whole > 1 or (ranges and not large):
                raise SimulationFailed(
                    f"once: chunk {chunk.id} left the store {whole} times whole, and {ranges} ranges of it"
                )

    def _check_connections(self) -> None:
        for _, process in self._processes():
            client: PeerClient = process.client
            count = client.connections()
            if count > len(self.nodes) - 1:
                raise SimulationFailed(f"few: {process.name} has {count} connections")


@contextmanager
def production_logs(scheduler: Scheduler) -> Iterator[None]:
    """What the production modules log goes into the trace, or nowhere."""
    roots = [logging.getLogger(name) for name in ("dieselfs", "chunkstore")]
    kept = [(root.handlers[:], root.propagate, root.level) for root in roots]
    handler = _TraceHandler(scheduler)
    for root in roots:
        root.handlers[:] = [handler]
        root.propagate = False
        root.setLevel(logging.DEBUG if scheduler.tracing else logging.CRITICAL + 1)
    try:
        yield
    finally:
        for root, (handlers, propagate, level) in zip(roots, kept, strict=True):
            root.handlers[:] = handlers
            root.propagate = propagate
            root.setLevel(level)


class _TraceHandler(logging.Handler):
    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def emit(self, record: logging.LogRecord) -> None:
        self._scheduler.trace(f"log {record.levelname}: {record.getMessage()}")
