"""Plans that readers write into the control directory (docs/decisions/0023).

A reader opens `.dieselfs/plan/<id>.plan`, writes the bytes of a plan file, and keeps it open. Then
it reads that name again: a look-up of a whole plan's name is the document that says whether the
plan is prefetched. Later it writes its position over the one in the header.

The plan lives as long as the kernel knows its node. With the second look-up the name leads to
another node, so the kernel forgets this one when the last descriptor is closed.

The bytes come from anybody who may read the mount. So they are checked before they are used, and
each user may have only so many of them, and only so often.
"""

from __future__ import annotations

import errno
import logging
import re
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dieselfs.errors import UsageError
from dieselfs.fuse.requests.errnos import RequestRefused
from dieselfs.prefetch.plan_file import (
    POSITION_AT,
    WITHDRAWN,
    PlanHeader,
    ReadingPlan,
)
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

_NAME: Final = re.compile(rb"([0-9a-f]{16})\.plan")
_POSITION: Final = struct.Struct("=Q")
MAX_PLAN_BYTES: Final = 64 << 20
"""16 million files."""
MAX_PATH_BYTES: Final = 4096
USER_PLANS: Final = 64
"""This epoch's plan and the next one's of 16 ranks, and as many again that are about to end."""
ALL_PLANS: Final = 256
MAX_NODES: Final = 1024
"""Files that were looked up; beyond them the oldest that holds no plan becomes stale."""
IDLE_S: Final = 60.0
"""A plan that nobody follows may be dropped so long after its last write."""
USER_BYTES: Final = 128 << 20
ALL_BYTES: Final = 256 << 20
RATE_BYTES_PER_S: Final = 8 << 20
"""The rate at which one user may tell plans: two plans of a million files a second."""
PLAN_COST_BYTES: Final = 1 << 20
"""What a plan of any size costs beside its bytes: looks at all plans, and a line in the log."""


class ForeignPlan:
    """One plan, from the look-up of its name on. Its lock is held for one write at a time."""

    is_foreign = True

    def __init__(self, user: int, id: str) -> None:
        self.user, self.id = user, id
        self.header: PlanHeader | None = None
        self.position = 0
        self.is_read = True
        """False when the reader has withdrawn it, or has closed its last descriptor."""
        self.refused = 0
        """The errno that each further write gets."""
        self.whole: ReadingPlan | None = None
        self.bytes = bytearray()
        """As long as the header says. Pages that were not written yet take no memory."""
        self.is_counted = False
        """True while it counts in its user's share."""
        self.answer = b""
        """The document that answers it, once it is followed or refused: it is followed once."""
        self.is_followed = False
        self.written_at = 0.0
        self.written = 0
        self.lock = threading.Lock()

    @property
    def is_whole(self) -> bool:
        """True from the last byte on, until the reader has ended."""
        return self.whole is not None and self.is_read

    @property
    def plan(self) -> ReadingPlan:
        """The order; only of a plan that `ForeignPlans.find` has returned."""
        assert self.whole is not None
        return self.whole

    @property
    def after(self) -> str:
        """The id of the plan whose end leads into this one; empty if there is none."""
        before = self.header.after if self.header is not None else ""
        return before and f"{self.user}:{before}"


@dataclass(slots=True)
class _User:
    """The share of one user."""

    plans: int = 0
    bytes: int = 0
    allowance: float = USER_BYTES
    """Bytes that may still be told now."""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ForeignPlanStatistics:
    """Counters of the plans that readers tell through a mount."""

    told: int = 0
    """Plans that arrived whole, since the server began."""
    refused: int = 0
    """Plans that were refused as they were written."""
    bytes: int = 0
    """The present bytes of all plans."""
    requests: int = 0
    """Requests that brought bytes of plans, or positions."""


