"""One request to the mount service, answered in a process of its own that may hang or be killed.

The process trusts none of its input: the kernel identifies the peer, descriptors are checked before
they are used, and the kernel parses no metadata but the image that is built here from a verified
snapshot. Before the kernel may wait for a server of the user, this process announces to its parent
how long, and which connection to abort when the time is over.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from dieselfs.errors import DieselFSError, MountError, MountpointBusy
from dieselfs.fuse.mounts.erofs_mounts import FuseMount, find_blobs, mount_image, new_fuse_mount
from dieselfs.fuse.mounts.front_choice import kernel_version, mounts_files
from dieselfs.fuse.mounts.mount_syscalls import attach, detach_mount
from dieselfs.fuse.mounts.mountpoint import DIRECTORY, detach_unused
from dieselfs.fuse.mounts.service_messages import BadServiceMessage, close_all, receive, send
from dieselfs.fuse.service.caller import check_namespace, peer_of
from dieselfs.fuse.service.descriptor_checks import (
    CONTROL_SOURCE,
    check_mountpoint,
    check_owned,
    check_sealed,
    control_place,
    unasked_facts,
)
from dieselfs.fuse.service.user_limits import (
    SNAPSHOT_BYTES,
    FuseConnections,
    Settings,
    check_mounts,
    make_room,
    users_folder,
)
from metadata.blob_layout import BlobLayout
from metadata.errors import MetadataError
from metadata.kernel_image_file import kernel_image
from metadata.kernel_image_inodes import ImageOwner
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

Announce: TypeAlias = Callable[[int, float], None]
"""A function that announces a step.

Its arguments are the device number of a file system that may be the user's, and seconds.
"""

_BLOB_SOURCE: Final = "dieselfs-blob"
_MAX_TEXT: Final = 1000
_BUSY_PATIENCE_S: Final = 0.5
"""The time for the client to close its descriptor of the mount's root."""


