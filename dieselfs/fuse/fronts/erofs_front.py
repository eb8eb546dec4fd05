"""The fronts `erofs` and `erofs-loop`: EROFS over a blob that this process serves.

`erofs_mounts` makes and shows the mounts. `.dieselfs` is a FUSE mount of its own inside.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dieselfs.errors import DieselFSError
from dieselfs.fuse.fronts.control_mount import ControlMount
from dieselfs.fuse.fronts.front_parts import FrontParts, kept_state
from dieselfs.fuse.mounts import erofs_mounts
from dieselfs.fuse.mounts import service_client as mount_service
from dieselfs.fuse.mounts.ending_mounts import is_ending
from dieselfs.fuse.mounts.front_choice import Front, FrontChoice, use_direct_io
from dieselfs.fuse.mounts.own_mounts import OwnMounts
from dieselfs.fuse.mounts.readahead import read_ahead, readahead_bytes
from dieselfs.fuse.pages.file_filler import FileFiller
from dieselfs.fuse.pages.page_filler import PageFiller
from dieselfs.fuse.pages.page_helper import PageHelper
from dieselfs.fuse.pages.range_filler import RangeFiller
from dieselfs.fuse.requests.file_reader import CachedSource
from dieselfs.fuse.requests.kernel_connection import KernelConnection
from dieselfs.fuse.serving.blob_ranges import BlobRanges
from dieselfs.fuse.serving.blob_server import BlobServer
from dieselfs.fuse.supervision.handover import Role
from metadata.blob_layout import BlobLayout
from metadata.kernel_image_file import kernel_image
from metadata.kernel_image_inodes import ImageOwner

log = logging.getLogger(__name__)


class _Last:
    """A counter that calls a function at the last of several events."""

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

    def __init__(self, parts: FrontParts, choice: FrontChoice) -> None:
        """Make the mount.

        Raises `OSError` or `MountError` if it cannot be made, and leave nothing behind.
        """
        self._parts, self.choice = parts, choice
        self.layout = BlobLayout.of(parts.snapshot)
        self._control: ControlMount | None = None
        self._image_path = parts.handed.state.get("image", "") if parts.resumes else ""
        """The path of the image; empty if it is the mount service's."""
        self._ends = _Last(3, parts.on_end)
        """The last of three events: EROFS has gone, the control directory too, this front was made.

        A reader that has a list of an older mount open keeps its control directory.
        """
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
        self._mounts = OwnMounts.of(handed.state)
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
        made = erofs_mounts.new_fuse_mount(parts.source)
        undo.callback(os.close, made.connection)
        try:
            self._serve(made.connection, is_resumed=False)
            undo.callback(self.connection.stop)
            self.blobs = erofs_mounts.find_blobs(made.mount, self.layout.device_count)
        finally:
            os.close(made.mount)
        for blob in self.blobs:
            undo.callback(os.close, blob)
        with self._server.opening_front():
            mount = self._mount_image(image)
        try:
            self._mounts = OwnMounts.at(mount)
            self._control = self._new_control()
            undo.callback(self._control.close)
            erofs_mounts.show(mount, self._control.mount, *self._places())
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
        self._mounts = OwnMounts.at(parts.mountpoint)
        self._show_control()
        self._note(self.connection.fd)

    def _places(self) -> tuple[list[Path], bool]:
        """Return the places to show the mount at, and whether it replaces an older mount there.

        An older mount is replaced wherever it is shown.
        """
        parts = self._parts
        old = OwnMounts.of(parts.handed.state).entries() if parts.replaces else []
        return [entry.mountpoint for entry in old] or [parts.mountpoint], parts.replaces

    def _image(self) -> Path:
        parts = self._parts
        owner = parts.options.owner
        folder = parts.snapshot.path.parent
        image_owner = ImageOwner(owner.uid, owner.gid, private=not parts.options.allow_other)
        return kernel_image(parts.snapshot, folder, image_owner, layout=self.layout)

    def _mount_image(self, image: Path) -> int:
        if self.choice.front is Front.LOOP:
            return erofs_mounts.mount_image_over_loop(image, self.blobs)
        return erofs_mounts.mount_image(image, self.blobs, direct_io=self.is_direct)

    def _chooses_direct(self) -> bool:
        lengths = self._parts.snapshot.columns.length
        median = float(np.median(lengths)) if len(lengths) else 0.0
        wanted = self._parts.options.blob_cache
        is_direct = use_direct_io(median, wanted)
        if is_direct and self.choice.front is not Front.FILE:
            log.info("over loop devices content is cached once: --blob-cache has no effect")
        return is_direct and self.choice.front is Front.FILE

    def _serve(self, fuse: int, *, is_resumed: bool, opening: ExitStack | None = None) -> None:
        """Serve the blob.

        EROFS may open the blob from the first answer on, until `opening` is closed.
        """
        parts = self._parts
        self.connection = KernelConnection(
            fuse,
            is_tree=False,
            in_flight=parts.in_flight,
            retiring=parts.retiring,
            threads=parts.options.receiving_threads,
        )
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
        if self._is_made:  # otherwise it ends because it could not be made
            self._parts.on_end()

    def _new_control(self, fuse: int | None = None) -> ControlMount:
        """Create a control mount, or take over that of `fuse`."""
        parts = self._parts
        return ControlMount(
            parts.control, parts.options.owner, parts.source, fuse=fuse, on_end=self._ends.note
        )

    def _show_control(self) -> None:
        """Replace an older control directory by a new one, since its server has gone or will go."""
        parts = self._parts
        try:
            if self.choice.via_service:
                fuse = mount_service.attach_control(parts.mountpoint)
                self._control = self._new_control(fuse)
            else:
                self._control = self._new_control()
                places = [entry.mountpoint for entry in self._mounts.entries()]
                erofs_mounts.show_control(self._control.mount, places)
            self._control.shown()
        except (OSError, DieselFSError) as error:
            log.warning("cannot mount the control directory at %s: %s", parts.mountpoint, error)
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
        blob = os.stat(f"/proc/self/fd/{self.blobs[0]}").st_dev
        self.state = kept_state(
            self.choice,
            direct=self.is_direct,
            **self._mounts.state,
            connections=[os.minor(blob)],
            image=self._image_path,
        )
        self.readahead_bytes = readahead_bytes(blob)

    def make_filler(
        self, source: CachedSource, helper: PageHelper, own_threads: set[int]
    ) -> PageFiller:
        """Return a filler of files for direct I/O and loop devices, else one of ranges."""
        snapshot = self._parts.snapshot
        if self.is_direct or self.choice.front is Front.LOOP:
            return FileFiller(snapshot, helper, own_threads)
        return RangeFiller(
            snapshot, self.layout, self.open_blob, self.readahead_bytes, helper, own_threads
        )

    def open_blob(self, device: int) -> int:
        """Return a descriptor of a blob for a short use."""
        return erofs_mounts.open_blob(self.blobs[device])

    def read_names_ahead(self) -> None:
        """Have the image read into the page cache, unless it is the mount service's."""
        if self._image_path:
            name = "names-ahead"
            threading.Thread(
                target=read_ahead, args=[self._image_path], name=name, daemon=True
            ).start()

    def counts(self) -> dict[str, int]:
        """Return the counts of the blob's connection."""
        return self.connection.counts

    def check_mounts(self) -> None:
        """Note the mounts; fail the READs that wait if nobody uses EROFS any more.

        The kernel may wait for them to end it. Where it has ended, and another file system has its
        device number, they wait for the store.
        """
        is_shown = bool(self._mounts.entries())
        self.state.update(self._mounts.state)
        if not is_shown and self.connection.waiting() and is_ending(self._mounts.device):
            self.connection.fail_waiting()

    def hide(self) -> None:
        """Detach the mount from all its mountpoints."""
        self._mounts.detach()

    def note_gone(self) -> None:
        """Note that EROFS is gone; see `BlobServer.note_end`."""
        self._server.note_end()

    def stop_receiving(self) -> None:
        self.connection.stop()

    def hand_over(self) -> None:
        self.connection.hand_over()

    def take_over_from_retired(self) -> None:
        self.connection.take_over_from_retired()

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
