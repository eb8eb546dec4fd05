"""Answers the task's other masters and their processes from what this node's memory holds.

A thread accepts, and each connection has one of its own (`served_connection`), which first lets the client prove that it is of the task. All that
strangers can make grow is bounded, and nothing that comes over a connection ends more than that connection.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from dieselfs.errors import PeerRefused
from dieselfs.peercache.frame_stream import receive_greeting
from dieselfs.peercache.frames import BadFrame
from dieselfs.peercache.handshake import NONCE_BYTES, ServerHandshake
from dieselfs.peercache.held_chunks import CachedChunks, NodeStatus
from dieselfs.peercache.members import MemberId
from dieselfs.peercache.runtime import PeerAddress, Running, Runtime, Stream
from dieselfs.peercache.secret import TaskSecret
from dieselfs.peercache.served_connection import MemberList, ServedConnection, Service
from dieselfs.peercache.slow_answers import SlowAnswers

__all__ = ["PeerServer", "PeerServerStatistics", "MemberList"]

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 2.0
MAX_CONNECTIONS: Final = 2048
MAX_STRANGERS: Final = 128
"""Connected, and nothing proved yet."""
MAX_WORKERS: Final = 16
"""Pieces that are brought for peers at a time."""
MAX_BLOCKS: Final = 1024
"""That are waited for, at a time."""
WARNED_EVERY_S: Final = 60.0
"""Of refused connections, of each kind: whoever is refused tries again, once a second if it is a node, and strangers as often as they like."""
_BREATH_S: Final = 0.1
"""After a connection that could not be accepted: there are no descriptors, most likely."""


@dataclass(frozen=True, slots=True)
class PeerServerStatistics:
    """Counts and bytes since it began, unless said otherwise."""

    connections: int
    """As of now."""
    accepted: int
    refused: int
    """That did not prove to be of the task, came too many, or broke the protocol."""
    requests: int
    """Answered with data."""
    sent_bytes: int
    """Bulk alone."""


class ServedTasks(Protocol):
    """What a server serves besides its own task, by what a client's hello names. Thread-safe."""

    def serves(self, task: str) -> bool:
        """Asked by strangers: keeps nothing."""
        ...

    def cached(self, task: str) -> CachedChunks:
        """Of one that it serves, for who has proved to know the secret."""
        ...


@dataclass(slots=True, eq=False)
class _Client:
    """One that is connected."""

    stream: Stream
    connection: ServedConnection | None = None
    """None: a stranger."""
    thread: Running | None = None
    """None for a moment, at its start."""


