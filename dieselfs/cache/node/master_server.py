"""The server through which the members of a task reach their master.

It listens on the socket in the task's folder, for processes of its own user only.

One thread accepts, reads notices and sends cache events, and never waits for a member. Requests
have threads of their own (`member_request_threads`).
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from dieselfs.cache.node.master import Master
from dieselfs.cache.node.member_port import MemberPort
from dieselfs.cache.node.member_request_threads import WORKING_S, MemberRequestThreads, PeerTask
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.wire import packet_socket
from dieselfs.cache.wire.local_messages import (
    MAX_NAMES,
    BadPacket,
    Done,
    EventsReported,
    JoinAsMember,
    JoinForJob,
    Mapped,
    Message,
    OpenRequests,
    Unmapped,
)

log = logging.getLogger(__name__)

_MAX_BACKLOG: Final = 1 << 17
"""The cache events that may wait for a member.

A member that leaves more of them unread is disconnected; it may join again.
"""

_END_TIMEOUT_S: Final = 0.5
"""The time limit for fetches at the end: a store that hangs must not keep a mount from ending."""


@dataclass(slots=True, eq=False)
class _MemberConnection:
    """One member, its connection, and its unsent cache events."""

    port: MemberPort
    connection: socket.socket
    mapped: set[str] = field(default_factory=set)
    events: deque[tuple[bool, str]] = field(default_factory=deque)
    """The events that are not sent yet. Any thread appends; the server's own thread removes."""


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
        self._requests = MemberRequestThreads(task)
        self._folder = folder
        self._master = master
        self._members: dict[bytes, _MemberConnection] = {}
        self._changed = threading.Condition()
        """Guards `_members`; notified when a member joins or leaves."""
        self._closing = False
        self._remained = 0
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ungreeted: set[socket.socket] = set()
        """The connections that have not sent a greeting yet."""
        self._listening = packet_socket.listen(folder.socket_path)
        self._socket_file = os.stat(folder.socket_path).st_ino
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake, selectors.EVENT_READ, self._send_events)
        master.blocks.listen(self)
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

    def evicted(self, name: str) -> None:
        """Tell the members that map the block."""
        with self._changed:
            told = [member for member in self._members.values() if name in member.mapped]
            for member in told:
                member.events.append((True, name))
            if told and not self._closing:
                os.eventfd_write(self._wake, 1)

    def release_evicted(self) -> None:
        """Do nothing: the members themselves unmap what they are told of."""

    def close(self, timeout_s: float = _END_TIMEOUT_S) -> int:
        """Disconnect all members, which elect another master; return how many there were.

        The threads end, except those in a fetch that does not end within `_END_TIMEOUT_S`, or
        `timeout_s` if that is less.
        """
        with self._changed:
            self._closing = True
            os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._requests.join(min(_END_TIMEOUT_S, timeout_s))
        os.close(self._wake)
        return self._remained

    def forsake(self) -> None:
        """Close the copies of all descriptors in a forked child.

        They would keep members waiting for a parent that has died.
        """
        self._listening.close()
        for member in tuple(self._members.values()):
            member.connection.close()
        self._requests.forsake()
        for connection in tuple(self._ungreeted):
            connection.close()
        self._selector.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(WORKING_S / 2):
                key.data()
            self._requests.report_working()
        with suppress(FileNotFoundError):
            # If somebody has removed the folder, there may be another leader's socket.
            if os.stat(self._folder.socket_path).st_ino == self._socket_file:
                self._folder.socket_path.unlink()
        self._listening.close()
        for member_id in tuple(self._members):
            self._handle_notices(member_id)  # it may have left
        self._remained = len(self._members)
        for member_id in tuple(self._members):
            self._disconnect(member_id)
        for connection in tuple(self._ungreeted):
            self._drop_ungreeted(connection)
        self._selector.close()

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
        if isinstance(greeting, JoinAsMember | JoinForJob):
            if greeting.member not in self._members:
                self._join(connection, greeting)
            else:
                connection.close()
        elif isinstance(greeting, OpenRequests) and greeting.member in self._members:
            self._requests.serve(connection, self._members[greeting.member].port)
        else:
            connection.close()

    def _drop_ungreeted(self, connection: socket.socket) -> None:
        self._ungreeted.discard(connection)
        self._selector.unregister(connection)
        connection.close()

    def _join(self, connection: socket.socket, greeting: JoinAsMember | JoinForJob) -> None:
        job = greeting.job if isinstance(greeting, JoinForJob) else None
        try:
            port = self._master.member(job)
        except Exception:  # such as too many threads: it must not end the service
            log.exception("refused a member: the master failed on its greeting")
            connection.close()
            return
        member = _MemberConnection(port, connection)
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
            self._changed.notify_all()
        self._selector.unregister(member.connection)
        member.connection.close()
        self._requests.disconnect(member.port)
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
        if isinstance(notice, Mapped):
            member.mapped.update(notice.names)
        elif isinstance(notice, Unmapped):
            member.mapped.difference_update(notice.names)
        member.events.extend((True, name) for name in member.port.notice(notice))

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
