"""The front `fuse`: one FUSE mount shows the snapshot and, inside it, the control directory."""

from __future__ import annotations

import os

from dieselfs.errors import MountError
from dieselfs.fuse.control.control_requests import CONTROL_THREADS
from dieselfs.fuse.fronts.front_parts import FrontParts, kept_state
from dieselfs.fuse.mounts import erofs_mounts, fusermount
from dieselfs.fuse.mounts.front_choice import FrontChoice
from dieselfs.fuse.mounts.mountpoint import unmount
from dieselfs.fuse.mounts.own_mounts import OwnMounts
from dieselfs.fuse.mounts.readahead import readahead_bytes, set_readahead
from dieselfs.fuse.pages.page_filler import PageFiller
from dieselfs.fuse.pages.page_helper import PageHelper
from dieselfs.fuse.pages.store_filler import StoreFiller
from dieselfs.fuse.requests.file_reader import CachedSource
from dieselfs.fuse.requests.kernel_connection import KernelConnection
from dieselfs.fuse.requests.nodes import node_of
from dieselfs.fuse.requests.pending_reads import PendingReads
from dieselfs.fuse.serving.tree_server import TreeServer
from dieselfs.fuse.supervision.handover import Role


class TreeFront:
    """A FUSE tree; implements `MadeFront`."""

    def __init__(self, parts: FrontParts, choice: FrontChoice) -> None:
        self._parts, self.choice = parts, choice
        self._pending = PendingReads(CONTROL_THREADS)
        if parts.resumes:
            [fuse] = parts.handed.descriptors["fuse"]
            self._serve(fuse)
        else:
            fuse = self._mounted_by_root() if os.geteuid() == 0 else self._mounted_by_helper()
        self.descriptors = {"fuse": [fuse], "in_flight": [parts.in_flight.fd]}
        state = parts.handed.state
        is_known = parts.resumes and "device" in state  # a former version has kept none
        self._mounts = OwnMounts.of(state) if is_known else OwnMounts.at(parts.mountpoint)
        major, minor = self._mounts.device
        self.state = kept_state(choice, **self._mounts.state, connections=[minor])
        self.readahead_bytes = readahead_bytes(os.makedev(major, minor))

    def make_filler(
        self, source: CachedSource, helper: PageHelper, own_threads: set[int]
    ) -> PageFiller:
        """Return a filler that sends the bytes of files to the kernel."""
        snapshot, notify = self._parts.snapshot, self.connection.notify
        return StoreFiller(snapshot, source, notify, node_of, helper, own_threads)

    def read_names_ahead(self) -> None:
        """Do nothing: the kernel has names by inode, and none is forgotten and used."""

    def _serve(self, fuse: int) -> None:
        parts = self._parts
        self.connection = KernelConnection(
            fuse,
            is_tree=True,
            in_flight=parts.in_flight,
            retiring=parts.retiring,
            threads=parts.options.receiving_threads,
        )
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
            made = erofs_mounts.new_fuse_mount(parts.source, allow_other=parts.options.allow_other)
        except OSError as error:
            raise MountError(f"cannot mount at {parts.mountpoint}: {error}") from error
        try:
            self._serve(made.connection)
            erofs_mounts.show(made.mount, None, [parts.mountpoint], parts.replaces)
            set_readahead(os.stat(parts.mountpoint).st_dev)
        except OSError as error:
            raise MountError(f"cannot mount at {parts.mountpoint}: {error}") from error
        finally:
            os.close(made.mount)
        return made.connection

    def _mounted_by_helper(self) -> int:
        """Mount by fusermount3, which refuses to mount over a read-only mount.

        So an older mount goes first: for some milliseconds there is none.
        """
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

    def check_mounts(self) -> None:
        """Note the mounts: the kernel ends the connection with the last one by itself."""
        self._mounts.entries()
        self.state.update(self._mounts.state)

    def hide(self) -> None:
        """Detach the mount from all its mountpoints."""
        self._mounts.detach()

    def note_gone(self) -> None:
        """Do nothing: the kernel tells each server."""

    def stop_receiving(self) -> None:
        self.connection.stop()

    def hand_over(self) -> None:
        self.connection.hand_over()

    def take_over_from_retired(self) -> None:
        self.connection.take_over_from_retired()

    def close(self) -> None:
        self._pending.close()
