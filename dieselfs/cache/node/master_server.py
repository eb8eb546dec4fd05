"""The server through which the members of a task reach their master.

It listens on the socket in the task's folder, for processes of its own user only.

One thread accepts, reads notices and sends cache events, and never waits for a member. A request
may take as long as a fetch, so every request connection has a thread of its own: as many as there
are readers that miss at the same time.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Final, Protocol

from dieselfs.cache.node.master import Master
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.master_port import MasterPort
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.wire import packet_socket
from dieselfs.cache.wire.fields import block_of
from dieselfs.cache.wire.local_messages import (
    MAX_NAMES,
    BadPacket,
    Discard,
    Done,
    EventsReported,
    Expect,
    Fetch,
    FollowPlan,
    GetStatistics,
    GetTask,
    JoinAsMember,
    Mapped,
    Message,
    OpenRequests,
    PlanProgress,
    Prefetch,
    SetBudget,
    StatisticsReported,
    StillWorking,
    SuspectPeer,
    TaskReported,
    Unmapped,
    failure,
)
from dieselfs.cache.wire.task_report import task_fields
from dieselfs.errors import MasterGone

log = logging.getLogger(__name__)

_MAX_BACKLOG: Final = 1 << 17
"""The cache events that may wait for a member.

A member that leaves more of them unread is disconnected; it may join again.
"""

WORKING_S: Final = 10.0
"""The time between two signs that a request is still being handled.

It is a third of the time limit of members (`remote_master.ANSWER_TIMEOUT_S`).
"""
_END_TIMEOUT_S: Final = 0.5
"""The time limit for fetches at the end: a store that hangs must not keep a mount from ending."""


class PeerTask(Protocol):
    """The node's part in its task's peer cache (`peer_cache.PeerCache`)."""

    def statistics(self) -> TaskStatistics:
        """Return the statistics of this part."""
        ...

    def suspect(self, peer: str) -> None:
        """Stop asking this peer for a while: a process of this node found it failing."""
        ...


@dataclass(slots=True, eq=False)
class _MemberConnection:
    """One member, its connections, and its unsent cache events."""

    port: MasterPort
    connection: socket.socket
    mapped: set[str] = field(default_factory=set)
    events: deque[tuple[bool, str]] = field(default_factory=deque)
    """The events that are not sent yet. Any thread appends; the server's own thread removes."""
    requests: set[socket.socket] = field(default_factory=set)


