"""TCP between simulated hosts: bytes in order, cut anywhere, late by a seeded latency, held back by
faults.

A fault is of a *path*, from one address to another. A path that is cut loses what is sent on it,
and TCP sends it again: so nothing arrives before the path is whole again, and then it all does.
Acknowledgements take the path back: if that one is cut, a sender goes on until its window is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from chunkstore.stores.object_store import Buffer
from dieselfs.cache.ports.runtime import PeerAddress
from tests.simulation.scheduler import Host, Scheduler, Task

DRIP_S: Final = 0.2
"""Between two bytes of a path that drips."""
FIRST_EPHEMERAL_PORT: Final = 40_000


@dataclass(slots=True)
class Path:
    """From one address to another."""

    latency_s: float
    bytes_per_s: float
    cut: bool = False
    drips: bool = False
    refuses: bool = False
    """Connects are answered by a reset."""


@dataclass(slots=True, eq=False)
class Pipe:
    """One direction of a connection."""

    network: Network
    path: Path
    """Of the bytes."""
    back: Path
    """Of what is said of them."""
    window: int
    """How many bytes may be under way or not yet read."""
    under_way: deque[tuple[float, memoryview]] = field(default_factory=deque)
    """What was sent, and when its last byte can be there at the earliest."""
    ready: bytearray = field(default_factory=bytearray)
    unread: int = 0
    """Of the window."""
    unthanked: int = 0
    """Read, but the sender does not know it, since the path back is cut."""
    arrival: float = inf
    """When the next bytes arrive; infinite if none are under way, or the path is cut."""
    arriving: int = 0
    line_free: float = 0.0
    ended: float | None = None
    """When the sender closed it: an end behind all bytes."""
    gone: bool = False
    """The receiver has closed it: what is sent is answered by a reset."""
    reset: float | None = None
    """From when on the receiver is told that the connection is gone, once the path is whole."""
    reader: Task | None = None
    writer: Task | None = None
    opposite: Pipe | None = None
    """The other direction of its connection."""

    def room(self) -> int:
        return self.window - self.unread

    def send(self, data: memoryview) -> None:
        scheduler = self.network.scheduler
        self.unread += len(data)
        if self.gone:
            return
        self.under_way.append((scheduler.now + self.path.latency_s, data))
        if len(self.under_way) == 1:
            self.cut_next()
        self.wake_reader()

    def cut_next(self) -> None:
        """Decide how many of the next bytes arrive together, and when."""
        path, scheduler = self.path, self.network.scheduler
        if not self.under_way or path.cut:
            self.arrival = inf
            return
        earliest, data = self.under_way[0]
        start = max(earliest, self.line_free)
        if path.drips:
            self.arriving, self.arrival = 1, start + DRIP_S
            return
        count = len(data)
        if count > 1 and scheduler.random.random() < self.network.cutting:
            count = 1 + int(scheduler.random.random() * count)
        self.arriving, self.arrival = count, start + count / path.bytes_per_s

    def advance(self) -> None:
        """Let arrive what has, by now."""
        now = self.network.scheduler.now
        while self.arrival <= now:
            earliest, data = self.under_way[0]
            self.ready += data[: self.arriving]
            if self.arriving == len(data):
                self.under_way.popleft()
            else:
                self.under_way[0] = earliest, data[self.arriving :]
            self.line_free = self.arrival
            self.cut_next()

    def take(self, target: memoryview) -> int:
        count = min(len(target), len(self.ready))
        if count:
            target[:count] = self.ready[:count]
            del self.ready[:count]
            if self.back.cut:
                self.unthanked += count
            else:
                self.unread -= count
                self.wake_writer()
        return count

    def reset_after(self, seconds: float) -> None:
        """Tell the receiver, and who sends on its end, that the connection is gone."""
        scheduler = self.network.scheduler
        if self.reset is None:
            self.reset = scheduler.now + seconds
            self.wake_reader()
            scheduler.at(self.reset, self.wake_opposite)

    def wake_opposite(self) -> None:
        if self.opposite is not None:
            self.opposite.wake_writer()

    def is_reset(self) -> bool:
        return (
            self.reset is not None
            and self.reset <= self.network.scheduler.now
            and not self.path.cut
        )

    def is_at_end(self) -> bool:
        return (
            self.ended is not None
            and not self.under_way
            and not self.ready
            and not self.path.cut
            and self.ended + self.path.latency_s <= self.network.scheduler.now
        )

    def next_event(self) -> float:
        """When there may be something for the receiver."""
        if self.path.cut:
            return inf
        event = self.arrival
        if self.ended is not None and not self.under_way:
            event = min(event, self.ended + self.path.latency_s)
        if self.reset is not None:
            event = min(event, self.reset)
        return event

    def changed(self, was_cut: bool) -> None:
        """A path has: what was lost is sent again some time after it is whole."""
        scheduler = self.network.scheduler
        if was_cut and not self.path.cut:
            self.line_free = scheduler.now + scheduler.random.random() * 0.5
        self.advance()
        self.cut_next()
        if not self.back.cut and self.unthanked:
            self.unread -= self.unthanked
            self.unthanked = 0
        self.wake_reader()
        self.wake_writer()

    def wake_reader(self) -> None:
        if self.reader is not None:
            self.network.scheduler.wake(self.reader)

    def wake_writer(self) -> None:
        if self.writer is not None:
            self.network.scheduler.wake(self.writer)


class SimulatedStream:
    """One end of a connection. Implements `Stream`."""

    def __init__(
        self, network: Network, host: Host, name: str, to_peer: Pipe, from_peer: Pipe
    ) -> None:
        self.host, self.name = host, name
        self._network, self._scheduler = network, network.scheduler
        self._to_peer, self._from_peer = to_peer, from_peer
        self.closed = False
        network.streams.append(self)

    def send(self, buffers: Sequence[Buffer], timeout_s: float) -> None:
        scheduler, pipe = self._scheduler, self._to_peer
        scheduler.pass_on()
        deadline = scheduler.now + timeout_s
        assert pipe.writer is None, f"two threads send on {self.name} at once"
        for buffer in buffers:
            data = memoryview(bytes(buffer))
            while data:
                self._check()
                room = pipe.room()
                if room > 0:
                    pipe.send(data[:room])
                    if pipe.gone:
                        self._from_peer.reset_after(pipe.path.latency_s + pipe.back.latency_s)
                    data = data[room:]
                    continue
                pipe.writer = scheduler.current
                try:
                    in_time = scheduler.wait(f"room to send on {self.name}", deadline)
                finally:
                    pipe.writer = None
                if not in_time:
                    raise TimeoutError(f"{self.name} takes nothing")
        self._check()

    def receive_into(self, target: memoryview, timeout_s: float, *, at_least: int = 1) -> int:
        scheduler, pipe = self._scheduler, self._from_peer
        assert 0 < at_least <= len(target), (at_least, len(target))
        assert pipe.reader is None, f"two threads receive from {self.name} at once"
        scheduler.look()
        deadline = scheduler.now + timeout_s
        filled = 0
        while True:
            self._check()
            pipe.advance()
            filled += pipe.take(target[filled:])
            if filled >= at_least or pipe.is_at_end():
                return filled
            event = pipe.next_event()
            if event <= scheduler.now:
                continue
            if deadline <= scheduler.now:
                raise TimeoutError(f"nothing from {self.name}")
            pipe.reader = scheduler.current
            try:
                scheduler.wait(f"bytes from {self.name}", min(deadline, event))
            finally:
                pipe.reader = None

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._network.streams.remove(self)
        now = self._scheduler.now
        out, into = self._to_peer, self._from_peer
        into.advance()
        if into.ready or into.under_way:  # closed with bytes unread: TCP answers with a reset
            out.reset_after(out.path.latency_s)
        else:
            out.ended = now
        into.gone = True
        into.wake_reader()
        into.wake_writer()
        out.wake_reader()
        out.wake_writer()

    def abort(self) -> None:
        """A reset, sent to both ends by something between them."""
        self._to_peer.reset_after(0.0)
        self._from_peer.reset_after(0.0)

    def _check(self) -> None:
        if self.closed:
            raise OSError("this end is closed")
        if self._from_peer.is_reset():
            raise ConnectionResetError(f"{self.name} was reset")


class SimulatedListener:
    """Implements `Listener`."""

    def __init__(self, network: Network, host: Host, address: PeerAddress) -> None:
        self._network, self.host, self._address = network, host, address
        self._waiting: deque[tuple[float, SimulatedStream]] = deque()
        self._acceptor: Task | None = None
        self._closed = False

    @property
    def address(self) -> PeerAddress:
        return self._address

    def insert(self, stream: SimulatedStream, at: float) -> None:
        self._waiting.append((at, stream))
        if self._acceptor is not None:
            self._network.scheduler.wake(self._acceptor)

    def accept(self) -> SimulatedStream:
        scheduler = self._network.scheduler
        while True:
            if self._closed:
                raise OSError("this listener is closed")
            if self._waiting and self._waiting[0][0] <= scheduler.now:
                return self._waiting.popleft()[1]
            self._acceptor = scheduler.current
            try:
                scheduler.wait(
                    f"connections to {self._address}",
                    self._waiting[0][0] if self._waiting else None,
                )
            finally:
                self._acceptor = None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        del self._network.listeners[self._address]
        for _, stream in self._waiting:
            stream.abort()
            stream.close()
        self._waiting.clear()
        if self._acceptor is not None:
            self._network.scheduler.wake(self._acceptor)


class Network:
    """All addresses, the paths between them, and what is open."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        latency_s: tuple[float, float] = (50e-6, 2e-3),
        bytes_per_s: tuple[float, float] = (20e6, 1e9),
        window: int = 64 << 10,
        cutting: float = 0.5,
    ) -> None:
        """Latencies and rates are drawn between these bounds, once a path. `cutting` is the chance
        that bytes sent together arrive apart."""
        self.scheduler = scheduler
        self.cutting = cutting
        self.window = window
        self.listeners: dict[PeerAddress, SimulatedListener] = {}
        self.streams: list[SimulatedStream] = []
        """The open ends."""
        self.connects = 0
        self._latency_s, self._bytes_per_s = latency_s, bytes_per_s
        self._paths: dict[tuple[str, str], Path] = {}
        self._pipes: list[Pipe] = []
        self._connecting: list[Task] = []
        self._ports: dict[str, int] = {}

    def path(self, source: str, target: str) -> Path:
        path = self._paths.get((source, target))
        if path is None:
            draw = self.scheduler.random.uniform
            path = Path(draw(*self._latency_s), draw(*self._bytes_per_s))
            if source == target:
                path.latency_s = 20e-6
            self._paths[source, target] = path
        return path

    # What runtimes call.

    def listen(self, host: Host, ip: str, address: PeerAddress) -> SimulatedListener:
        if address.host not in (ip, "0.0.0.0", "127.0.0.1"):
            raise OSError(f"{address.host} is not an address of this host")
        port = address.port or self._free_port(ip)
        bound = PeerAddress(ip, port)
        if bound in self.listeners:
            raise OSError(f"{bound} is in use")
        listener = self.listeners[bound] = SimulatedListener(self, host, bound)
        return listener

    def connect(
        self, host: Host, ip: str, address: PeerAddress, timeout_s: float
    ) -> SimulatedStream:
        scheduler = self.scheduler
        scheduler.pass_on()
        me = scheduler.current
        assert me is not None
        deadline = scheduler.now + timeout_s
        to, back = self.path(ip, address.host), self.path(address.host, ip)
        while to.cut or back.cut:
            self._connecting.append(me)
            try:
                in_time = scheduler.wait(f"a connection to {address}", deadline)
            finally:
                self._connecting.remove(me)
            if not in_time:
                raise TimeoutError(f"no answer from {address}")
        trip = to.latency_s + back.latency_s
        if scheduler.now + trip > deadline:
            scheduler.sleep(deadline - scheduler.now)
            raise TimeoutError(f"no answer from {address}")
        scheduler.sleep(trip, f"a connection to {address}")
        listener = self.listeners.get(address)
        if listener is None or to.refuses:
            raise ConnectionRefusedError(f"{address} refuses")
        self.connects += 1
        out, into = self._pipe(to, back), self._pipe(back, to)
        out.opposite, into.opposite = into, out
        mine = SimulatedStream(self, host, f"{address}", out, into)
        theirs = SimulatedStream(self, listener.host, f"{ip} ({me.name})", into, out)
        listener.insert(theirs, scheduler.now + to.latency_s)
        if scheduler.tracing:
            scheduler.trace(f"connected to {address}")
        return mine

    # Faults.

    def cut(self, source: str, target: str, *, is_cut: bool = True) -> None:
        """One way; the other way is another path."""
        path = self.path(source, target)
        was, path.cut = path.cut, is_cut
        self._changed(path, was)

    def drip(self, source: str, target: str, *, drips: bool = True) -> None:
        path = self.path(source, target)
        path.drips = drips
        self._changed(path, path.cut)

    def refuse(self, source: str, target: str, *, refuses: bool = True) -> None:
        self.path(source, target).refuses = refuses

    def reset(self, one: str, other: str) -> None:
        """All connections between two addresses."""
        paths = (self.path(one, other), self.path(other, one))
        for stream in list(self.streams):
            if stream._to_peer.path in paths:
                stream.abort()

    def kill(self, host: Host) -> None:
        """A process: its threads vanish, its kernel closes what it had open."""
        self.scheduler.kill(host)
        for listener in [each for each in self.listeners.values() if each.host is host]:
            listener.close()
        for stream in [each for each in self.streams if each.host is host]:
            stream.close()

    def left(self) -> list[str]:
        """What is open, of hosts that live."""
        streams = [f"{each.host.name}: stream {each.name}" for each in self.streams]
        return streams + [f"{each.host.name}: {at}" for at, each in self.listeners.items()]

    def _pipe(self, path: Path, back: Path) -> Pipe:
        pipe = Pipe(self, path, back, self.window)
        self._pipes.append(pipe)
        return pipe

    def _changed(self, path: Path, was_cut: bool) -> None:
        for pipe in self._pipes:
            if pipe.path is path:
                pipe.changed(was_cut)
            elif pipe.back is path:
                pipe.changed(pipe.path.cut)
        for task in self._connecting:
            self.scheduler.wake(task)

    def _free_port(self, ip: str) -> int:
        port = self._ports.get(ip, FIRST_EPHEMERAL_PORT) + 1
        self._ports[ip] = port
        return port
