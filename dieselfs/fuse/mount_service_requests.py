"""One request to the mount service, answered in a process of its own that may hang or be killed.

The process trusts nothing that it gets: the peer is who the kernel says, descriptors are checked
before they are used, and the kernel parses no metadata but the image that is built here from a
verified snapshot. Before the kernel may wait for a server of the user's, the process above is told
how long, and which connection to break off when the time is over.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from dieselfs.errors import DieselFSError, MountError
from dieselfs.fuse.blob_server import blob_name
from dieselfs.fuse.front_choice import direct_io_is_safe, kernel_version
from dieselfs.fuse.mount_service_changes import CONTROL_SOURCE, control_place, unmount_unused
from dieselfs.fuse.mount_service_descriptors import (
    check_mountpoint,
    check_sealed,
    facts,
    mount_entry,
    mountpoint_path,
    owned_mount,
)
from dieselfs.fuse.mount_service_limits import (
    FuseConnections,
    Limits,
    check_mounts,
    make_room,
    users_folder,
)
from dieselfs.fuse.mount_service_messages import BadMessage, close_all, receive, send
from dieselfs.fuse.mount_service_peer import check_namespace, peer_of
from dieselfs.fuse.mount_syscalls import Option, attach, detach_mount, new_mount
from dieselfs.fuse.readahead import erofs_settings, widen_erofs_readahead, widen_readahead
from metadata.blob_layout import BlobLayout
from metadata.errors import MetadataError
from metadata.kernel_image_file import kernel_image
from metadata.kernel_image_inodes import Owner
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

Announce: TypeAlias = Callable[[int, float], None]
"""Is told a step: the device number of a file system that may be the user's, and seconds."""

_BLOB_SOURCE: Final = "dieselfs-blob"
_MAX_TEXT: Final = 1000


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What an administrator decides."""

    images: Path
    """The folder of images, root's alone: one folder a user."""
    allow_other: bool = False
    """Whether users may show their mounts to others, whose reads then wait for their servers."""
    limits: Limits = field(default_factory=Limits)