class Server:
    """The server of one master, from its creation until `close`. Implements `CacheObserver`."""

    def __init__(
        self,
        folder: TaskFolder,
        master: Master,
        task: PeerTask | None = None,
    ) -> None:
        """Begin to serve. Only the leader of the folder may do so.

        `task` is given if the node takes part in a peer cache. Raises `OSError` if the socket
        cannot be made.
        """
        self._task = task
        self._folder = folder
        self._master = master
        self._members: dict[bytes, _MemberConnection] = {}
        self._changed = threading.Condition()
        """Guards `_members`; notified when a member joins or leaves."""
        self._closing = False
        self._remained = 0
        self._threads: set[threading.Thread] = set()
        self._busy: dict[socket.socket, float] = {}
        """The connections with a request under way, and the time of the last sign of work."""
        self._report_working_at = 0.0
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ungreeted: set[socket.socket] = set()
        """The connections that have not sent a greeting yet."""
        self._listening = packet_socket.listen(folder.socket_path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake, selectors.EVENT_READ, self._send_events)
        master.listen(self)
        self._thread = threading.Thread(target=self._run, name="node-memory-server", daemon=True)
        self._thread.start()

    @property
    def members(self) -> int:
        """The number of connected members."""
        with self._changed:
            return len(self._members)

    def wait_until_left(self, linger_s: float, first_s: float) -> None:
        """Return when there has been no member for `linger_s`.

        The first member may take `first_s` to join.
        """
        patience_s = max(first_s, linger_s)
        with self._changed:
            while True:
                if self._members:
                    patience_s = linger_s
                    self._changed.wait()
                elif not self._changed.wait_for(lambda: bool(self._members), patience_s):
                    return

    def arrived(self, name: str) -> None:
        """Do nothing: members do not wait for insertions."""

    def evicted(self, name: str) -> None:
        """Tell the members that map the block."""
        self._queue_event(True, name, lambda member: name in member.mapped)

    def close(self, timeout_s: float = _END_TIMEOUT_S) -> int:
        """Disconnect all members, which elect another master; return how many there were.

        The threads end, except those in a fetch that does not end within `_END_TIMEOUT_S`, or
        `timeout_s` if that is less.
        """
        with self._changed:
            self._closing = True
            os.eventfd_write(self._wake, 1)
        self._thread.join()
        deadline = time.monotonic() + min(_END_TIMEOUT_S, timeout_s)
        for thread in tuple(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        os.close(self._wake)
        return self._remained

    def forsake(self) -> None:
        """Close the copies of all descriptors in a forked child.

        They would keep members waiting for a parent that has died.
        """
        self._listening.close()
        for member in tuple(self._members.values()):
            for connection in (member.connection, *member.requests):
                connection.close()
        for connection in tuple(self._ungreeted):
            connection.close()
        self._selector.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(WORKING_S / 2):
                key.data()
            self._report_working()
        self._folder.socket_path.unlink(missing_ok=True)
        self._listening.close()
        for member_id in tuple(self._members):
            self._handle_notices(member_id)  # it may have left
        self._remained = len(self._members)
        for member_id in tuple(self._members):
            self._disconnect(member_id)
        for connection in tuple(self._ungreeted):
            self._drop_ungreeted(connection)
        self._selector.close()

    def _report_working(self) -> None:
        now = time.monotonic()
        if now < self._report_working_at:
            return
        self._report_working_at = now + WORKING_S / 2
        with self._changed:
            for connection, signalled_at in self._busy.items():
                if now - signalled_at >= WORKING_S:
                    self._busy[connection] = now
                    with suppress(OSError):  # the member does not read, or is gone
                        packet_socket.send(connection, StillWorking(), socket.MSG_DONTWAIT)

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError as error:  # the member has given up, or descriptors are short
            log.warning("cannot accept a member: %s", error)
            time.sleep(0.01)  # rather than spin while descriptors are short
            return
        _, uid = packet_socket.peer(connection)
        if uid != os.geteuid():
            log.warning("user %d tried to use this task's memory", uid)
            connection.close()
            return
        connection.setblocking(False)
        self._ungreeted.add(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._greet(connection))

    def _greet(self, connection: socket.socket) -> None:
        try:
            greeting = packet_socket.receive(connection)
        except BlockingIOError:
            return
        except (OSError, BadPacket) as error:
            log.debug("closed a connection that sent no greeting: %s", error)
            self._drop_ungreeted(connection)
            return
        self._selector.unregister(connection)
        self._ungreeted.discard(connection)
        if isinstance(greeting, JoinAsMember) and greeting.member not in self._members:
            self._join(connection, greeting)
        elif isinstance(greeting, OpenRequests) and greeting.member in self._members:
            self._open_requests(connection, self._members[greeting.member])
        else:
            connection.close()

    def _drop_ungreeted(self, connection: socket.socket) -> None:
        self._ungreeted.discard(connection)
        self._selector.unregister(connection)
        connection.close()

    def _join(self, connection: socket.socket, greeting: JoinAsMember) -> None:
        member = _MemberConnection(self._master.member(), connection)
        if greeting.budget_bytes is not None:
            member.port.set_budget(greeting.budget_bytes)
        with self._changed:
            self._members[greeting.member] = member
            self._changed.notify_all()
        self._selector.register(
            connection, selectors.EVENT_READ, lambda: self._handle_notices(greeting.member)
        )
        try:
            packet_socket.send(connection, Done())
        except OSError:
            self._disconnect(greeting.member)

    def _disconnect(self, member_id: bytes) -> None:
        with self._changed:
            member = self._members.pop(member_id)
            requests = tuple(member.requests)
            self._changed.notify_all()
        self._selector.unregister(member.connection)
        member.connection.close()
        for connection in requests:
            _end(connection)
        member.port.close()

    def _handle_notices(self, member_id: bytes) -> None:
        """Handle all notices that have come.

        The end of the connection is the end of the membership.
        """
        member = self._members.get(member_id)
        if member is None:  # disconnected since the selector reported an event
            return
        try:
            while True:
                self._handle_notice(member, packet_socket.receive(member.connection))
        except BlockingIOError:
            self._send_to(member_id)
        except (OSError, BadPacket) as error:
            if not isinstance(error, ConnectionError):
                log.warning("disconnected a member: %s", error)
            self._disconnect(member_id)
        except Exception:  # a notice at which the master fails must not end the service
            log.exception("disconnected a member: the master failed on its notice")
            self._disconnect(member_id)

    def _handle_notice(self, member: _MemberConnection, notice: Message) -> None:
        match notice:
            case Mapped(names):
                for name in names:
                    member.mapped.add(name)
                    member.port.mapped(name)
                    # The block may have been evicted before this notice came, and is not evicted
                    # again.
                    if not os.path.lexists(self._folder.chunks / name):
                        member.events.append((True, name))
            case Unmapped(names):
                for name in names:
                    member.mapped.discard(name)
                    member.port.unmapped(name)
            case Discard(name):
                member.port.discard(name)
            case PlanProgress(used):
                member.port.progress(used)
            case _:
                raise BadPacket(f"a {type(notice).__name__} is not a notice")

    def _queue_event(
        self, evicted: bool, name: str, concerns: Callable[[_MemberConnection], bool]
    ) -> None:
        queued = False
        with self._changed:
            for member in self._members.values():
                if concerns(member):
                    member.events.append((evicted, name))
                    queued = True
            if queued and not self._closing:
                os.eventfd_write(self._wake, 1)

    def _send_events(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        for member_id in tuple(self._members):
            self._send_to(member_id)

    def _send_to(self, member_id: bytes) -> None:
        member = self._members[member_id]
        events = selectors.EVENT_READ
        try:
            while member.events:
                count = min(len(member.events), MAX_NAMES)
                packet_socket.send(
                    member.connection,
                    EventsReported(tuple(member.events[at] for at in range(count))),
                )
                for _ in range(count):
                    member.events.popleft()
        except BlockingIOError:
            events |= selectors.EVENT_WRITE
        except OSError:
            self._disconnect(member_id)
            return
        if len(member.events) > _MAX_BACKLOG:
            log.warning("disconnected a member: it does not read its cache events")
            self._disconnect(member_id)
            return
        if self._selector.get_key(member.connection).events != events:
            self._selector.modify(
                member.connection, events, lambda: self._handle_notices(member_id)
            )

    def _open_requests(self, connection: socket.socket, member: _MemberConnection) -> None:
        connection.setblocking(True)
        thread = threading.Thread(
            target=self._answer_all,
            args=(connection, member),
            name="node-memory-requests",
            daemon=True,
        )
        with self._changed:
            member.requests.add(connection)
            self._threads.add(thread)
        thread.start()

    def _answer_all(self, connection: socket.socket, member: _MemberConnection) -> None:
        expected: list[str] = []
        try:
            packet_socket.send(connection, Done())
            while True:
                request = packet_socket.receive(connection)
                if isinstance(request, Expect):
                    expected.extend(request.names)
                    if request.is_last:
                        request, expected = Expect(tuple(expected), True), []
                answer = self._answered(connection, member.port, request)
                packet_socket.send(connection, answer)
        except (OSError, BadPacket) as error:
            if not isinstance(error, ConnectionError):
                log.warning("closed a member's connection for requests: %s", error)
        finally:
            with self._changed:
                member.requests.discard(connection)
                self._threads.discard(threading.current_thread())
            connection.close()

    def _answered(self, connection: socket.socket, port: MasterPort, request: Message) -> Message:
        with self._changed:
            self._busy[connection] = time.monotonic()
        try:
            if isinstance(request, GetTask):
                if self._task is None:
                    return TaskReported(None)
                first = request.first
                return TaskReported(task_fields(self._task.statistics(), first), first)
            if isinstance(request, SuspectPeer):
                if self._task is not None:
                    self._task.suspect(request.peer)
                return Done()
            return _answer(port, request)
        finally:
            with self._changed:  # no sign of work may follow the answer
                del self._busy[connection]


def _answer(port: MasterPort, request: Message) -> Message:
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
            case FollowPlan(plan):
                port.follow(Path(plan))
            case GetStatistics():
                return StatisticsReported(astuple(port.statistics()))
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
        log.exception("a request failed with an unexpected error")
        known = failure(MasterGone(f"the master failed: {error!r}; see its log"))
        assert known is not None
    return known


def _end(connection: socket.socket) -> None:
    """Wake the thread that reads from the connection; that thread closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
