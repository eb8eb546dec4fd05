"""`dlcmd mountd`: the service that mounts for ordinary users. It runs in the foreground."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.command import command, log_to_stderr, size_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    import socket

    from dieselfs.fuse.service.user_limits import Settings

log = logging.getLogger(__name__)

IMAGE_FOLDER: Final = Path("/var/cache/dieselfs/images")


@command(examples=["dlcmd mountd", "dlcmd mountd --group ml --max-mounts 8 --max-images 2GiB"])
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Socket of the service (default: DIESELFS_MOUNTD, or /run/dieselfs/mountd.sock).",
)
@click.option(
    "--group", metavar="NAME", help="Serve only members of this group (default: all users)."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=IMAGE_FOLDER,
    show_default=True,
    metavar="FOLDER",
    help="Folder of the images; only root may write to it.",
)
@click.option(
    "--allow-other",
    is_flag=True,
    help="Let users show their mounts to others, as user_allow_other in fuse.conf does.",
)
@click.option(
    "--max-mounts",
    type=click.IntRange(1, 10_000),
    default=64,
    show_default=True,
    metavar="N",
    help="Mounts per user.",
)
@size_option("--max-images", help_text="Bytes of images per user on disk (default: 8 GiB).")
@click.option(
    "--idle",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="End after this long without a request; a socket unit starts the service again.",
)
def mountd(context: CommandContext, **options: Any) -> None:
    """Mount snapshots for ordinary users with EROFS in front, as a service of root.

    The service verifies snapshots and builds images from them. It mounts the images read-only,
    nosuid and nodev at directories of the user's own, and unmounts the user's mounts. The user's
    process serves the content. SIGTERM or Ctrl-C ends the service; mounts stay.
    """
    if os.geteuid() != 0:
        raise UsageError("the mount service needs root", "start dieselfs-mountd.service")
    from dieselfs.fuse.service.service import MountService, prepare_folder
    from dieselfs.fuse.supervision.readiness import announce_ready

    log_to_stderr()
    settings = _settings(options)
    prepare_folder(settings.images)
    with _listener(options) as listener, closing(MountService(listener, settings)) as service:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.stop())
        log.info("ready at %s; images in %s", listener.getsockname(), settings.images)
        announce_ready()
        service.run(options["idle"])
    log.info("ended")


def _settings(options: dict[str, Any]) -> Settings:
    from dieselfs.fuse.service.user_limits import Settings

    settings = Settings(options["folder"], options["allow_other"], options["max_mounts"])
    most = options["max_images"]
    return settings if most is None else replace(settings, image_bytes=most)


def _listener(options: dict[str, Any]) -> socket.socket:
    """Return the socket that systemd hands over, or a new one."""
    import grp

    from dieselfs.fuse.mounts.service_client import service_socket
    from dieselfs.fuse.service.service import activated_socket, listening_socket

    activated = activated_socket()
    if activated is not None:
        return activated
    group = options["group"]
    if group is not None:
        try:
            grp.getgrnam(group)
        except KeyError:
            raise UsageError(f"there is no group {group!r}", "correct the --group") from None
    return listening_socket(options["socket_path"] or service_socket(), group)
