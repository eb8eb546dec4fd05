"""`TaskStatistics` as the fields of messages between a master and its node's processes.

The members are sent in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.peer_settings import CachePolicy
from dieselfs.cache.ports.task_statistics import (
    FillingStatistics,
    MemberState,
    MemberStatistics,
    TaskStatistics,
)

MEMBERS_AT_ONCE: Final = 48
"""The members in one message: up to 1,100 bytes each."""
_MAX_COUNTS: Final = 512
_MAX_TROUBLE: Final = 2000
_STATUS: Final = len(fields(NodeStatus))

_Status: TypeAlias = Annotated[tuple[int, ...], Meta(min_length=_STATUS, max_length=_STATUS)]
_Member: TypeAlias = tuple[str, str, int, str, MemberState, float | None, _Status]


class TaskFields(Struct, array_like=True, forbid_unknown_fields=True):
    """The fields of `TaskStatistics`, with a batch of the members."""

    task: str
    policy: CachePolicy
    members: Annotated[tuple[_Member, ...], Meta(max_length=MEMBERS_AT_ONCE)]
    filling: tuple[int, int, int, int, int, float, bool] | None
    counts: Annotated[tuple[tuple[str, int], ...], Meta(max_length=_MAX_COUNTS)]
    trouble: str


def task_fields(statistics: TaskStatistics, first: int) -> TaskFields:
    """Return the statistics with members [first, first + MEMBERS_AT_ONCE)."""
    members = statistics.members[first : first + MEMBERS_AT_ONCE]
    trouble = statistics.trouble[:_MAX_TROUBLE]
    return TaskFields(*astuple(replace(statistics, members=members, trouble=trouble)))


def joined(parts: Sequence[TaskFields]) -> TaskStatistics:
    """Return the statistics of the last batch with the members of all batches."""
    last = parts[-1]
    return TaskStatistics(
        last.task,
        last.policy,
        tuple(
            MemberStatistics(*member[:-1], NodeStatus(*member[-1]))
            for part in parts
            for member in part.members
        ),
        None if last.filling is None else FillingStatistics(*last.filling),
        last.counts,
        last.trouble,
    )
