"""The parts that every front of a mount is made of, and the state that a supervisor keeps of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.mounts.front_choice import FrontChoice
from dieselfs.fuse.requests.file_reader import FileReader
from dieselfs.fuse.requests.in_flight import InFlight
from dieselfs.fuse.supervision.supervisor import Handed, Role
from metadata.snapshot import Snapshot

if TYPE_CHECKING:
    from dieselfs.fuse.mount import MountOptions

NoteRead = Callable[[int, int], None]
"""A function that is called for each answered READ with its first file and its thread."""


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
        left = handed.descriptors.get("in_flight") if handed.role is Role.RESUME else None
        self.in_flight = InFlight(left[0]) if left else InFlight.new()


def kept_state(choice: FrontChoice, **more: Any) -> dict[str, Any]:
    """Return the state by which the next server makes the same front; JSON."""
    return {
        "front": choice.front.value,
        "via_service": choice.via_service,
        "reason": choice.reason,
        "more": choice.more,
        **more,
    }
