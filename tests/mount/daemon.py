"""A mount's daemon for tests: `python -m tests.mount.daemon SNAPSHOT STORE MOUNTPOINT [options]`.

It is a supervisor and its servers, as `dlcmd mount --foreground` is. The servers' source fails as
the file given by --faults says at the time of each read: empty for no fault, else corrupt,
unavailable, missing, bug, short, stuck, or held as long as the file says so; or as what is fetched
into its memory does: store-stuck.
On SIGUSR1 the snapshot is taken whose path is in the file given by --next, if there is one. On
SIGUSR2 the same program starts again, with --exec in another Python, as a user's does. The file
given by --startup says what becomes of a server that starts: `fails`, `killed`, `killed-once` or
`stopped`, or `supervisor-stopped`; empty for nothing.
"""

import argparse
import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent
from chunkstore.errors import Corrupt, NotFound, Unavailable
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.task.node_memory import CLOSE_S, NodeMemory
from dieselfs.errors import DieselFSError
from dieselfs.fuse.fronts.front_parts import MountOptions
from dieselfs.fuse.mount import NOTHING_OBSERVED, run_mount
from dieselfs.fuse.mounts import erofs_mounts, front_choice
from dieselfs.fuse.mounts.mountpoint import check_mountable
from dieselfs.fuse.supervision.handover import Handed, Role
from dieselfs.fuse.supervision.shutdown import Shutdown
from dieselfs.fuse.supervision.supervisor import UPGRADE_VARIABLE, Supervisor
from dieselfs.shuffle.order import parse_parameters
from metadata import kernel_image_file
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot
from tests.eventually import eventually

ERRORS = {"corrupt": Corrupt, "unavailable": Unavailable, "missing": NotFound}


class HangingSource:
    """A `ChunkSource` over another that does not answer when told so."""

    def __init__(self, source: ChunkSource, faults: Path) -> None:
        self._source = source
        self._faults = faults

    def payload(self, chunk: ChunkRef) -> memoryview:
        self._hang()
        return self._source.payload(chunk)

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        self._hang()
        return self._source.read(file, start, length)

    def _hang(self) -> None:
        if self._faults.read_text() == "store-stuck":
            threading.Event().wait()


