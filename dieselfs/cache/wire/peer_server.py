"""The server that answers the task's other masters and their processes from this node's memory.

One thread accepts connections. Each connection has a thread of its own (`served_connection`), which
first lets the client prove that it belongs to the task. All that unproved clients can make grow is
bounded, and nothing that comes over a connection ends more than that connection.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from dieselfs.cache.ports.cached_chunks import CachedChunks, NodeStatus
from dieselfs.cache.ports.members import MemberId
from dieselfs.cache.ports.runtime import PeerAddress, Running, Runtime, Stream
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire.frame_header import BadFrame
from dieselfs.cache.wire.frame_stream import receive_greeting
from dieselfs.cache.wire.handshake import NONCE_BYTES, ServerHandshake
from dieselfs.cache.wire.served_connection import MemberList, ServedConnection, Service
from dieselfs.cache.wire.slow_answers import SlowAnswers
from dieselfs.errors import PeerRefused

__all__ = ["PeerServer", "PeerServerStatistics", "MemberList"]

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 2.0
"""The time that a client has for its handshake."""
MAX_CONNECTIONS: Final = 2048
MAX_STRANGERS: Final = 128
"""The limit of connected clients that have proved nothing yet."""
MAX_WORKERS: Final = 16
"""The number of blocks that are loaded for peers at a time."""
MAX_BLOCKS: Final = 1024
"""The number of blocks that are waited for at a time."""
WARNED_EVERY_S: Final = 60.0
"""The interval between two warnings of refused connections, for each kind of refusal.

A refused client tries again: a node once a second, a stranger as often as it likes.
"""
_BREATH_S: Final = 0.1
"""The pause after a connection could not be accepted, most likely for lack of descriptors."""


@dataclass(frozen=True, slots=True)
class PeerServerStatistics:
    """Statistics of one server.

    Counts and bytes are those since the server began, unless stated otherwise.
    """

    connections: int
    """Connections open now."""
    accepted: int
    refused: int
    """Connections refused: no proof of the task, too many of them, or a breach of the protocol."""
    requests: int
    """Requests answered with data."""
    sent_bytes: int
    """Bytes of bulk."""


class ServedTasks(Protocol):
    """The caches that a server serves besides its own task's, by the name in a client's hello.

    Thread-safe.
    """

    def serves(self, task: str) -> bool:
        """Return whether this task is served. Keeps nothing, since strangers cause calls of it."""
        ...

    def cached(self, task: str) -> CachedChunks:
        """Return the cache of a task that is served, for a client that has proved the secret."""
        ...


@dataclass(slots=True, eq=False)
class _Client:
    """A connected client."""

    stream: Stream
    connection: ServedConnection | None = None
    """None while the client is a stranger."""
    thread: Running | None = None
    """None for a moment at the client's start."""


class PeerServer:
    """A server of one node's cached chunks. It serves from its creation until `close`."""

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
        """Listen and serve. Raises `OSError` if it can't listen there.

        Pongs carry `cached.status()`, with the bytes and answers that this server has sent in
        `served_bytes` and `served_requests`. Clients prove that they know the secret, whichever
        task they ask for.
        """
        self._runtime = runtime
        self._secret = secret
        self._task = task
        self._me = me
        self._tasks = tasks
        self._slow = SlowAnswers(runtime, max_workers, MAX_BLOCKS)
        self._service = Service(cached, self._slow, member_list, self._status)
        self._lock = runtime.lock()
        """Protects the fields below."""
        self._clients: dict[_Client, None] = {}
        """A dictionary, since a set has no fixed order, and a simulation could not be replayed."""
        self._closed = False
        self._accepted = self._refused = 0
        self._quiet_until: dict[type[Exception], float] = {}
        """The end of the time without warnings, for each kind of refusal."""
        self._answers = self._sent_bytes = 0
        """Counts of connections that have ended."""
        self._listener = runtime.listen(listen)
        self._accepting = runtime.start(self._accept, "peer-server-accepts")

    @property
    def address(self) -> PeerAddress:
        """The address that the server listens on, with the port that was chosen."""
        return self._listener.address

    def statistics(self) -> PeerServerStatistics:
        """Return the statistics of this server."""
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
        """End all connections. Return whether all threads have ended within the time.

        A thread may hang in a fetch.
        """
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
        """Run in a thread: accept connections until the listener is closed."""
        while True:
            try:
                stream = self._listener.accept()
            except OSError as error:
                with self._lock:
                    if self._closed:
                        return
                log.warning("the peer server cannot accept a connection: %s", error)
                self._runtime.sleep(_BREATH_S)
            else:
                if not self._admit(_Client(stream)):
                    stream.close()

    def _admit(self, client: _Client) -> bool:
        """Give the client a thread. Return False if there may be no further one."""
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
                log.warning("the peer server cannot serve one more connection: %s", error)
                return False
            self._clients[client] = None
            return True

    def _serve(self, client: _Client) -> None:
        """Run in a thread: serve one client until its connection ends."""
        try:
            name, version, service = self._greet(client.stream)
            connection = ServedConnection(self._runtime, client.stream, name, service, version)
            with self._lock:
                client.connection = connection
                self._accepted += 1
            connection.serve()
        except (PeerRefused, BadFrame) as error:
            level = self._refusal(type(error))
            log.log(level, "the peer server refused a connection: %s", error)
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

    def _greet(self, stream: Stream) -> tuple[str, int, Service]:
        """Shake hands; return the client's name, the version and the requested service."""
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
            return handshake.client, handshake.version, self._service
        service = replace(self._service, cached=tasks.cached(handshake.task))
        return handshake.client, handshake.version, service

    def _refusal(self, kind: type[Exception]) -> int:
        """Count a refusal, and return the level at which to log it."""
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
