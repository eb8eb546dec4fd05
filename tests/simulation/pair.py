"""A host whose client asks, and a host that serves chunks or follows a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.wire.messages import Data, ReadFile
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_server import PeerServer
from tests.dieselfs.cache.peers.plain_chunks import PlainChunks, chunk
from tests.dieselfs.cache.peers.scripted_peer import SECRET, TASK, Conversation, scripted_peer
from tests.simulation.network import Network
from tests.simulation.runtime import SimulatedRuntime
from tests.simulation.scheduler import Scheduler

ASKS, ANSWERS = "10.0.0.1", "10.0.0.2"
FILE_BYTES = 16 << 10
CHUNKS = [chunk(number) for number in range(40)]


@dataclass
class Pair:
    scheduler: Scheduler
    network: Network
    cached: PlainChunks
    asks: SimulatedRuntime
    answers: SimulatedRuntime

    def play(self, scene: Callable[[PeerClient, Member], None]) -> None:
        def run() -> None:
            listen = PeerAddress(ANSWERS, 1)
            server = PeerServer(self.answers, SECRET, TASK, "peer", listen, self.cached)
            client = PeerClient(self.asks, SECRET, TASK, "test")
            scene(client, Member("peer", listen, 1))
            client.close()
            assert server.close(10.0)

        self.scheduler.run(run, self.asks.host)

    def follow(
        self,
        scripts: Sequence[Callable[[Conversation], None]],
        scene: Callable[[PeerClient, Member], None],
    ) -> None:
        """Play a scene with a peer that follows scripts in place of a server."""

        def run() -> None:
            listen = PeerAddress(ANSWERS, 1)
            with scripted_peer(*scripts, runtime=self.answers, listen=listen) as peer:
                client = PeerClient(self.asks, SECRET, TASK, "test")
                scene(client, peer)
                client.close()

        self.scheduler.run(run, self.asks.host)

    def ask(self, client: PeerClient, peer: Member, number: int) -> None:
        request = ReadFile(CHUNKS[number % len(CHUNKS)], 0, FILE_BYTES, True)
        assert isinstance(client.ask(peer, request), Data)