class RequestHandler:
    """Answers the one request of a connection."""

    def __init__(
        self,
        connection: socket.socket,
        settings: ServiceSettings,
        connections: FuseConnections,
        announce: Announce,
    ) -> None:
        self._connection, self._settings, self._connections = connection, settings, connections
        self._announce = announce
        self._peer = peer_of(connection)
        self._folder = settings.images / str(self._peer.uid)

    def handle(self) -> None:
        """Receive the request, carry it out, answer. Never raises."""
        try:
            with ExitStack() as opened:
                what = self._carry_out(opened)
            log.info("user %d, process %d: %s", self._peer.uid, self._peer.pid, what)
        except (DieselFSError, MetadataError) as error:
            self._refuse(str(error), getattr(error, "hint", None))
        except BadMessage as error:
            self._refuse(str(error), None)
        except TimeoutError:
            self._refuse("no request has arrived in time", None)
        except OSError as error:
            self._refuse(f"the kernel refused: {error.strerror or error}", None)
        except Exception:
            log.exception("a request of user %d failed unexpectedly", self._peer.uid)
            self._refuse("the service has a fault", "see its log")

    def _refuse(self, what: str, hint: str | None) -> None:
        log.info("user %d, process %d: refused: %s", self._peer.uid, self._peer.pid, what)
        answer = {"answer": "error", "what": what[:_MAX_TEXT], "hint": (hint or "")[:_MAX_TEXT]}
        with suppress(OSError):
            send(self._connection, answer)

    def _carry_out(self, opened: ExitStack) -> str:
        self._connection.settimeout(self._settings.limits.patience_s)
        request, descriptors = receive(self._connection)
        opened.callback(close_all, descriptors)
        check_namespace(self._connection)
        for descriptor in descriptors[-1:]:  # the mountpoint may lie in a FUSE mount of the user's
            device = facts(descriptor, ask_server=False).device
            self._announce(device[1], self._settings.limits.mount_s)
        match request.get("request"), len(descriptors):
            case "mount", 2:
                check_mountpoint(descriptors[1], self._peer.uid)
                return self._mount(request, *descriptors, replaced=False)
            case "replace", 2:
                owned_mount(descriptors[1], self._peer.uid, self._folder)
                return self._mount(request, *descriptors, replaced=True)
            case "control", 1:
                return self._control(descriptors[0])
            case "unmount", 1:
                return self._unmount(descriptors, lazy=_flag(request, "lazy"))
        raise BadMessage("the service does not know this request")

    # Mounting

    def _mount(self, request: dict[str, Any], snapshot: int, target: int, *, replaced: bool) -> str:
        private, direct_io = _flag(request, "private"), _flag(request, "direct_io")
        self._check_options(private, direct_io)
        with ExitStack() as opened:
            image, devices = self._image(snapshot, private, replaced, opened)
            blobs = self._served_blobs(devices, opened)
            erofs = _mount_image(image, blobs, direct_io)
            opened.callback(os.close, erofs)
            if replaced:
                attach(erofs, target, beneath=True)
                detach_mount(target)
            else:
                attach(erofs, target)
            entry = mount_entry(erofs)
            try:
                send(self._connection, {"answer": "done"}, blobs)
            except OSError:  # there is nobody to serve it
                detach_mount(erofs)
                raise
        shown = entry.mountpoint if entry else "?"
        return f"{'replaced' if replaced else 'mounted'} {shown}: {image.name}"

    def _check_options(self, private: bool, direct_io: bool) -> None:
        if not private and not self._settings.allow_other:
            raise MountError(
                "the service makes private mounts only",
                "mount without --allow-other, or have the service started with --allow-other",
            )
        if direct_io and not direct_io_is_safe(kernel_version(os.uname().release)):
            raise MountError("direct I/O is unsafe on this kernel", "use --blob-cache buffered")

    def _image(
        self, snapshot: int, private: bool, replaced: bool, opened: ExitStack
    ) -> tuple[Path, int]:
        """The image, open so that nobody removes it as unused, and how many blobs it needs."""
        limits, peer = self._settings.limits, self._peer
        self._announce(0, limits.build_s)
        size = check_sealed(snapshot)
        if size > limits.snapshot_bytes:
            raise MountError(
                f"the snapshot exceeds {limits.snapshot_bytes >> 20} MiB, the most for the service"
            )
        with users_folder(self._settings.images, peer.uid, limits.patience_s) as folder:
            if not replaced:
                check_mounts(folder, limits)
            self._connections.check(peer.uid, limits)
            image, devices = _built(snapshot, folder, Owner(peer.uid, peer.gid, private))
            opened.callback(os.close, os.open(image, os.O_RDONLY | os.O_CLOEXEC))
            make_room(folder, image, limits)
        return image, devices

    def _served_blobs(self, devices: int, opened: ExitStack) -> list[int]:
        """O_PATH descriptors of the blobs in a mount that is nowhere and that the user serves."""
        connection, mount = self._fuse_mount(_BLOB_SOURCE, allow_other=True)
        try:
            number = facts(mount, ask_server=False).device
            self._announce(number[1], self._settings.limits.mount_s)
            send(self._connection, {"answer": "serve"}, [connection])
            os.close(connection)  # the user's death ends it from here on
            connection = -1
            blobs: list[int] = []
            opened.callback(close_all, blobs)
            for device in range(devices):
                blobs.append(_blob(mount, blob_name(device), number))
        finally:
            close_all([mount] if connection < 0 else [mount, connection])
        widen_readahead(os.makedev(*number))
        return blobs

    def _fuse_mount(self, source: str, *, allow_other: bool) -> tuple[int, int]:
        """A connection and its mount, which is nowhere; the peer is its user."""
        others: list[Option] = [("allow_other", None)] if allow_other else []
        connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            options: list[Option] = [
                ("source", source),
                ("subtype", "dieselfs"),
                ("fd", str(connection)),
                ("rootmode", "40000"),
                ("user_id", str(self._peer.uid)),
                ("group_id", str(self._peer.gid)),
                ("default_permissions", None),
            ]
            return connection, new_mount("fuse", [*options, *others])
        except BaseException:
            os.close(connection)
            raise

    # Mounts that there are

    def _control(self, root: int) -> str:
        entry = owned_mount(root, self._peer.uid, self._folder)
        self._connections.check(self._peer.uid, self._settings.limits)
        is_private = not facts(root).mode & stat.S_IXOTH
        place = control_place(root)
        try:
            allow_other = self._settings.allow_other and not is_private
            connection, mount = self._fuse_mount(CONTROL_SOURCE, allow_other=allow_other)
            try:
                attach(mount, place)
                send(self._connection, {"answer": "done"}, [connection])
            finally:
                close_all([connection, mount])
        finally:
            os.close(place)
        return f"control directory of {entry.mountpoint}"

    def _unmount(self, descriptors: list[int], *, lazy: bool) -> str:
        root = descriptors[0]
        entry = owned_mount(root, self._peer.uid, self._folder)
        if lazy:
            detach_mount(root)
        else:
            with mountpoint_path(root, entry.mountpoint.name) as path:
                close_all(descriptors)
                descriptors.clear()
                unmount_unused(path, entry.mount_id)
        send(self._connection, {"answer": "done"})
        return f"unmounted {entry.mountpoint}"


def _flag(request: dict[str, Any], name: str) -> bool:
    value = request.get(name)
    if not isinstance(value, bool):
        raise BadMessage(f"{name} is not true or false")
    return value


def _built(snapshot: int, folder: Path, owner: Owner) -> tuple[Path, int]:
    """The image of a sealed snapshot after every check of it, and how many blobs it needs."""
    path = f"/proc/self/fd/{snapshot}"
    Snapshot.verify(path)
    with Snapshot.open(path) as opened:
        layout = BlobLayout.of(opened)
        # A folder of its own, since `kernel_image` removes images of snapshots not in the folder.
        own = folder / opened.id
        own.mkdir(mode=0o700, exist_ok=True)
        return kernel_image(opened, own, owner, layout=layout), layout.device_count


def _blob(mount: int, name: str, device: tuple[int, int]) -> int:
    """An O_PATH descriptor of a regular file of the user's server.

    A link could lead the kernel, which opens the file as root, to any file.
    """
    blob = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=mount)
    try:
        found = facts(blob)
        if not stat.S_ISREG(found.mode) or found.device != device:
            raise MountError(f"{name} is not a regular file of its server")
    except BaseException:
        os.close(blob)
        raise
    return blob


def _mount_image(image: Path, blobs: Sequence[int], direct_io: bool) -> int:
    devices: list[Option] = [("device", f"/proc/self/fd/{blob}") for blob in blobs]
    direct: list[Option] = [("directio", None)] if direct_io else []
    before = erofs_settings()
    mount = new_mount("erofs", [("source", str(image)), *devices, *direct])
    widen_erofs_readahead(before)
    return mount
