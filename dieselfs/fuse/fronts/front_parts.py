"""The parts that every front of a mount is made of, and the state that a supervisor keeps of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.mounts.front_choice import FrontChoice, WantedCache, WantedFront
from dieselfs.fuse.requests.attributes import Owner
from dieselfs.fuse.requests.file_reader import FileReader
from dieselfs.fuse.requests.in_flight import InFlight
from dieselfs.fuse.requests.receiving_threads import threads_by_cores
from dieselfs.fuse.supervision.handover import Handed, Role
from dieselfs.shuffle.order import ShuffleParameters
from metadata.snapshot import Snapshot

NoteRead = Callable[[int, int], None]
"""A function that is called for each answered READ with its first file and its thread."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """The place and the options of a mount."""

    mountpoint: Path
    store_url: str = ""
    """The URL of the store, shown without its secrets in `.dieselfs/dataset.json`."""
    allow_other: bool = False
    """Let other users in.

    An ordinary user's FUSE mount needs `user_allow_other` in /etc/fuse.conf.
    """
    uid: int | None = None
    """The owner of everything in the mount; the mounting user by default."""
    gid: int | None = None
    nonempty: bool = False
    """Mount over what the directory holds."""
    front: WantedFront = "auto"
    blob_cache: WantedCache = "auto"
    preload_bytes: int = 0
    """Bytes to fetch into memory at the beginning; `source` must have room for them."""
    task_folder: Path | None = None
    """The task folder of the node memory in `source`, where readers write their plans.

    With None no plan is prefetched.
    """
    foreign_plans: bool = True
    """Take plans that readers write into the control directory."""
    memory_bytes: int = 0
    """Bytes of node memory and of page-cache prefill for plans, together."""
    shuffle: ShuffleParameters | None = None
    """The order that will be read; it is prefetched from the beginning."""
    prefill_bytes: int | None = None
    """The most bytes of the page cache for files that no reader has read.

    None means a share of the free memory, 0 means nothing.
    """
    threads: int | None = None
    """The threads that receive READs at a time; None: by the cores of the machine."""
    sharing_key: str = ""
    """Equal for mounts that may share one server; shown in `.dieselfs/dataset.json`."""

    @property
    def receiving_threads(self) -> int:
        """The threads that receive requests of the front."""
        return threads_by_cores() if self.threads is None else self.threads

    @property
    def owner(self) -> Owner:
        """The owner of everything in the mount, with this process's ids as defaults."""
        return Owner(
            os.getuid() if self.uid is None else self.uid,
            os.getgid() if self.gid is None else self.gid,
        )


class FrontParts:
    """The parts that every front is made of."""

    def __init__(
        self,
        snapshot: Snapshot,
        options: MountOptions,
        mountpoint: Path,
        handed: Handed,
        reader: FileReader,
        control: ControlDirectory,
        note_read: NoteRead,
        on_end: Callable[[], None],
    ) -> None:
        self.snapshot, self.options, self.mountpoint = snapshot, options, mountpoint
        self.handed, self.reader, self.control = handed, reader, control
        self.note_read, self.on_end = note_read, on_end
        # A comma would end a mount option, and mount tables are ASCII.
        self.source = quote(f"dieselfs:{snapshot.dataset.name}@{snapshot.id}", safe=":@/-_.~+=")
        self.resumes = handed.role in (Role.RESUME, Role.UPGRADE)
        self.replaces = handed.role is Role.REFRESH
        # Servers that follow each other share one table; two that serve at a time have one each.
        former = handed.descriptors.get("in_flight")
        resumed = former if handed.role is Role.RESUME else None
        retiring = former if handed.role is Role.UPGRADE else None
        self.in_flight = InFlight(resumed[0]) if resumed else InFlight.new()
        self.retiring = InFlight(retiring[0]) if retiring else None


def kept_state(choice: FrontChoice, **more: Any) -> dict[str, Any]:
    """Return the state by which the next server makes the same front; JSON."""
    return {
        "front": choice.front.value,
        "via_service": choice.via_service,
        "reason": choice.reason,
        "more": choice.more,
        **more,
    }
