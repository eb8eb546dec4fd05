"""A node of a simulated task: the production modules over a simulated runtime, a memory and a
store."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.cache.membership.breakers import FIRST_HOLD_S, Breakers
from dieselfs.cache.membership.membership import TaskMembership
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.members import Member, MemberId, View
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire.messages import (
    Answer,
    Join,
    Leave,
    Ping,
    ReadChunk,
    ReadFile,
    ReadRanges,
    Request,
)
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_connection import SentRequest
from dieselfs.cache.wire.peer_server import PeerServer
from dieselfs.errors import CacheFull, MasterGone, PeerFailed
from tests.simulation.dataset import DATASET, SimulatedCallThreads
from tests.simulation.faulty_peer import Conscience, FaultyCache, FaultyRuntime
from tests.simulation.memory import SimulatedMemory
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scheduler import Host, Scheduler, SimulationFailed, Task

if TYPE_CHECKING:
    from tests.simulation.task import World

SECRET = TaskSecret(b"sixteen bytes or more")
TASK = "simulated"


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What a scenario says of one node."""

    weight: int
    budget_bytes: int
    processes: int
    """That read; the first of them leads."""
    readers: int
    """Threads in each."""
    starts_after_s: float


class Board:
    """A `ViewBoard` in memory."""

    def __init__(self, shown: Callable[[View], None]) -> None:
        self._view: View | None = None
        self._shown = shown

    def publish(self, view: View) -> None:
        self._view = view
        self._shown(view)

    def withdraw(self) -> None:
        self._view = None

    def current(self) -> View | None:
        return self._view


