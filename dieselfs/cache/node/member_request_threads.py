"""The threads that answer the requests of a master's members in other processes.

A request may take as long as a fetch, so every request connection has a thread of its own: as many
as there are readers that miss at the same time.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Final, Protocol

from dieselfs.cache.node.member_port import master_failed
from dieselfs.cache.ports.master_port import MasterPort
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.wire import packet_socket
from dieselfs.cache.wire.fields import block_of
from dieselfs.cache.wire.local_messages import (
    MAX_NAMES,
    BadPacket,
    Done,
    Expect,
    Fetch,
    FollowPlan,
    GetStatistics,
    GetTask,
    MemoryScrubbed,
    Message,
    Prefetch,
    ScrubMemory,
    SetBudget,
    SetQuota,
    StatisticsReported,
    StillWorking,
    SuspectPeer,
    TaskReported,
    failure,
)
from dieselfs.cache.wire.task_report import task_fields

log = logging.getLogger(__name__)

WORKING_S: Final = 10.0
"""The time between two signs that a request is still being handled.

It is a third of the time limit of members (`remote_master.ANSWER_TIMEOUT_S`).
"""


class PeerTask(Protocol):
    """The node's part in its task's peer cache (`peer_cache.PeerCache`)."""

    def statistics(self) -> TaskStatistics:
        """Return the statistics of this part."""
        ...

    def suspect(self, peer: str) -> None:
        """Stop asking this peer for a while: a process of this node found it failing."""
        ...


class MemberRequestThreads:
    """The request connections of all members, each with its thread. Thread-safe."""

    def __init__(self, task: PeerTask | None) -> None:
        """`task` is given if the node takes part in a peer cache."""
        self._task = task
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, tuple[MasterPort, threading.Thread]] = {}
        self._busy: dict[socket.socket, float] = {}
        """The connections with a request under way, and the time of the last sign of work."""
        self._report_working_at = 0.0

    def serve(self, connection: socket.socket, port: MasterPort) -> None:
        """Answer the requests of one more connection of the member that has this port.

        The connection is closed if there can be no more threads.
        """
        connection.setblocking(True)
        thread = threading.Thread(
            target=self._answer_all,
            args=(connection, port),
            name="node-memory-requests",
            daemon=True,
        )
        with self._lock:
            self._connections[connection] = port, thread
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            log.warning("cannot answer the requests of one more connection: %s", error)
            with self._lock:
                del self._connections[connection]
            connection.close()

    def report_working(self) -> None:
        """Send signs of work where they are due."""
        now = time.monotonic()
        if now < self._report_working_at:
            return
        self._report_working_at = now + WORKING_S / 2
        with self._lock:
            for connection, signalled_at in self._busy.items():
                if now - signalled_at >= WORKING_S:
                    self._busy[connection] = now
                    with suppress(OSError):  # the member does not read, or is gone
                        packet_socket.send(connection, StillWorking(), socket.MSG_DONTWAIT)

    def disconnect(self, port: MasterPort) -> None:
        """Wake the threads of a member's connections, which close them."""
        with self._lock:
            for connection, (owner, _) in self._connections.items():
                if owner is port:
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def join(self, timeout_s: float) -> None:
        """Wait for the threads of connections that have been disconnected."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            threads = [thread for _, thread in self._connections.values()]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def forsake(self) -> None:
        """Close the copies of the connections in a forked child."""
        for connection in tuple(self._connections):
            connection.close()

    def _answer_all(self, connection: socket.socket, port: MasterPort) -> None:
        expected: list[str] = []
        try:
            packet_socket.send(connection, Done())
            while True:
                request = packet_socket.receive(connection)
                if isinstance(request, Expect):
                    expected.extend(request.names)
                    if request.is_last:
                        request, expected = Expect(tuple(expected), True), []
                packet_socket.send(connection, self._answered(connection, port, request))
        except (OSError, BadPacket) as error:
            if not isinstance(error, ConnectionError):
                log.warning("closed a member's connection for requests: %s", error)
        finally:
            with self._lock:
                del self._connections[connection]
            connection.close()

    def _answered(self, connection: socket.socket, port: MasterPort, request: Message) -> Message:
        with self._lock:
            self._busy[connection] = time.monotonic()
        try:
            return self._answer(port, request)
        finally:
            with self._lock:  # no sign of work may follow the answer
                del self._busy[connection]

    def _answer(self, port: MasterPort, request: Message) -> Message:
        """Return the answer to a request. Raises `BadPacket` for any other message."""
        try:
            match request:
                case Fetch(block, ahead):
                    port.fetch(block_of(block), ahead=ahead)
                case Prefetch(blocks):
                    port.prefetch(tuple(map(block_of, blocks)))
                case Expect(names, is_last):
                    if is_last:
                        port.expect(names)
                case SetBudget(budget_bytes):
                    port.set_budget(budget_bytes)
                case SetQuota(quota_bytes, window_bytes):
                    port.set_quota(quota_bytes, window_bytes)
                case FollowPlan(plan):
                    port.follow(Path(plan))
                case GetStatistics():
                    return StatisticsReported(astuple(port.statistics()))
                case ScrubMemory():
                    found = port.scrub()
                    damaged = found.damaged[:MAX_NAMES]
                    return MemoryScrubbed(found.blocks, found.size_bytes, damaged)
                case GetTask(first):
                    if self._task is None:
                        return TaskReported(None)
                    return TaskReported(task_fields(self._task.statistics(), first), first)
                case SuspectPeer(peer):
                    if self._task is not None:
                        self._task.suspect(peer)
                case _:
                    raise BadPacket(f"a {type(request).__name__} is not a request")
        except BadPacket:
            raise
        except Exception as error:
            return _failed(error)
        return Done()


def _failed(error: Exception) -> Message:
    known = failure(error)
    if known is None:
        known = failure(master_failed(error))
        assert known is not None
    return known
