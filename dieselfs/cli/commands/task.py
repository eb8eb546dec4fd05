"""`dlcmd task`: the tasks that run on this node, and the peer cache of one of them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.command_group import SuggestingGroup
from dieselfs.cli.rendering.live import show_until_interrupted
from dieselfs.cli.rendering.output import Output, aligned
from dieselfs.cli.rendering.task_text import task_lines, task_row
from dieselfs.errors import DieselFSError

if TYPE_CHECKING:
    from dieselfs.cache.task.running_tasks import RunningTask
    from dieselfs.fuse.mounts.mount_table import MountInfo

_TIMEOUT_S: Final = 2.0
_HEADINGS: Final = ("TASK", "DATASET", "LEADER", "PROCESSES", "MEMORY", "PEERS", "ONESHOT")
_DEFAULT_TASK: Final = re.compile(r"(.+)-[0-9a-f]{16}")
"""The names that `dieselfs.cache.node.task_folder.default_task` makes."""
Shown: TypeAlias = tuple[list[dict[str, Any]], list[str]]
"""The records of --json, and the lines for people."""
_refresh_option = click.option(
    "--refresh",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Repeat every SECONDS, until Ctrl-C.",
)


@click.group(cls=SuggestingGroup)
def task() -> None:
    """Show tasks and their peer caches, and make secrets (docs/peers.md).

    The processes of a task share a node's memory. As peers, the nodes of a task share theirs.
    """


@command(group=task, examples=["dlcmd task ls", "dlcmd task ls --json | jq -r .task"])
@_refresh_option
def ls(context: CommandContext, refresh: float | None) -> None:
    """List your tasks on this node: processes, memory and peers.

    The peers are those that answer. The last column is the progress of oneshot.
    """
    from dieselfs.cache.task.running_tasks import running_tasks

    output = context.output

    def sample() -> Shown:
        mounts = _mounts_by_folder()
        found = [
            (task, _dataset_of(task, mounts.get(os.fspath(task.folder), [])))
            for task in running_tasks()
        ]
        rows = [task_row(*pair, output.size) for pair in found]
        return [_record(*pair) for pair in found], aligned(_HEADINGS, rows)

    _show(output, sample, refresh)


@command(
    group=task,
    examples=["dlcmd task show resnet50-run1", "dlcmd task show resnet50-run1 --refresh 1"],
)
@click.argument("name")
@_refresh_option
def show(context: CommandContext, name: str, refresh: float | None) -> None:
    """Show a task's peer cache: its members and their shares.

    The command also shows where reads came from, and how many bytes left the store.
    """
    from dieselfs.cache.node.task_folder import memory_root
    from dieselfs.cache.task.running_tasks import ask

    output = context.output

    def sample() -> Shown:
        root = memory_root()
        if name.startswith(".") or name not in os.listdir(root):
            raise DieselFSError(f"no task {name} on this node", "`dlcmd task ls` lists them")
        found = ask(root / name)
        if found.memory is None:
            raise DieselFSError(
                f"task {name} has no master that answers", "the next process that reads starts one"
            )
        mounts = _mounts_by_folder().get(os.fspath(found.folder), [])
        dataset, hits = _dataset_of(found, mounts), _memory_hits(mounts)
        record = {**_record(found, dataset), "memory_hits_of_mounts": hits}
        return [record], task_lines(found, dataset, hits, output)

    _show(output, sample, refresh)


@command(group=task, examples=["dlcmd task secret run1.secret"])
@click.argument("file")
def secret(context: CommandContext, file: str) -> None:
    """Make a secret for a task's nodes, in a new file.

    The file holds 256 random bits, and only you can read it.
    """
    from dieselfs.cache.ports.secret import FILE_VARIABLE, make_secret_file

    path = Path(file).absolute()
    make_secret_file(path)
    context.output.done(
        {"file": os.fspath(path)},
        f"made {path}: copy it to all nodes of the task (mode 0600), and give each "
        f"--secret-file {path}, or {FILE_VARIABLE}={path}",
    )


def _show(output: Output, sample: Callable[[], Shown], refresh_s: float | None) -> None:
    if refresh_s is None:
        _print(output, sample())
        return
    from rich.text import Text

    def samples() -> Iterator[Shown]:
        while True:
            yield sample()
            time.sleep(refresh_s)

    write = partial(_print, output)
    show_until_interrupted(output, samples(), write, lambda shown: Text("\n".join(shown[1])))


def _print(output: Output, found: Shown) -> None:
    records, lines = found
    if output.json:
        for record in records:
            output.record(record)
    else:
        for line in lines:
            output.line(line)


def _record(task: RunningTask, dataset: str | None) -> dict[str, Any]:
    from dieselfs.cache.peers.task_totals import task_totals

    peers = task.peers
    return {
        "task": task.name,
        "dataset": dataset,
        "folder": os.fspath(task.folder),
        "leader_pid": task.leader_pid,
        "processes": task.processes,
        "memory": None if task.memory is None else asdict(task.memory),
        "peers": None if peers is None else asdict(task_totals(peers)),
        "members": [] if peers is None else [asdict(member) for member in peers.members],
        "counts": {} if peers is None else dict(peers.counts),
    }


def _mounts_by_folder() -> dict[str, list[MountInfo]]:
    """Return this machine's mounts by the folder of their task, as they report it."""
    from dieselfs.fuse.mounts.mount_table import mounts

    found: dict[str, list[MountInfo]] = {}
    for info in mounts():
        if info.details:
            found.setdefault(str(info.details.get("node_memory")), []).append(info)
    return found


def _dataset_of(task: RunningTask, mounts: Sequence[MountInfo]) -> str | None:
    """Return the dataset that a task's mounts report, or its name implies; None if neither does."""
    for info in mounts:
        if info.dataset is not None:
            return info.dataset
    match = _DEFAULT_TASK.fullmatch(task.name)
    return match[1] if match else None


def _memory_hits(mounts: Sequence[MountInfo]) -> int:
    """Return how many reads these mounts have answered from node memory.

    Reads that the kernel answers from its page cache are not counted.
    """
    from dieselfs.cli.rendering.mount_statistics import Sample
    from dieselfs.fuse.mounts.control_names import STATISTICS_NAME
    from dieselfs.fuse.mounts.mount_table import read_document

    hits = 0
    for info in mounts:
        _, document = read_document(info.mountpoint, STATISTICS_NAME, _TIMEOUT_S)
        hits += int(Sample(document or {}).number("hits.node_memory"))
    return hits