class WatchedBreakers(Breakers):
    """Knows for itself when a peer has failed, so that it is noticed if a breaker does not open."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler.look)
        self._scheduler = scheduler
        self._opened: dict[MemberId, float] = {}
        self._asked: dict[tuple[Task | None, MemberId], float] = {}

    def asked(self, peer: MemberId) -> None:
        self._asked[self._scheduler.current, peer] = self._scheduler.now

    def rested_s(self, peer: MemberId) -> float:
        """Since it failed, to one who asked it when its breaker was closed."""
        return self._scheduler.now - self._opened.get(peer, -inf)

    def failed(self, peer: MemberId) -> None:
        asked = self._asked.get((self._scheduler.current, peer), -inf)
        if asked > self._opened.get(peer, -inf):
            self._opened[peer] = self._scheduler.now
        super().failed(peer)


class WatchedClient(PeerClient):
    """Says what it asks, and what comes of it."""

    def __init__(
        self,
        runtime: SimulatedRuntime,
        name: str,
        breakers: WatchedBreakers,
        *,
        some_work_for_ever: bool,
    ) -> None:
        super().__init__(runtime, SECRET, TASK, name)
        self._some_work_for_ever = some_work_for_ever
        self._scheduler, self._breakers = runtime.scheduler, breakers

    def ask(self, member: Member, request: Request) -> Answer:
        scheduler = self._scheduler
        if not isinstance(request, Ping | Join | Leave):
            rested_s = self._breakers.rested_s(member.id)
            if rested_s < FIRST_HOLD_S:
                raise SimulationFailed(
                    f"breaker: {member.id} is asked {rested_s:.3f} s after it has failed"
                )
        what = _what(request) if scheduler.tracing else ""
        scheduler.trace(f"asks {member.id} {what}")
        try:
            answer = super().ask(member, request)
        except PeerFailed as error:
            scheduler.trace(f"failed: {member.id} {what}: {error}")
            if "has worked for" in str(error) and not self._some_work_for_ever:
                raise SimulationFailed(f"in vain: {error}, or was not heard") from error
            raise
        scheduler.trace(f"has from {member.id} {what}: {type(answer).__name__}")
        return answer

    def begin(self, member: Member, request: Request) -> SentRequest:
        if not isinstance(request, Ping | Join | Leave):
            self._breakers.asked(member.id)
        return super().begin(member, request)


def _what(request: Request) -> str:
    match request:
        case ReadFile(chunk=chunk) | ReadChunk(chunk=chunk):
            return (
                f"{type(request).__name__} of {chunk.id}{'' if request.may_fetch else ', if held'}"
            )
        case ReadRanges(chunks=chunks):
            return f"ReadRanges of {', '.join(str(chunk.id) for chunk in chunks)}"
    return type(request).__name__


class Reader:
    """One process of a node, as it reads."""

    def __init__(self, runtime: SimulatedRuntime, world: World, board: Board, name: str) -> None:
        self.name = name
        self.has_left = False
        """Its node has, in good order."""
        self.breakers = WatchedBreakers(world.scheduler)
        self.client = WatchedClient(
            runtime,
            name,
            self.breakers,
            some_work_for_ever=world.scenario.some_work_for_ever,
        )
        reader = ChunkReader(world.store, DATASET)
        reader._threads = SimulatedCallThreads(runtime)  # type: ignore[assignment]
        self.source = PeerSource(reader, TaskFolder(Path("/nonexistent")))
        self.source.attach(runtime, self.client, board, self.breakers)


class SimulatedNode:
    """Killed and started again it is the same member, with another process behind it."""

    def __init__(self, world: World, number: int, plan: NodePlan) -> None:
        self.world, self.number, self.plan = world, number, plan
        self.me = world.directories.member(number, plan.weight)
        self.id = self.me.id
        self.ip = self.me.address.host
        self.conscience = Conscience(f"{world.seed}/{self.id}")
        self.lives = 0
        self.alive = False
        """Between the end of `start` and a kill or the beginning of `close`."""
        self.host: Host
        self.processes: list[Reader] = []

    def start(self) -> None:
        """In a thread of the controller, which waits until it is up."""
        world = self.world
        self.lives += 1
        host = self.host = Host(f"{self.id}.{self.lives}")
        up: list[bool] = []

        def boot() -> None:
            self._boot()
            up.append(True)

        task = world.scheduler.spawn(boot, "boot", host)
        while not up and not host.dead:
            world.scheduler.join(task, 1.0)
        self.alive = bool(up) and not host.dead

    def _boot(self) -> None:
        world, plan = self.world, self.plan
        runtime = self.runtime = SimulatedRuntime(
            world.scheduler, world.network, self.host, self.ip
        )
        faulty = FaultyRuntime(world.scheduler, world.network, self.host, self.ip)
        faulty.conscience = self.conscience
        self.board = Board(lambda view: world.saw(self, view))
        self.processes = [
            Reader(runtime, world, self.board, f"{self.id}/{number}")
            for number in range(plan.processes)
        ]
        leader = self.processes[0]
        self.memory = SimulatedMemory(
            runtime,
            leader.source,
            plan.budget_bytes,
            lambda chunk: not leader.source.owner_is_elsewhere(chunk),
        )
        registry, member_list = world.directories.open(self.number, runtime, leader.client)
        self.server = PeerServer(
            faulty,
            SECRET,
            TASK,
            self.id,
            self.me.address,
            FaultyCache(runtime, self.memory, self.conscience),
            member_list,
        )
        self.membership = TaskMembership(
            runtime, registry, leader.client, self.me, self.board, leader.breakers
        )
        for process in self.processes:
            process.source.serve(self)
        for process in self.processes[1:]:
            process.breakers.on_opened(self.suspect)
        self.membership.start()

    def kill(self) -> None:
        self.alive = False
        self.world.network.kill(self.host)

    def close(self) -> None:
        """In a thread of its own host."""
        self.alive = False
        for process in self.processes:
            process.has_left = True
        self.memory.close()
        self.membership.close(5.0)
        for process in self.processes:
            process.client.close()
        assert self.server.close(20.0), "a server's threads have not ended"

    # What its processes tell its memory, as `OwnNode`.

    def suspect(self, peer: MemberId) -> None:
        self.processes[0].breakers.failed(peer)

    def take_over(self, chunk: ChunkRef) -> memoryview | None:
        try:
            self.memory.fetch(chunk)
        except (CacheFull, MasterGone):
            return None
        return self.memory.payload(chunk.id)

    # What its processes read, as `NodeMemory` does: from memory, by the master, past it.

    def read_file(self, process: Reader, file: FileExtent) -> bytes:
        chunk = file.chunk
        payload = self.memory.payload(chunk.id)
        if payload is None:
            try:
                self.memory.fetch(chunk)
            except CacheFull:
                return bytes(process.source.read(file, 0, file.length))
            payload = self.memory.payload(chunk.id)
            if payload is None:  # evicted meanwhile
                return bytes(process.source.read(file, 0, file.length))
        return bytes(payload[file.offset : file.offset + file.length])

    def read_past_memory(
        self, process: Reader, file: FileExtent, draw: random.Random
    ) -> tuple[int, bytes]:
        """A random range of the file, by the process itself; where it starts."""
        start = draw.randint(0, file.length)
        length = draw.randint(0, file.length - start)
        return start, bytes(process.source.read(file, start, length))

    def fill(self, chunks: Sequence[ChunkRef]) -> None:
        """*Oneshot*: this node's share."""
        for chunk in chunks:
            if not self.processes[0].source.owner_is_elsewhere(chunk.id):
                try:
                    self.memory.fetch(chunk, as_owner=True)
                except CacheFull:
                    pass
                except MasterGone:
                    return
