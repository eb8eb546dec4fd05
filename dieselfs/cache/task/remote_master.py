"""A task's master as a member sees it over the socket."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.master_port import MemoryScrub, MemoryStatistics
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.task.task_master import TaskMaster
from dieselfs.cache.wire import packet_socket
from dieselfs.cache.wire.fields import block_fields
from dieselfs.cache.wire.local_messages import (
    MAX_BLOCKS,
    MEMBER_ID_BYTES,
    BadPacket,
    Done,
    EventsReported,
    Expect,
    Fetch,
    FollowPlan,
    GetStatistics,
    GetTask,
    JoinAsMember,
    JoinForJob,
    MemoryScrubbed,
    Message,
    OpenRequests,
    Prefetch,
    RequestFailed,
    ScrubMemory,
    SetBudget,
    SetQuota,
    StatisticsReported,
    StillWorking,
    SuspectPeer,
    TaskReported,
    batches,
    error_of,
)
from dieselfs.cache.wire.task_report import MEMBERS_AT_ONCE, TaskFields, joined
from dieselfs.errors import MasterGone

CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 30.0
"""The time limit for an answer, or for a sign that the master works on it.

A master that has died is noticed at once; the limit is for one that hangs. A master that waits for
its store reports three times as often that it works.
"""
STATISTICS_TIMEOUT_S: Final = 2.0
_IDLE_CONNECTIONS: Final = 4


class RemoteMaster:
    """The `TaskMaster` of a member in another process.

    It is one membership, ended by `close` or with the process, and is never used in a forked child.

    A request takes an idle connection or opens one, so threads do not wait for each other. Notices
    and cache events share one more connection: they keep their order.
    """

    def __init__(
        self,
        path: Path,
        budget_bytes: int | None = None,
        exchange: Callable[[TaskMaster], None] | None = None,
        job: str | None = None,
    ) -> None:
        """Join the master that listens at `path`, as a member of a job. Raises `MasterGone`.

        `exchange` is called while a fetch waits and cache events are pending.
        """
        self._path, self._exchange = path, exchange
        self._member = os.urandom(MEMBER_ID_BYTES)
        self._open: set[socket.socket] = set()
        self._idle: list[socket.socket] = []
        self.is_gone = False
        self._events = self._joined(budget_bytes, job)
        self._events.setblocking(True)
        packet_socket.limit_sends(self._events, ANSWER_TIMEOUT_S)
        self.pid, _ = packet_socket.peer(self._events)

    def fetch(self, block: CacheBlock, *, ahead: bool = False) -> None:
        """See `TaskMaster`."""
        self._ask(Fetch(block_fields(block), ahead), handles_events=True)

    def prefetch(self, blocks: Sequence[CacheBlock]) -> None:
        """See `MasterPort`."""
        self._ask(*(Prefetch(part) for part in batches([*map(block_fields, blocks)], MAX_BLOCKS)))

    def expect(self, names: Sequence[str]) -> None:
        """See `MasterPort`."""
        self._ask(*(Expect(part, False) for part in batches(names)), Expect((), True))

    def set_budget(self, budget_bytes: int) -> None:
        """See `MasterPort`."""
        self._ask(SetBudget(budget_bytes))

    def set_quota(self, quota_bytes: int | None, window_bytes: int = 0) -> None:
        """See `MasterPort`."""
        self._ask(SetQuota(quota_bytes, window_bytes))

    def follow(self, plan: Path) -> None:
        """See `MasterPort`."""
        self._ask(FollowPlan(str(plan)))

    def statistics(self) -> MemoryStatistics:
        """See `MasterPort`. It waits at most `STATISTICS_TIMEOUT_S`, and stays a member then."""
        answer = self._ask(GetStatistics(), timeout_s=STATISTICS_TIMEOUT_S)
        if not isinstance(answer, StatisticsReported):
            raise self._master_gone(BadPacket("not statistics"))
        return MemoryStatistics(*answer.counts)

    def scrub(self) -> MemoryScrub:
        """See `MasterPort`. At most 512 damaged blocks are named.

        A master of a former release raises `MasterGone`.
        """
        answer = self._ask(ScrubMemory())
        if not isinstance(answer, MemoryScrubbed):
            raise self._master_gone(BadPacket("not the result of a scrub"))
        return MemoryScrub(answer.blocks, answer.size_bytes, answer.damaged)

    def task_statistics(self) -> TaskStatistics | None:
        """See `TaskMaster`. It takes 0.3 ms, and as much again for each 48 members."""
        parts: list[TaskFields] = []
        while True:
            first = len(parts) * MEMBERS_AT_ONCE
            answer = self._ask(GetTask(first), timeout_s=STATISTICS_TIMEOUT_S)
            if not isinstance(answer, TaskReported):
                raise self._master_gone(BadPacket("not a task's statistics"))
            if answer.statistics is None:
                return None
            parts.append(answer.statistics)
            if len(answer.statistics.members) < MEMBERS_AT_ONCE:
                return joined(parts)

    def suspect(self, peer: str) -> None:
        """See `TaskMaster`."""
        self._ask(SuspectPeer(peer))

    def send_notice(self, notice: Message, *, wait: bool = True) -> bool:
        """See `TaskMaster`."""
        try:
            packet_socket.send(self._events, notice, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            if wait:
                raise self._master_gone(error) from None
            return False
        except OSError as error:
            raise self._master_gone(error) from None
        return True

    def has_ended(self) -> bool:
        """See `TaskMaster`."""
        waiting = select.poll()
        try:
            waiting.register(self._events, select.POLLRDHUP)
            if waiting.poll(0):
                self.is_gone = True
        except (OSError, ValueError):  # closed meanwhile
            self.is_gone = True
        return self.is_gone

    def events(self) -> Sequence[tuple[bool, str]]:
        """See `TaskMaster`."""
        items: list[tuple[bool, str]] = []
        try:
            while True:
                message = packet_socket.receive(self._events, socket.MSG_DONTWAIT)
                if isinstance(message, EventsReported):
                    items.extend(message.items)
        except BlockingIOError:
            return items
        except (OSError, ValueError) as error:  # a `BadPacket`, or closed meanwhile
            raise self._master_gone(error) from None

    def close(self) -> None:
        """Leave the task. Threads that wait for an answer or for cache events get `MasterGone`."""
        self.is_gone = True
        for connection in tuple(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
            except OSError:
                pass
        while self._idle:
            self._close_connection(self._idle.pop())
        self._close_connection(self._events)

    def forsake(self) -> None:
        """See `TaskMaster`."""
        self.is_gone = True
        for connection in tuple(self._open):
            connection.close()

    def _ask(
        self,
        *requests: Message,
        timeout_s: float | None = None,
        handles_events: bool = False,
    ) -> Message:
        """Make the requests in order on one connection; return the answer to the last one."""
        answer: Message = Done()
        connection = None
        try:
            connection = self._take_connection()
            connection.settimeout(timeout_s or ANSWER_TIMEOUT_S)
            for request in requests:
                packet_socket.send(connection, request)
                answer = self._answer(connection, handles_events)
                if isinstance(answer, RequestFailed):
                    break
        except (OSError, ValueError) as error:  # a `BadPacket`, or closed meanwhile
            if connection is not None:
                self._close_connection(connection)
            if timeout_s is not None and isinstance(error, TimeoutError):
                # A busy master is late; the process that asks for its statistics stays a member.
                raise MasterGone(f"the master of {self._path.parent} is late") from None
            raise self._master_gone(error) from None
        except BaseException:  # interrupted: an answer may still come
            if connection is not None:
                self._close_connection(connection)
            raise
        self._give_back(connection)
        if isinstance(answer, RequestFailed):
            raise error_of(answer)
        return answer

    def _answer(self, connection: socket.socket, handles_events: bool) -> Message:
        while True:
            if handles_events and self._exchange is not None:
                self._wait(connection, self._exchange)
            answer = packet_socket.receive(connection)
            if not isinstance(answer, StillWorking):
                return answer

    def _wait(self, connection: socket.socket, exchange: Callable[[TaskMaster], None]) -> None:
        """Wait until there is an answer, or none for too long."""
        answer = connection.fileno()
        waiting = select.poll()
        waiting.register(answer, select.POLLIN)
        waiting.register(self._events, select.POLLIN)
        while True:
            ready = waiting.poll(ANSWER_TIMEOUT_S * 1000)
            if not ready or any(fd == answer for fd, _ in ready):
                return
            exchange(self)

    def _take_connection(self) -> socket.socket:
        try:
            return self._idle.pop()
        except IndexError:
            return self._open_connection(OpenRequests(self._member))

    def _give_back(self, connection: socket.socket) -> None:
        self._idle.append(connection)
        while self._idle and (self.is_gone or len(self._idle) > _IDLE_CONNECTIONS):
            try:
                self._close_connection(self._idle.pop())
            except IndexError:  # another thread took it
                return

    def _open_connection(self, greeting: Message) -> socket.socket:
        """Return a new connection that was greeted. Raises `MasterGone`."""
        try:
            connection = packet_socket.connect(self._path, CONNECT_TIMEOUT_S)
        except OSError as error:
            raise self._master_gone(error) from None
        self._open.add(connection)
        try:
            if not isinstance(packet_socket.ask(connection, greeting), Done):
                raise BadPacket("it refused the connection")
        except (OSError, BadPacket) as error:
            self._close_connection(connection)
            raise self._master_gone(error) from None
        return connection

    def _joined(self, budget_bytes: int | None, job: str | None) -> socket.socket:
        """Return the connection of a membership. A master of a former release knows no jobs."""
        plain = JoinAsMember(self._member, budget_bytes)
        if job is None:
            return self._open_connection(plain)
        try:
            return self._open_connection(JoinForJob(self._member, budget_bytes, job))
        except MasterGone:
            found = self._open_connection(plain)
            self.is_gone = False
            return found

    def _close_connection(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        connection.close()

    def _master_gone(self, error: Exception) -> MasterGone:
        self.is_gone = True
        return MasterGone(f"the master of {self._path.parent} does not answer: {error}")