class PeerServer:
    """Serves from when it is made until `close`."""

    def __init__(
        self,
        runtime: Runtime,
        secret: TaskSecret,
        task: str,
        me: MemberId,
        listen: PeerAddress,
        cached: CachedChunks,
        member_list: MemberList | None = None,
        tasks: ServedTasks | None = None,
        max_workers: int = MAX_WORKERS,
    ) -> None:
        """`OSError` if it can't listen there. Pongs tell `cached.status()`, with what this server has sent in `served_bytes` and `served_requests`.

        Clients prove that they know the secret, whichever task they ask for.
        """
        self._runtime = runtime
        self._secret = secret
        self._task = task
        self._me = me
        self._tasks = tasks
        self._slow = SlowAnswers(runtime, max_workers, MAX_BLOCKS)
        self._service = Service(cached, self._slow, member_list, self._status)
        self._lock = runtime.lock()
        """Of what follows."""
        self._clients: dict[_Client, None] = {}
        """Not a set: its order would be by chance, and a simulation could not be replayed."""
        self._closed = False
        self._accepted = self._refused = 0
        self._quiet_until: dict[type[Exception], float] = {}
        """Of refusals that were warned of."""
        self._answers = self._sent_bytes = 0
        """Of connections that have ended."""
        self._listener = runtime.listen(listen)
        self._accepting = runtime.start(self._accept, "peer-server-accepts")

    @property
    def address(self) -> PeerAddress:
        """With the port that was chosen."""
        return self._listener.address

    def statistics(self) -> PeerServerStatistics:
        with self._lock:
            served = [client.connection for client in self._clients if client.connection]
            return PeerServerStatistics(
                connections=len(served),
                accepted=self._accepted,
                refused=self._refused,
                requests=self._answers + sum(connection.answers for connection in served),
                sent_bytes=self._sent_bytes + sum(connection.sent_bytes for connection in served),
            )

    def close(self, timeout_s: float) -> bool:
        """All connections end. Whether all threads have ended, too, within the time: one may hang in a fetch."""
        deadline = self._runtime.now() + timeout_s
        with self._lock:
            self._closed = True
            clients = tuple(self._clients)
        self._listener.close()
        for client in clients:
            client.stream.close()
        threads = [self._accepting, *self._slow.close()]
        threads += [client.thread for client in clients if client.thread is not None]
        return all([thread.join(deadline - self._runtime.now()) for thread in threads])

    def _accept(self) -> None:
        """A thread."""
        while True:
            try:
                stream = self._listener.accept()
            except OSError as error:
                with self._lock:
                    if self._closed:
                        return
                log.warning("the peer server can't accept a connection: %s", error)
                self._runtime.sleep(_BREATH_S)
            else:
                if not self._admit(_Client(stream)):
                    stream.close()

    def _admit(self, client: _Client) -> bool:
        """Give it a thread, if there may be one more."""
        with self._lock:
            strangers = sum(client.connection is None for client in self._clients)
            if len(self._clients) >= MAX_CONNECTIONS or strangers >= MAX_STRANGERS:
                self._refused += 1
                return False
            if self._closed:
                return False
            try:
                client.thread = self._runtime.start(
                    partial(self._serve, client), "peer-server-serves"
                )
            except RuntimeError as error:  # no more threads
                log.warning("the peer server can't serve one more connection: %s", error)
                return False
            self._clients[client] = None
            return True

    def _serve(self, client: _Client) -> None:
        """A thread."""
        try:
            name, service = self._greet(client.stream)
            connection = ServedConnection(self._runtime, client.stream, name, service)
            with self._lock:
                client.connection = connection
                self._accepted += 1
            connection.serve()
        except (PeerRefused, BadFrame) as error:
            level = self._refusal(type(error))
            log.log(level, "a connection to the peer server was refused: %s", error)
        except OSError as error:
            log.debug("a connection to the peer server has ended: %s", error)
        except Exception:
            log.exception("a connection to the peer server failed")
        finally:
            client.stream.close()
            with self._lock:
                self._clients.pop(client, None)
                if client.connection is not None:
                    self._answers += client.connection.answers
                    self._sent_bytes += client.connection.sent_bytes

    def _greet(self, stream: Stream) -> tuple[str, Service]:
        """The client's name, and what it asks for, once it has proved that it may."""
        deadline = self._runtime.now() + HANDSHAKE_S
        nonce = self._runtime.random_bytes(NONCE_BYTES)
        tasks = self._tasks
        others = (lambda task: False) if tasks is None else tasks.serves
        handshake = ServerHandshake(self._secret, self._task, self._me, nonce, others)
        try:
            challenge = handshake.challenge(receive_greeting(self._runtime, stream, deadline))
            stream.send((challenge,), HANDSHAKE_S)
            welcome = handshake.welcome(receive_greeting(self._runtime, stream, deadline))
            stream.send((welcome,), HANDSHAKE_S)
        except PeerRefused:
            if handshake.refusal:
                stream.send((handshake.refusal,), HANDSHAKE_S)
            raise
        if tasks is None or handshake.task == self._task:
            return handshake.client, self._service
        return handshake.client, replace(self._service, cached=tasks.cached(handshake.task))

    def _refusal(self, kind: type[Exception]) -> int:
        """Count it; the level to log it at."""
        now = self._runtime.now()
        with self._lock:
            self._refused += 1
            if now < self._quiet_until.get(kind, now):
                return logging.DEBUG
            self._quiet_until[kind] = now + WARNED_EVERY_S
            return logging.WARNING

    def _status(self) -> NodeStatus:
        sent = self.statistics()
        return replace(
            self._service.cached.status(),
            served_bytes=sent.sent_bytes,
            served_requests=sent.requests,
        )