class ForeignPlans:
    """The foreign plans of a mount, by the nodes of their files. Thread-safe; nothing blocks."""

    def __init__(self, snapshot: Snapshot, clock: Callable[[], float] = time.monotonic) -> None:
        self._snapshot, self._clock = snapshot, clock
        self._plans: dict[int, ForeignPlan] = {}
        self._users: dict[int, _User] = {}
        self._bytes = self._counted = self._told = self._refused = self._requests = 0
        self._lock = threading.Lock()

    @staticmethod
    def names(name: bytes) -> bool:
        """Return True if this is the name of a plan's file."""
        return _NAME.fullmatch(name) is not None

    def open(self, node: int, name: bytes, user: int) -> None:
        """Note that the file of a plan was looked up."""
        with self._lock:
            if len(self._plans) >= MAX_NODES:
                unused = (node for node, told in self._plans.items() if not told.is_counted)
                self._plans.pop(next(unused))
            self._plans[node] = ForeignPlan(user, _plan_id(name, user))

    def has(self, node: int) -> bool:
        """Return True if this node is a plan's file."""
        return node in self._plans

    def size(self, node: int) -> int:
        """Return the bytes that were written; `ESTALE` if the node is not known."""
        return self._known(node).written

    def write(self, node: int, start: int, data: memoryview) -> None:
        """Take the next bytes of a plan, or the position of a whole one.

        `EINVAL` if they are not those of a plan, `ESTALE` if it is of another snapshot, `EFBIG` if
        it is too large, `EDQUOT` if its user tells too much.
        """
        told = self._known(node)
        self._requests += 1
        with told.lock:
            if told.refused:
                raise RequestRefused(told.refused)
            if told.whole is not None:
                self._move(told, start, data)
                return
            try:
                self._append(told, start, data)
            except RequestRefused as error:
                told.refused = error.number
                self._refused += 1
                self._release(told)
                raise

    def find(self, name: bytes, user: int) -> ForeignPlan | None:
        """Return the whole plan of a user's file; it is about to be followed."""
        with self._lock:
            plans = list(self._plans.values())
        wanted = _plan_id(name, user)
        found = next((told for told in plans if told.id == wanted and told.is_whole), None)
        if found is not None:
            found.is_followed = True
        return found

    def forget(self, node: int) -> None:
        """End the plan of a node: its last descriptor was closed."""
        with self._lock:
            told = self._plans.pop(node, None)
        if told is None:
            return
        told.is_read = False
        with told.lock:
            self._release(told)

    def statistics(self) -> ForeignPlanStatistics:
        """Return the counters."""
        return ForeignPlanStatistics(self._told, self._refused, self._bytes, self._requests)

    def _known(self, node: int) -> ForeignPlan:
        told = self._plans.get(node)
        if told is None:
            raise RequestRefused(errno.ESTALE)
        return told

    # The methods below are called with the lock of the plan held.

    def _append(self, told: ForeignPlan, start: int, data: memoryview) -> None:
        if told.header is None:
            self._begin(told, data)
        assert told.header is not None
        end = start + len(data)
        if start != told.written or end > len(told.bytes):
            raise _refused(told, errno.EINVAL, "its bytes do not come in order")
        told.bytes[start:end] = data
        told.written, told.written_at = end, self._clock()
        if end == len(told.bytes):
            self._finish(told, told.header)

    def _begin(self, told: ForeignPlan, data: memoryview) -> None:
        try:
            header = PlanHeader.of(data)
        except UsageError as error:
            raise _refused(told, errno.EINVAL, error) from None
        if header.snapshot_id != str(self._snapshot.id):
            what = f"it is of snapshot {header.snapshot_id!r}, and {self._snapshot.id} is mounted"
            raise _refused(told, errno.ESTALE, what)
        total = header.total_bytes
        # A rank may read a file twice to be even with the others, and groups are not empty.
        if max(header.files, header.groups) > 2 * self._snapshot.file_count + 1:
            raise _refused(told, errno.EINVAL, f"it has {header.files} files")
        if total > MAX_PLAN_BYTES or header.path_bytes > MAX_PATH_BYTES:
            raise _refused(
                told, errno.EFBIG, f"it has {total} bytes, and {MAX_PLAN_BYTES} are allowed"
            )
        self._reserve(told, total)
        told.header, told.position, told.bytes = header, header.position, bytearray(total)

    def _finish(self, told: ForeignPlan, header: PlanHeader) -> None:
        try:
            plan = header.plan_in(told.bytes)
        except UsageError as error:
            raise _refused(told, errno.EINVAL, error) from None
        if len(plan) and int(plan.inodes.max()) >= self._snapshot.file_count:
            raise _refused(told, errno.EINVAL, "it names files that the snapshot does not have")
        told.whole = plan
        self._told += 1

    def _move(self, told: ForeignPlan, start: int, data: memoryview) -> None:
        if start != POSITION_AT or len(data) != _POSITION.size:
            raise RequestRefused(errno.EINVAL)
        (position,) = _POSITION.unpack(data)
        if position == WITHDRAWN:
            told.is_read = False
            self._release(told)
        else:
            told.position = position

    def _reserve(self, told: ForeignPlan, total: int) -> None:
        cost, now = total + PLAN_COST_BYTES, self._clock()
        with self._lock:
            self._drop_idle(now)
            share = self._share_of(told.user)
            earned = share.allowance + (now - share.at) * RATE_BYTES_PER_S
            share.allowance, share.at = min(USER_BYTES, earned), now
            is_full = (
                share.plans >= USER_PLANS
                or self._counted >= ALL_PLANS
                or share.bytes + total > USER_BYTES
                or self._bytes + total > ALL_BYTES
            )
            if not is_full and share.allowance >= cost:
                share.allowance -= cost
                told.written_at = now
                self._count(told, total, 1)
                return
        what = "there are too many plans of this user, or of all"
        raise _refused(told, errno.EDQUOT, what if is_full else "this user tells plans too often")

    def _release(self, told: ForeignPlan) -> None:
        """Give the plan's share back. A prefetcher that still follows it keeps its columns."""
        with self._lock:
            if told.is_counted:
                self._count(told, -len(told.bytes), -1)
        told.bytes = bytearray()

    # The methods below are called with the lock of all held.

    def _count(self, told: ForeignPlan, size: int, plans: int) -> None:
        share = self._users[told.user]
        share.bytes, self._bytes = share.bytes + size, self._bytes + size
        share.plans, self._counted = share.plans + plans, self._counted + plans
        told.is_counted = plans > 0

    def _drop_idle(self, now: float) -> None:
        for node, told in list(self._plans.items()):
            if told.is_counted and not told.is_followed and now - told.written_at > IDLE_S:
                del self._plans[node]
                told.is_read = False
                self._count(told, -len(told.bytes), -1)

    def _share_of(self, user: int) -> _User:
        if user not in self._users:
            if len(self._users) >= MAX_NODES:
                self._users = {each: share for each, share in self._users.items() if share.plans}
            self._users[user] = _User(at=self._clock())
        return self._users[user]


def _plan_id(name: bytes, user: int) -> str:
    """Return the id of a user's plan among all plans: nobody can name another user's."""
    found = _NAME.fullmatch(name)
    assert found is not None
    return f"{user}:{found[1].decode()}"


def _refused(told: ForeignPlan, number: int, what: object) -> RequestRefused:
    log.warning("plan %s is refused (%s): %s", told.id, errno.errorcode[number], what)
    return RequestRefused(number)
