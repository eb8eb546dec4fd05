"""`dlcmd warmup --background`: a warm-up in a process of its own, with a log."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dieselfs.cache.cluster.settings import CacheClusterOptions
from dieselfs.cache.ssd.options import NONE
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.commands.warmup_selection import Selection
from dieselfs.cli.rendering.entries import iso_time
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.config import state_folder
from dieselfs.dataset.address import DatasetAddress
from dieselfs.errors import LocalFileError
from dieselfs.fuse.starting.mount_request import this_program

if TYPE_CHECKING:
    from dieselfs.cache.ssd.settings import SsdSettings
    from metadata.snapshot import Snapshot


def start_in_background(
    context: CommandContext,
    dataset: str,
    snapshot: Snapshot,
    ssd: SsdSettings | None,
    options: CacheClusterOptions,
    jobs: int | None,
    older: Snapshot | None,
    selection: Selection,
) -> int:
    """Start a process that warms what was chosen here, and print how to watch and stop it.

    Raises `LocalFileError` if the process or its log can't be started, and `UsageError` for a list
    that comes from standard input.
    """
    command = [*this_program(), "warmup"]
    command += ["--ssd", NONE if ssd is None else os.fspath(ssd.folder)]
    for place_ in (context.config.store, context.config.index):
        command += [place_.origin, place_.value] if place_.origin.startswith("--") else []
    command += ["--profile", context.config.profile] if context.config.profile else []
    if ssd is not None and ssd.budget_bytes is not None:
        command += ["--ssd-size", str(ssd.budget_bytes)]
    command += [] if options.cache_cluster is None else ["--cache-cluster", options.cache_cluster]
    if options.secret_file is not None:
        command += ["--cache-cluster-secret-file", os.path.abspath(options.secret_file)]
    command += [] if jobs is None else ["--jobs", str(jobs)]
    command += [] if older is None else ["--since", str(older.id)]
    command += selection.flags()
    command += ["--", str(DatasetAddress(dataset, selection.path, snapshot.id))]
    log_file = _log_file(dataset)
    try:
        log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as log:
            log.write(f"{iso_time(time.time_ns())} {shlex.join(command[1:])}\n".encode())
            log.flush()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    except OSError as error:
        raise LocalFileError(f"{error.filename or log_file}: {error.strerror}") from error
    context.output.done(
        {"pid": process.pid, "log": str(log_file)},
        f"warming {dataset}@{snapshot.id} in the background; log: {log_file}; "
        f"`kill {process.pid}` stops it, and the same command goes on",
        "" if ssd is None else f"`dlcmd {_check_command(dataset, ssd)}` shows its progress",
    )
    process.returncode = 0  # nobody waits for it
    return ExitCode.OK


def _check_command(dataset: str, ssd: SsdSettings) -> str:
    return shlex.join(["warmup", "--check", dataset, "--ssd", os.fspath(ssd.folder)])


def _log_file(dataset: str) -> Path:
    folder = Path(os.environ.get("DIESELFS_LOG_FOLDER") or state_folder())
    return folder / f"warmup-{dataset}.log"
