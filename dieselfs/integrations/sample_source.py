"""The source of a map-style dataset without a mount: whole files of a snapshot from node memory.

The node memory also receives the plans of the dataset's sampler.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Self

from dieselfs.cache.read_stack import ReadStack
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.cache.task.sample_reader import Inodes, SampleReader
from dieselfs.client import Client
from dieselfs.errors import NotYetSupported, PlanTooLarge
from dieselfs.prefetch.plan_file import PlanFile, ReadingPlan, write_plan
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class SampleSource:
    """A snapshot and its files by inode.

    It works in forked children, and its pickle opens it again.
    """

    snapshot: Snapshot
    memory: NodeMemory
    reader: SampleReader
    stack: ReadStack | None = None
    """The tiers below the memory, if this process has opened them for the source."""

    @classmethod
    def open(cls, snapshot: Snapshot, client: Client, memory: NodeMemory | None = None) -> Self:
        """Open the files of a snapshot, with the client's store and settings.

        `memory` is by default that of the task that the environment names, with its peers, or else
        that of all processes that read this dataset on the node.
        """
        if memory is not None:
            return cls(snapshot, memory, SampleReader(snapshot, memory))
        dataset = client.dataset
        stack = ReadStack(
            dataset.ref, dataset.store, client.read_settings(), ExpectedFiles(snapshot)
        )
        stack.read_by_requests(snapshot)
        memory = stack.open_memory()
        return cls(snapshot, memory, SampleReader(snapshot, memory), stack)

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.snapshot, self.memory, self.reader)

    def close(self) -> None:
        """Leave the node's memory. Later reads come from the store."""
        self.memory.close()
        if self.stack is not None:
            self.stack.close()

    def read_many(self, inodes: Inodes) -> list[bytes]:
        """Return whole files, in order."""
        return self.reader.read_many(inodes)

    def announce(self, plan: ReadingPlan, position: int = 0, after: str = "") -> PlanFile | None:
        """Have the master of the node memory prefetch a plan.

        With a mount, `dieselfs.prefetch.announcement.announce` does so.
        """
        try:
            file = write_plan(self.memory.folder.path, plan, position=position, after=after)
        except OSError as error:
            warnings.warn(f"cannot prefetch the reading order: {error}", RuntimeWarning, 2)
            return None
        try:
            self.memory.follow(file.path)
        except NotYetSupported:
            file.remove()
            return None
        except PlanTooLarge as error:
            file.remove()
            hint = f" ({error.hint})" if error.hint else ""
            warnings.warn(f"cannot prefetch the reading order: {error}{hint}", RuntimeWarning, 2)
            return None
        return file


def snapshot_of(client: Client) -> Snapshot:
    """Return the snapshot that a client has loaded, or else one of the dataset's present state.

    It is the caller's, so the client may be closed, and goes on to answer as before.
    """
    return Snapshot.open(client.save_meta() if client.snapshot is None else client.snapshot.path)