class RequestHandler:
    """The handler of the one request of a connection."""

    def __init__(
        self,
        connection: socket.socket,
        settings: Settings,
        connections: FuseConnections,
        announce: Announce,
    ) -> None:
        self._connection, self._settings, self._connections = connection, settings, connections
        self._announce = announce
        self._peer = peer_of(connection)
        self._images = settings.images / str(self._peer.uid)

    def handle(self) -> None:
        """Receive the request, carry it out, answer. Never raises."""
        try:
            with ExitStack() as opened:
                done = self._carry_out(opened)
            log.info("user %d, process %d: %s", self._peer.uid, self._peer.pid, done)
        except (DieselFSError, MetadataError) as error:
            self._refuse(str(error), getattr(error, "hint", None))
        except TimeoutError:
            self._refuse("no request has arrived in time")
        except OSError as error:
            self._refuse(f"the kernel refused: {error.strerror or error}")
        except Exception:
            log.exception("a request of user %d failed unexpectedly", self._peer.uid)
            self._refuse("the service failed unexpectedly", "see its log")

    def _refuse(self, what: str, hint: str | None = None) -> None:
        log.info("user %d, process %d: refused: %s", self._peer.uid, self._peer.pid, what)
        answer = {"answer": "error", "what": what[:_MAX_TEXT], "hint": (hint or "")[:_MAX_TEXT]}
        with suppress(OSError):
            send(self._connection, answer)

    def _done(self, *descriptors: int) -> None:
        send(self._connection, {"answer": "done"}, descriptors)

    def _carry_out(self, opened: ExitStack) -> str:
        self._connection.settimeout(self._settings.patience_s)
        request, descriptors = receive(self._connection)
        opened.callback(close_all, descriptors)
        check_namespace(self._connection)
        for target in descriptors[-1:]:  # it may lie in a FUSE mount of the user
            self._announce_server(target)
        match request.get("request"), descriptors:
            case "mount", [snapshot, mountpoint]:
                check_mountpoint(mountpoint, self._peer.uid)
                return self._mount(request, snapshot, mountpoint, replaced=False)
            case "replace", [snapshot, root]:
                check_owned(root, self._peer.uid, self._images)
                return self._mount(request, snapshot, root, replaced=True)
            case "control", [root]:
                return self._control(root)
            case "unmount", [root]:
                return self._unmount(root, opened, lazy=_flag(request, "lazy"))
        raise BadServiceMessage("the service does not know this request")

    def _announce_server(self, descriptor: int) -> None:
        number, _ = unasked_facts(descriptor)
        self._announce(number, self._settings.mount_s)

    def _mount(self, request: dict[str, Any], snapshot: int, target: int, *, replaced: bool) -> str:
        private, direct_io = _flag(request, "private"), _flag(request, "direct_io")
        self._check_options(private)
        where = os.readlink(f"/proc/self/fd/{target}")
        with ExitStack() as opened:
            image, blob_count = self._image(snapshot, private, replaced, opened)
            blobs = self._served_blobs(blob_count)
            opened.callback(close_all, blobs)
            erofs = mount_image(image, blobs, direct_io=direct_io)
            opened.callback(os.close, erofs)
            attach(erofs, target, beneath=replaced)
            if replaced:
                detach_mount(target)
            try:
                self._done(*blobs)
            except OSError:  # no process can serve it
                detach_mount(erofs)
                raise
        return f"{'replaced' if replaced else 'mounted'} {where}: {image.name}"

    def _check_options(self, private: bool) -> None:
        if not private and not self._settings.allow_other:
            raise MountError(
                "the service makes private mounts only",
                "mount without --allow-other, or have the service started with --allow-other",
            )
        if not mounts_files(kernel_version(os.uname().release)):
            raise MountError("EROFS over files is unsafe on this kernel", "use --front fuse")

    def _image(
        self, snapshot: int, private: bool, replaced: bool, opened: ExitStack
    ) -> tuple[Path, int]:
        """Return the image and the number of blobs that it needs.

        The image is open, so that no other request removes it as unused.
        """
        settings, peer = self._settings, self._peer
        self._announce(0, settings.build_s)
        if check_sealed(snapshot) > SNAPSHOT_BYTES:
            most = SNAPSHOT_BYTES >> 20
            raise MountError(f"the snapshot exceeds {most} MiB, the most for the service")
        with users_folder(settings.images, peer.uid) as folder:
            if not replaced:
                check_mounts(folder, settings.mounts)
            self._connections.check(peer.uid, settings.connections)
            image, blob_count = _built(snapshot, folder, ImageOwner(peer.uid, peer.gid, private))
            make_room(folder, image, settings.image_bytes)
            opened.callback(os.close, os.open(image, os.O_RDONLY | os.O_CLOEXEC))
        return image, blob_count

    def _served_blobs(self, count: int) -> list[int]:
        """Return O_PATH descriptors of the blobs in a detached mount that the user serves."""
        made = self._fuse_mount(_BLOB_SOURCE, allow_other=True)
        try:
            try:
                self._announce_server(made.mount)
                send(self._connection, {"answer": "serve"}, [made.connection])
            finally:
                os.close(made.connection)  # the user's exit ends it from here on
            return find_blobs(made.mount, count)
        finally:
            os.close(made.mount)

    def _fuse_mount(
        self, source: str, *, allow_other: bool, is_writable: bool = False
    ) -> FuseMount:
        """Return a detached FUSE mount whose user is the peer."""
        uid, gid = self._peer.uid, self._peer.gid
        return new_fuse_mount(
            source, allow_other=allow_other, is_writable=is_writable, uid=uid, gid=gid
        )

    def _control(self, root: int) -> str:
        entry = check_owned(root, self._peer.uid, self._images)
        self._connections.check(self._peer.uid, self._settings.connections)
        is_private = not os.fstat(root).st_mode & stat.S_IXOTH
        place = control_place(root)
        try:
            allow_other = self._settings.allow_other and not is_private
            made = self._fuse_mount(CONTROL_SOURCE, allow_other=allow_other, is_writable=True)
            try:
                attach(made.mount, place)
                self._done(made.connection)
            finally:
                close_all([made.connection, made.mount])
        finally:
            os.close(place)
        return f"control directory of {entry.mountpoint}"

    def _unmount(self, root: int, opened: ExitStack, *, lazy: bool) -> str:
        entry = check_owned(root, self._peer.uid, self._images)
        if lazy:
            detach_mount(root)
        else:
            # The detach uses one name in the directory above, with another check of the mount's
            # number: a user who can exchange that name may remove the mountpoint anyway.
            above = os.open("..", DIRECTORY, dir_fd=root)
            opened.close()  # a mount is busy while its root is open
            try:
                _detach_patiently(f"/proc/self/fd/{above}/{entry.mountpoint.name}", entry.mount_id)
            finally:
                os.close(above)
        self._done()
        return f"unmounted {entry.mountpoint}"


def _flag(request: dict[str, Any], name: str) -> bool:
    value = request.get(name)
    if not isinstance(value, bool):
        raise BadServiceMessage(f"{name} is not true or false")
    return value


def _built(snapshot: int, folder: Path, owner: ImageOwner) -> tuple[Path, int]:
    """Return the image of a sealed snapshot after all checks, and the number of its blobs."""
    path = f"/proc/self/fd/{snapshot}"
    Snapshot.verify(path)
    with Snapshot.open(path) as opened:
        layout = BlobLayout.of(opened)
        # A folder of its own, since `kernel_image` removes images of snapshots not in the folder.
        own = folder / opened.id
        own.mkdir(mode=0o700, exist_ok=True)
        image = kernel_image(opened, own, owner, layout=layout, is_verified=True)
        return image, layout.device_count


def _detach_patiently(path: str, number: int) -> None:
    deadline = time.monotonic() + _BUSY_PATIENCE_S
    while True:
        try:
            detach_unused(path, number)
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            if time.monotonic() > deadline:
                raise MountpointBusy(
                    "the mount is in use", "end the processes that use it, or detach it with --lazy"
                ) from None
        time.sleep(0.02)
