"""A daemon that cannot be killed well: `python -m tests.mount.hanging_daemon MOUNTPOINT --stuck HOW [--guarded]`.

It mounts one file, `hang`, whose reads are never answered, and killing it does not close its connection. HOW is
`thread`: at the first read one of its threads stores into the page that waits for that read; or `process`: another
process holds the descriptor of /dev/fuse too. Says on stdout the process ids of that process and of the guardian (0: none),
then ends in good order when stdin does.
"""

import argparse
import errno
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyfuse3
import trio

from dieselfs.fuse.guardian import Guardian, start_guardian

FILE = 2
NAME = b"hang"


class Hanging(pyfuse3.Operations):
    def __init__(self, stuck_thread):
        super().__init__()
        self.stuck_thread = stuck_thread

    async def lookup(self, parent, name, context):
        if (parent, name) != (pyfuse3.ROOT_INODE, NAME):
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(FILE, context)

    async def getattr(self, inode, context):
        attributes = pyfuse3.EntryAttributes()
        attributes.st_ino = inode
        attributes.st_mode = 0o100444 if inode == FILE else 0o040555
        attributes.st_size = 4096
        attributes.entry_timeout = attributes.attr_timeout = 300
        return attributes

    async def open(self, inode, flags, context):
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, handle, offset, size):
        if self.stuck_thread:
            self.stuck_thread = False
            store = (handle, 0, b"x" * size)
            threading.Thread(target=pyfuse3.notify_store, args=store, daemon=True).start()
        await trio.sleep_forever()


def fuse_descriptor() -> int:
    links = {int(fd): f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")}
    [found] = [fd for fd, link in links.items() if is_fuse(link)]
    return found


def is_fuse(link: str) -> bool:
    try:
        return os.readlink(link).endswith("/fuse")
    except OSError:  # listdir's own
        return False


async def serve() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        await trio.lowlevel.wait_readable(sys.stdin)
        nursery.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--stuck", choices=["thread", "process"], default="process")
    parser.add_argument("--guarded", action="store_true")
    parser.add_argument("--abort", action="store_true", help="abort the connection at the end")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    operations = Hanging(chosen.stuck == "thread")
    pyfuse3.init(operations, os.fspath(chosen.mountpoint), {"fsname=hanging"})
    holder = None
    if chosen.stuck == "process":
        holder = subprocess.Popen(["sleep", "99"], pass_fds=[fuse_descriptor()], stdout=2)
    guardian = start_guardian(chosen.mountpoint) if chosen.guarded else Guardian()
    with guardian:
        print(holder.pid if holder else 0, guardian.pid or 0, flush=True)
        trio.run(serve)
        if chosen.abort:
            guardian.abort()
        pyfuse3.close(unmount=True)
    if holder:
        holder.kill()
        holder.wait()


if __name__ == "__main__":
    main()
