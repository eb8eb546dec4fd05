"""`TaskStatistics` as plain arrays, for the messages between a master and its node's processes.

The members are sent in batches.
"""

from __future__ import annotations

from dataclasses import astuple, fields, replace
from typing import Final

from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.task_statistics import FillingStatistics, MemberStatistics, TaskStatistics

MEMBERS_AT_ONCE: Final = 48
"""The members in one message: up to 1,100 bytes each."""
_MAX_TROUBLE: Final = 2000


def flat(statistics: TaskStatistics, first: int) -> list[object]:
    """Return the statistics with members [first, first + MEMBERS_AT_ONCE) as an array."""
    members = statistics.members[first : first + MEMBERS_AT_ONCE]
    return [
        statistics.task,
        statistics.policy,
        [astuple(member) for member in members],
        None if statistics.filling is None else astuple(statistics.filling),
        [[name, value] for name, value in statistics.counts],
        statistics.trouble[:_MAX_TROUBLE],
    ]


def read(value: object) -> TaskStatistics:
    """Return the statistics in an array. Raises `ValueError` or `TypeError`."""
    match value:
        case [
            str(task),
            "oneshot" | "on-demand" as policy,
            list(members),
            filling,
            list(counts),
            str(trouble),
        ]:
            return TaskStatistics(
                task,
                policy,
                tuple(map(_member, members)),
                None if filling is None else _filling(filling),
                tuple(map(_count, counts)),
                trouble,
            )
    raise ValueError("not a task's statistics")


def joined(parts: list[TaskStatistics]) -> TaskStatistics:
    """Return the statistics of the last batch with the members of all batches."""
    return replace(parts[-1], members=tuple(member for part in parts for member in part.members))


def _member(value: object) -> MemberStatistics:
    match value:
        case [
            str(id),
            str(address),
            int(weight),
            str(node),
            "me" | "up" | "silent" | "refused" | "open" as state,
            None | float() as answered_s,
            list(status),
        ]:
            known = NodeStatus(*_integers(status, NodeStatus))
            return MemberStatistics(id, address, weight, node, state, answered_s, known)
    raise ValueError("not a member's statistics")


def _filling(value: object) -> FillingStatistics:
    match value:
        case [
            int(blocks),
            int(cached),
            int(size),
            int(here),
            int(fetched),
            float(rate),
            bool(done),
        ]:
            return FillingStatistics(blocks, cached, size, here, fetched, rate, done)
    raise ValueError("not the statistics of a oneshot fill")


def _count(value: object) -> tuple[str, int]:
    match value:
        case [str(name), int(count)]:
            return name, count
    raise ValueError("not a count")


def _integers(values: list[object], of: type) -> list[int]:
    found = [value for value in values if isinstance(value, int)]
    if len(found) != len(values) or len(values) != len(fields(of)):
        raise ValueError(f"not a {of.__name__}")
    return found
