"""The text of `dlcmd task` for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dieselfs.cli.rendering.output import Output, counted

if TYPE_CHECKING:
    from dieselfs.cache.peers.task_totals import TaskTotals
    from dieselfs.cache.ports.task_statistics import FillingStatistics, MemberStatistics
    from dieselfs.cache.task.running_tasks import RunningTask

_MEMBERS: Final = (
    *("MEMBER", "ADDRESS", "NODE", "STATE", "MEMORY", "SHARE", "CACHED"),
    *("FROM STORE", "FROM PEERS", "SERVED"),
)


def task_row(task: RunningTask, dataset: str | None, size: Callable[[int], str]) -> list[str]:
    """Return a row of `dlcmd task ls`."""
    from dieselfs.cache.peers.task_totals import task_totals

    memory = task.memory
    totals = None if task.peers is None else task_totals(task.peers)
    return [
        task.name,
        dataset or "-",
        str(task.leader_pid or "-"),
        str(task.processes),
        "-" if memory is None else f"{size(memory.cached_bytes)} of {size(memory.budget_bytes)}",
        "-" if totals is None else f"{totals.members_up} of {totals.members}",
        "-" if totals is None or totals.filling is None else _filled(totals.filling),
    ]


def task_lines(
    task: RunningTask, dataset: str | None, memory_hits: int, output: Output
) -> list[str]:
    """Return the lines of `dlcmd task show`.

    `memory_hits` is the number of reads that mounts have answered from this node's memory.
    """
    from dieselfs.cache.peers.task_totals import task_totals

    assert task.memory is not None
    memory, size = task.memory, output.size
    lines = [
        f"task:         {task.name}" + ("" if dataset is None else f", dataset {dataset}"),
        (
            f"this node:    master is process {task.leader_pid}, used by "
            f"{counted(task.processes, 'process')}"
        ),
        (
            f"memory:       {size(memory.cached_bytes)} of {size(memory.budget_bytes)}, "
            f"{counted(memory.blocks, 'chunk')}"
        ),
    ]
    if task.peers is None:
        return [*lines, "peers:        none: this task was started without --peers"]
    totals = task_totals(task.peers)
    rows = [_member_row(member, size) for member in task.peers.members]
    _, table = output.fitted(_MEMBERS, rows, ["ADDRESS", "FROM PEERS", "SHARE", "CACHED"])
    return [*lines, *_peer_lines(memory_hits, totals, output), "", *table]


def _peer_lines(memory_hits: int, totals: TaskTotals, output: Output) -> list[str]:
    size, sources, filling = output.size, totals.sources, totals.filling
    trouble = f"; this node takes no part: {totals.trouble}" if totals.trouble else ""
    open_ = f", {totals.members_open} skipped after failures" if totals.members_open else ""
    progress = "" if filling is None else f", {_filled(filling)} of this node's share"
    rate = "" if filling is None or filling.done else f", {size(int(filling.rate_bytes_s))}/s"
    return [
        (
            f"peers:        {totals.members_up} of {counted(totals.members, 'member')} "
            f"up{open_}, {counted(totals.connections, 'connection')}{trouble}"
        ),
        f"policy:       {totals.policy}{progress}{rate}",
        (
            f"task caches:  {size(totals.share_cached_bytes)} of {size(totals.share_bytes)} "
            "that are the share of a member "
            f"({_percent(totals.share_cached_bytes, totals.share_bytes)}), "
            f"{size(totals.cached_bytes)} of {size(totals.budget_bytes)} in all"
        ),
        (
            f"reads:        own memory {memory_hits:,} by mounts, peers {sources.from_peers:,}, "
            f"second's memory {sources.from_second:,}, store {sources.from_store:,}"
        ),
        (
            f"from store:   {size(totals.from_store_bytes)} by the task, "
            f"{_ratio(totals.task_store_bytes_per_byte)} per byte served; "
            f"{_ratio(totals.node_store_bytes_per_byte)} by this node"
        ),
    ]


def _member_row(member: MemberStatistics, size: Callable[[int], str]) -> list[str]:
    status = member.status
    silent_s = member.answered_s
    answered = silent_s is None or silent_s < 2
    state = member.state if answered else f"{member.state}, silent for {silent_s:.0f} s"
    share = "no share" if member.weight == 0 else size(status.share_bytes)
    return [
        member.id,
        member.address,
        member.node or "-",
        state,
        f"{size(status.cached_bytes)} of {size(status.budget_bytes)}",
        share,
        _percent(status.share_cached_bytes, status.share_bytes),
        size(status.from_store_bytes),
        size(status.from_peers_bytes),
        size(status.served_bytes),
    ]


def _filled(filling: FillingStatistics) -> str:
    return (
        f"{filling.blocks_cached:,} of {counted(filling.blocks, 'chunk')} "
        f"({_percent(filling.cached_bytes, filling.share_bytes)})"
    )


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "-"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
