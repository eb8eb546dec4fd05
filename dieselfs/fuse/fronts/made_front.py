"""The front of a mount: its contract, and the choice of the one that is made.

A front is new, replaces an older mount, or is taken over from the server before this one. The
kernel may refuse the front that was chosen. Then the next best one is made, and the choice says
why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from dieselfs.errors import MountError
from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.fronts.erofs_front import ErofsFront
from dieselfs.fuse.fronts.front_parts import FrontParts, MountOptions, NoteRead
from dieselfs.fuse.fronts.tree_front import TreeFront
from dieselfs.fuse.mounts.front_choice import (
    Front,
    FrontChoice,
    after_failure,
    choose,
    probe,
    without_erofs,
)
from dieselfs.fuse.pages.page_filler import PageFiller
from dieselfs.fuse.pages.page_helper import PageHelper
from dieselfs.fuse.requests.file_reader import CachedSource, FileReader
from dieselfs.fuse.supervision.handover import Handed, Role
from metadata.errors import KernelImageTooLarge, KernelImageUnwritable
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)


class MadeFront(Protocol):
    """A front that serves."""

    choice: FrontChoice
    descriptors: dict[str, list[int]]
    """Descriptors that the supervisor keeps, by the names that `make_front` reads."""
    state: dict[str, Any]
    """State that the supervisor keeps likewise; JSON."""
    readahead_bytes: int
    """The most that the kernel reads ahead in one request."""

    def make_filler(
        self, source: CachedSource, helper: PageHelper, own_threads: set[int]
    ) -> PageFiller:
        """Return the filler that puts files into the page cache behind this front."""
        ...

    def read_names_ahead(self) -> None:
        """Have the kernel read forgotten names and attributes again. Returns at once."""
        ...

    def counts(self) -> dict[str, int]:
        """Return the number of requests by kind."""
        ...

    def hide(self) -> None:
        """Unmount, also while files are open."""
        ...

    def check_mounts(self) -> None:
        """Note in the state where the mount is shown; call it about once a second.

        A mount that nobody uses any more ends, though READs still wait for a store.
        """
        ...

    def note_gone(self) -> None:
        """Note that the mount is not used any more: the kernel has told another server of it."""
        ...

    def stop_receiving(self) -> None:
        """Receive no more requests; answers may still be sent."""
        ...

    def hand_over(self) -> None:
        """Leave unanswered requests to another server of the connection."""
        ...

    def take_over_from_retired(self) -> None:
        """Handle what another server of the connection left unanswered when it was killed."""
        ...

    def close(self) -> None:
        """End this server's part.

        The mount ends with it unless a supervisor holds the descriptors.
        """
        ...


def make_front(
    snapshot: Snapshot,
    options: MountOptions,
    mountpoint: Path,
    handed: Handed,
    reader: FileReader,
    control: ControlDirectory,
    *,
    note_read: NoteRead,
    on_end: Callable[[], None],
) -> MadeFront:
    """Return the front that serves `snapshot` at `mountpoint` from now on. Raises `MountError`."""
    parts = FrontParts(snapshot, options, mountpoint, handed, reader, control, note_read, on_end)
    if handed.role in (Role.RESUME, Role.UPGRADE):
        choice = FrontChoice(
            Front(handed.state["front"]),
            handed.state["via_service"],
            handed.state["reason"],
            handed.state["more"],
        )
        return TreeFront(parts, choice) if choice.front is Front.FUSE else ErofsFront(parts, choice)
    facts = probe()
    choice = choose(options.front, facts)
    while choice.is_erofs:
        try:
            return ErofsFront(parts, choice)
        except (KernelImageTooLarge, KernelImageUnwritable) as error:
            log.warning("%s", error)
            choice = without_erofs(options.front, str(error))
        except (OSError, MountError) as error:
            log.warning("EROFS (%s) is not mounted: %s", choice.front.value, error)
            choice = after_failure(options.front, choice, facts, str(error))
    return TreeFront(parts, choice)
