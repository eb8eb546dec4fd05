"""The fronts of a mount, made for the first time, put in the place of an older mount, or taken over from a server before this one.

What was chosen may turn out to be impossible: the kernel has the last word. Then the next best
front is made, and the choice says why.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

import numpy as np

from dieselfs.errors import DieselFSError, MountError
from dieselfs.fuse import erofs_front, fusermount
from dieselfs.fuse.blob_ranges import BlobRanges
from dieselfs.fuse.blob_server import BlobServer
from dieselfs.fuse.control_files import ControlDirectory
from dieselfs.fuse.control_thread import ControlThread
from dieselfs.fuse.file_filler import FileFiller
from dieselfs.fuse.file_reader import CachedSource, FileReader
from dieselfs.fuse.front_choice import (
    Front,
    FrontChoice,
    after_failure,
    choose,
    probe,
    use_direct_io,
    without_erofs,
)
from dieselfs.fuse.in_flight import InFlight
from dieselfs.fuse.kernel_connection import Connection
from dieselfs.fuse.mount_syscalls import detach
from dieselfs.fuse.mount_table import entries_of_device
from dieselfs.fuse.mountpoint import unmount
from dieselfs.fuse.nodes import node_of
from dieselfs.fuse.page_filler import PageFiller
from dieselfs.fuse.page_helper import PageHelper
from dieselfs.fuse.pending_reads import PendingReads
from dieselfs.fuse.range_filler import RangeFiller
from dieselfs.fuse.readahead import read_ahead, readahead_bytes, set_readahead
from dieselfs.fuse.store_filler import StoreFiller
from dieselfs.fuse.supervisor import Handed, Role
from dieselfs.fuse.tree_server import TreeServer
from dieselfs.mountd import client as mount_service
from metadata.blob_layout import BlobLayout
from metadata.errors import KernelImageTooLarge, KernelImageUnwritable
from metadata.kernel_image_file import kernel_image
from metadata.kernel_image_inodes import Owner as ImageOwner
from metadata.snapshot import Snapshot

if TYPE_CHECKING:
    from dieselfs.fuse.mount import MountOptions

log = logging.getLogger(__name__)

NoteRead = Callable[[int, int], None]
"""Is told the first file of a READ that was answered, and the thread that made it."""
_CONTROL_THREADS = 4


class MadeFront(Protocol):
    """A front that serves."""

    choice: FrontChoice
    descriptors: dict[str, list[int]]
    """To be kept by the supervisor, under the names by which `make_front` finds them again."""
    state: dict[str, Any]
    """Likewise; JSON."""
    readahead_bytes: int
    """What the kernel reads ahead in one request."""

    def make_filler(
        self, source: CachedSource, helper: PageHelper, own_threads: set[int]
    ) -> PageFiller:
        """What brings files into the page cache behind this front."""
        ...

    def read_names_ahead(self) -> None:
        """Have the kernel read again what it has forgotten of names and attributes; without waiting for that."""
        ...

    def counts(self) -> dict[str, int]:
        """Requests by kind."""
        ...

    def hide(self) -> None:
        """Unmount, whoever has files open."""
        ...

    def release_hidden(self) -> None:
        """Let a mount that is shown nowhere any more end, though READs of readers that have gone still wait for a store."""
        ...

    def note_gone(self) -> None:
        """Another server of the connection has heard that nobody sees or uses the mount any more."""
        ...

    def stop_receiving(self) -> None:
        """Receive no more requests; answers may still be sent."""
        ...

    def hand_over(self) -> None:
        """Leave what is not answered to another server of the connection."""
        ...

    def close(self) -> None:
        """The end of this server's part. The mount ends with it unless a supervisor holds the descriptors."""
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
    """The front that serves `snapshot` at `mountpoint` from now on. Raises `MountError`."""
    parts = _Parts(snapshot, options, mountpoint, handed, reader, control, note_read, on_end)
    if handed.role in (Role.RESUME, Role.UPGRADE):
        choice = FrontChoice(
            Front(handed.state["front"]),
            handed.state["via_service"],
            handed.state["reason"],
            handed.state["more"],
        )
        return (
            _TreeFront(parts, choice) if choice.front is Front.FUSE else ErofsFront(parts, choice)
        )
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
    return _TreeFront(parts, choice)