class FaultySource:
    """A `CachedSource` over another that fails on demand, also where the other has the bytes."""

    def __init__(self, source: NodeMemory, faults: Path) -> None:
        self._source = source
        self._faults = faults

    def peek(self, file: FileExtent, start: int, length: int) -> memoryview | None:
        fault = self._faults.read_text()
        if fault == "peek-bug":
            raise ZeroDivisionError("a bug in peek")
        return None if fault else self._source.peek(file, start, length)

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        return self._read(self._source.read, file, start, length)

    def read_aside(self, file: FileExtent, start: int, length: int) -> memoryview:
        return self._read(self._source.read_aside, file, start, length)

    def _read(
        self,
        read: Callable[[FileExtent, int, int], memoryview],
        file: FileExtent,
        start: int,
        length: int,
    ) -> memoryview:
        fault = self._faults.read_text()
        if fault in ERRORS:
            raise ERRORS[fault](f"{fault}, because the test says so")
        if fault == "bug":
            raise ZeroDivisionError("a bug in read")
        if fault == "stuck":
            threading.Event().wait()
        if fault == "held":
            eventually(lambda: self._faults.read_text() != "held", "the end of the fault")
        if fault == "short":
            return memoryview(bytes(length // 2))
        return read(file, start, length)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--faults", type=Path)
    parser.add_argument("--startup", type=Path)
    parser.add_argument("--next", type=Path)
    parser.add_argument("--cache-bytes", type=int, default=256 << 20)
    parser.add_argument("--eviction", default="lru")
    parser.add_argument("--task", default=f"test-{os.getpid()}", help="by default its own")
    parser.add_argument("--shuffle", type=parse_parameters)
    parser.add_argument("--allow-other", action="store_true")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--nonempty", action="store_true")
    parser.add_argument("--front", default="auto")
    parser.add_argument("--blob-cache", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--broken", default="", help="see `break_fronts`")
    parser.add_argument("--prefill-bytes", type=int)
    parser.add_argument("--no-foreign-plans", action="store_true")
    parser.add_argument("--exec", action="store_true", dest="does_exec")
    return parser.parse_args()


def options_of(chosen: argparse.Namespace, task: TaskFolder) -> MountOptions:
    return MountOptions(
        chosen.mountpoint,
        task_folder=task.path,
        memory_bytes=chosen.cache_bytes,
        shuffle=chosen.shuffle,
        store_url=f"file://user:secret@host{chosen.store}",
        allow_other=chosen.allow_other,
        uid=chosen.uid,
        gid=chosen.gid,
        nonempty=chosen.nonempty,
        front=chosen.front,
        blob_cache=chosen.blob_cache,
        threads=chosen.threads,
        prefill_bytes=chosen.prefill_bytes,
        foreign_plans=not chosen.no_foreign_plans,
    )


def snapshot_for(chosen: argparse.Namespace, handed: Handed) -> Snapshot | None:
    """What a server is to serve; None if it is to show another one and there is none."""
    shown = Snapshot.open(handed.state.get("snapshot") or chosen.snapshot)
    if handed.role is not Role.REFRESH:
        return shown
    with shown:
        try:
            if chosen.next is None or not chosen.next.exists():
                logging.info("snapshot %s is the newest", shown.id)
                handed.refused(None)
                return None
            path = chosen.next.read_text()
            Snapshot.verify(Path(path))
            found = Snapshot.open(path)
            if found.dataset != shown.dataset:
                raise SnapshotRefused(f"snapshot {found.id} is of another dataset")
        except (OSError, SnapshotRefused) as error:
            logging.error("not refreshed: %s", error)
            handed.refused(str(error))
            return None
    return found


def refuse(number: int) -> Callable[..., Any]:
    def refused(*arguments: object, **keywords: object) -> Any:
        raise OSError(number, os.strerror(number))

    return refused


def break_fronts(what: str) -> None:
    """Let this process meet what other machines lack."""
    if what == "no-erofs":
        front_choice._knows_erofs = front_choice._load_erofs = lambda: False
    elif what == "no-capability":
        front_choice._has_sys_admin = lambda: False
    elif what in ("old-kernel", "older-kernel"):
        version = (5, 19, 0) if what == "old-kernel" else (5, 4, 0)
        front_choice.kernel_version = lambda release: version
    elif what == "no-files":
        erofs_mounts.mount_image = refuse(errno.ENOTBLK)
    elif what == "refused":
        erofs_mounts.mount_image = erofs_mounts.mount_image_over_loop = refuse(errno.EPERM)
    elif what == "disk-full":
        kernel_image_file.write_kernel_image = refuse(errno.ENOSPC)
    elif what == "not-shown":
        shown = erofs_mounts.show

        def show(mount: int, control: int | None, *rest: Any) -> None:
            if control is not None:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            shown(mount, control, *rest)

        erofs_mounts.show = show


def serve(chosen: argparse.Namespace, handed: Handed) -> int:
    """One server, in a process of its own."""
    break_fronts(chosen.broken)
    startup = chosen.startup.read_text() if chosen.startup else ""
    if startup == "killed-once":
        chosen.startup.write_text("")
    if startup in ("killed", "killed-once"):
        os.kill(os.getpid(), signal.SIGKILL)
    if startup == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if startup == "supervisor-stopped":
        os.kill(os.getppid(), signal.SIGSTOP)
    try:
        if startup == "fails":
            raise DieselFSError("this server cannot start, because the test says so")
        run_server(chosen, handed)
    except DieselFSError as error:
        print(f"dlcmd: {error}", file=sys.stderr)
        return 1
    return 0


def run_server(chosen: argparse.Namespace, handed: Handed) -> None:
    snapshot = snapshot_for(chosen, handed)
    if snapshot is None:
        return
    task = TaskFolder.at(chosen.task)
    with snapshot:
        reader: ChunkSource = ChunkReader(LocalDirectory(chosen.store), snapshot.dataset)
        if chosen.faults:
            reader = HangingSource(reader, chosen.faults)
        memory = NodeMemory.open(
            task, reader, budget_bytes=chosen.cache_bytes, policy=chosen.eviction, lead=True
        )
        source: Any = FaultySource(memory, chosen.faults) if chosen.faults else memory
        ending = Shutdown(forced=True)
        try:
            run_mount(snapshot, source, options_of(chosen, task), handed, NOTHING_OBSERVED, ending)
        finally:
            memory.close(ending.left_s(CLOSE_S))


class RepeatingSupervisor(Supervisor):
    """A supervisor whose upgrade starts the same program again without another Python, which takes
    0.8 s of CPU time. This object stays as it is, so that its descriptors stay open."""

    def _can_start_installed_version(self) -> bool:
        return True

    def _execute(self) -> NoReturn:
        sys.exit(main())


def main() -> int:
    chosen = parsed()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    if UPGRADE_VARIABLE not in os.environ:
        try:
            check_mountable(chosen.mountpoint, chosen.nonempty)
        except DieselFSError as error:
            print(f"dlcmd: {error}", file=sys.stderr)
            return 1
    program = [sys.executable, "-m", "tests.mount.daemon", *sys.argv[1:]]
    supervisor = Supervisor if chosen.does_exec else RepeatingSupervisor
    return supervisor(partial(serve, chosen), program).run()


if __name__ == "__main__":
    sys.exit(main())