class _Parts:
    """What every front is made of."""

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
        # One table for servers that follow each other; two that serve at a time have one each.
        left = handed.descriptors.get("in_flight") if handed.role is Role.RESUME else None
        self.in_flight = InFlight(left[0]) if left else InFlight.new()


def _state(choice: FrontChoice, **more: Any) -> dict[str, Any]:
    return {
        "front": choice.front.value,
        "via_service": choice.via_service,
        "reason": choice.reason,
        "more": choice.more,
        **more,
    }


class _Last:
    """Calls a function at the last of several events."""

    def __init__(self, count: int, on_end: Callable[[], None]) -> None:
        self._left, self._on_end = count, on_end
        self._lock = threading.Lock()

    def note(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._on_end()


class ErofsFront:
    """EROFS over a blob; implements `MadeFront`."""

    def __init__(self, parts: _Parts, choice: FrontChoice) -> None:
        """Raises `OSError` or `MountError` if it cannot be mounted; nothing is left of it then."""
        self._parts, self.choice = parts, choice
        self.layout = BlobLayout.of(parts.snapshot)
        self._control: ControlThread | None = None
        self._image_path = parts.handed.state.get("image", "") if parts.resumes else ""
        """Empty if it is the mount service's."""
        self._ends = _Last(3, parts.on_end)
        """EROFS has gone, the control directory too (who has a list of an older mount open keeps it), and this front was made."""
        self._is_made = False
        with ExitStack() as undo:
            if parts.resumes:
                self._resume(undo)
            else:
                self._make(undo)
            undo.pop_all()
        self._is_made = True
        self._ends.note()

    def _resume(self, undo: ExitStack) -> None:
        handed = self._parts.handed
        [fuse], self.blobs = handed.descriptors["fuse"], handed.descriptors["blobs"]
        self.is_direct: bool = handed.state["direct"]
        self._device: list[int] = handed.state["device"]
        self._serve(fuse, is_resumed=True)
        self._show_control()
        self._note(fuse)

    def _make(self, undo: ExitStack) -> None:
        parts = self._parts
        self.is_direct = self._chooses_direct()
        if self.choice.via_service:
            self._make_by_service(undo)
            return
        image = self._image()
        self._image_path = os.fspath(image)
        made = erofs_front.new_fuse_mount(parts.source)
        undo.callback(os.close, made.connection)
        try:
            self._serve(made.connection, is_resumed=False)
            undo.callback(self.connection.stop)
            self.blobs = erofs_front.find_blobs(made.mount, self.layout.device_count)
        finally:
            os.close(made.mount)
        for blob in self.blobs:
            undo.callback(os.close, blob)
        with self._server.opening_front():
            mount = self._mount_image(image)
        try:
            device = os.fstat(mount).st_dev
            self._device = [os.major(device), os.minor(device)]
            self._control = self._new_control()
            undo.callback(self._control.close)
            erofs_front.show(mount, self._control.mount, *self._places())
        finally:
            os.close(mount)
        self._control.shown()
        self._note(made.connection)

    def _make_by_service(self, undo: ExitStack) -> None:
        parts = self._parts
        # The kernel opens the blobs before the service answers.
        opening = ExitStack()

        def serve(fuse: int) -> None:
            undo.callback(os.close, fuse)
            self._serve(fuse, is_resumed=False, opening=opening)
            undo.callback(self.connection.stop)

        with opening:
            self.blobs = mount_service.mount(
                parts.snapshot.path,
                parts.mountpoint,
                not parts.options.allow_other,
                self.is_direct,
                serve,
                replaces=parts.replaces,
            )
        for fd in self.blobs:
            undo.callback(os.close, fd)
        device = os.stat(parts.mountpoint).st_dev
        self._device = [os.major(device), os.minor(device)]
        self._show_control()
        self._note(self.connection.fd)

    def _places(self) -> tuple[list[Path], bool]:
        """Where to show it, and whether an older mount is to be replaced there, and wherever else it is shown."""
        parts = self._parts
        old = parts.handed.state.get("device") if parts.replaces else None
        shown = [entry.mountpoint for entry in entries_of_device((old[0], old[1]))] if old else []
        return (shown or [parts.mountpoint]), parts.replaces

    def _image(self) -> Path:
        parts = self._parts
        owner = parts.options.owner
        folder = parts.snapshot.path.parent
        image_owner = ImageOwner(owner.uid, owner.gid, private=not parts.options.allow_other)
        return kernel_image(parts.snapshot, folder, image_owner, layout=self.layout)

    def _mount_image(self, image: Path) -> int:
        if self.choice.front is Front.LOOP:
            return erofs_front.mount_image_over_loop(image, self.blobs)
        return erofs_front.mount_image(image, self.blobs, direct_io=self.is_direct)

    def _chooses_direct(self) -> bool:
        lengths = self._parts.snapshot.columns.length
        median = float(np.median(lengths)) if len(lengths) else 0.0
        wanted = self._parts.options.blob_cache
        is_direct = use_direct_io(median, wanted)
        if is_direct and self.choice.front is not Front.FILE:
            log.info("over loop devices there is one copy always: --blob-cache says nothing")
        return is_direct and self.choice.front is Front.FILE

    def _serve(self, fuse: int, *, is_resumed: bool, opening: ExitStack | None = None) -> None:
        """`opening`: EROFS may open the blob from the first answer on, until this is closed."""
        parts = self._parts
        self.connection = Connection(fuse, is_tree=False, in_flight=parts.in_flight)
        self._server = BlobServer(
            self.connection,
            BlobRanges(parts.snapshot, self.layout),
            parts.reader,
            note_read=parts.note_read,
            on_end=self._note_front_end,
            is_resumed=is_resumed,
        )
        if opening is not None:
            opening.enter_context(self._server.opening_front())
        if parts.handed.role is Role.RESUME:
            self.connection.take_over()
        self.connection.start(self._server, self._note_lost)

    def _note_front_end(self) -> None:
        self._parts.handed.front_has_gone()
        self._ends.note()

    def _note_lost(self) -> None:
        if self._is_made:  # else it ends since it could not be made
            self._parts.on_end()

    def _new_control(self, fuse: int | None = None) -> ControlThread:
        """A mount of its own, or that of `fuse`."""
        parts = self._parts
        return ControlThread(
            parts.control, parts.options.owner, parts.source, fuse=fuse, on_end=self._ends.note
        )

    def _show_control(self) -> None:
        """A new control directory in the place of an older one, whose server is gone or will go."""
        parts = self._parts
        try:
            if self.choice.via_service:
                fuse = mount_service.attach_control(parts.mountpoint)
                self._control = self._new_control(fuse)
            else:
                self._control = self._new_control()
                shown = entries_of_device((self._device[0], self._device[1]))
                places = [entry.mountpoint for entry in shown]
                erofs_front.show_control(self._control.mount, places)
            self._control.shown()
        except (OSError, DieselFSError) as error:
            log.warning("no control directory at %s: %s", parts.mountpoint, error)
            if self._control is None:
                self._ends.note()
            else:
                self._control.close()

    def _note(self, fuse: int) -> None:
        self.descriptors = {
            "fuse": [fuse],
            "blobs": self.blobs,
            "in_flight": [self._parts.in_flight.fd],
        }
        self.state = _state(
            self.choice, direct=self.is_direct, device=self._device, image=self._image_path
        )
        blob = os.stat(f"/proc/self/fd/{self.blobs[0]}")
        self.readahead_bytes = readahead_bytes(blob.st_dev)

    def make_filler(
        self, source: CachedSource, helper: PageHelper, own_threads: set[int]
    ) -> PageFiller:
        snapshot = self._parts.snapshot
        if self.is_direct or self.choice.front is Front.LOOP:
            return FileFiller(snapshot, helper, own_threads)
        return RangeFiller(
            snapshot, self.layout, self.open_blob, self.readahead_bytes, helper, own_threads
        )

    def open_blob(self, device: int) -> int:
        """A descriptor of a blob, for a moment."""
        return erofs_front.open_blob(self.blobs[device])

    def read_names_ahead(self) -> None:
        if self._image_path:
            name = "names-ahead"
            threading.Thread(
                target=read_ahead, args=[self._image_path], name=name, daemon=True
            ).start()

    def counts(self) -> dict[str, int]:
        return self.connection.counts

    def release_hidden(self) -> None:
        if not entries_of_device((self._device[0], self._device[1])):
            self.connection.fail_waiting()

    def hide(self) -> None:
        if self.choice.via_service:
            mount_service.unmount(self._parts.mountpoint, lazy=True)
        else:
            erofs_front.hide((self._device[0], self._device[1]))

    def note_gone(self) -> None:
        self._server.note_end()

    def stop_receiving(self) -> None:
        self.connection.stop()

    def hand_over(self) -> None:
        self.connection.hand_over()

    def close(self) -> None:
        if self._control is not None:
            self._control.close()


class _TreeFront:
    """A FUSE tree; implements `MadeFront`."""

    def __init__(self, parts: _Parts, choice: FrontChoice) -> None:
        self._parts, self.choice = parts, choice
        self._pending = PendingReads(_CONTROL_THREADS, "control")
        if parts.resumes:
            [fuse] = parts.handed.descriptors["fuse"]
            self._serve(fuse)
        else:
            fuse = self._mounted_by_root() if os.geteuid() == 0 else self._mounted_by_helper()
        self.descriptors = {"fuse": [fuse], "in_flight": [parts.in_flight.fd]}
        self.state = _state(choice)
        self.readahead_bytes = readahead_bytes(os.stat(parts.mountpoint).st_dev)

    def make_filler(
        self, source: CachedSource, helper: PageHelper, own_threads: set[int]
    ) -> PageFiller:
        snapshot, notify = self._parts.snapshot, self.connection.notify
        return StoreFiller(snapshot, source, notify, node_of, helper, own_threads)

    def read_names_ahead(self) -> None:
        """The kernel has them by inode: none is forgotten and used."""

    def _serve(self, fuse: int) -> None:
        parts = self._parts
        self.connection = Connection(fuse, is_tree=True, in_flight=parts.in_flight)
        server = TreeServer(
            self.connection,
            parts.snapshot,
            parts.options.owner,
            parts.reader,
            parts.control,
            self._pending,
            lambda inode: parts.note_read(inode, 0),
        )
        if parts.handed.role is Role.RESUME:
            self.connection.take_over()
        self.connection.start(server, parts.on_end)

    def _mounted_by_root(self) -> int:
        parts = self._parts
        try:
            made = erofs_front.new_fuse_mount(parts.source, allow_other=parts.options.allow_other)
        except OSError as error:
            raise MountError(f"cannot mount at {parts.mountpoint}: {error}") from error
        try:
            self._serve(made.connection)
            erofs_front.show(made.mount, None, [parts.mountpoint], parts.replaces)
            set_readahead(os.stat(parts.mountpoint).st_dev)
        except OSError as error:
            raise MountError(f"cannot mount at {parts.mountpoint}: {error}") from error
        finally:
            os.close(made.mount)
        return made.connection

    def _mounted_by_helper(self) -> int:
        """fusermount3 refuses to mount over a read-only mount, so an older mount goes first: for some milliseconds there is none."""
        parts = self._parts
        if parts.replaces:
            unmount(parts.mountpoint, lazy=True)
        options = ["ro", "default_permissions", f"fsname={parts.source}", "subtype=dieselfs"]
        if parts.options.allow_other:
            options.append("allow_other")
        fuse = fusermount.mount(parts.mountpoint, options)
        self._serve(fuse)
        return fuse

    def counts(self) -> dict[str, int]:
        return self.connection.counts

    def release_hidden(self) -> None:
        """The kernel ends the connection with the mount, whatever waits."""

    def hide(self) -> None:
        try:
            if os.geteuid() == 0:
                detach(self._parts.mountpoint)
            else:
                unmount(self._parts.mountpoint, lazy=True)
        except (OSError, MountError) as error:
            log.warning("%s is not unmounted: %s", self._parts.mountpoint, error)

    def note_gone(self) -> None:
        """The kernel tells each server."""

    def stop_receiving(self) -> None:
        self.connection.stop()

    def hand_over(self) -> None:
        self.connection.hand_over()

    def close(self) -> None:
        self._pending.close()
