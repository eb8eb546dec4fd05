"""The attributes of a file as `stat` shows them, and their encoding for the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from dieselfs.fuse.requests import kernel_protocol
from dieselfs.fuse.requests.kernel_protocol import FOREVER_S

BLOCK_BYTES: Final = 4096
"""A good size of reads, as `stat` shows it: Python allocates a buffer of it at every open."""
DIRECTORY_BYTES: Final = 4096
MAX_NAME_BYTES: Final = 255
UNSUPPORTED_NAMESPACES: Final = (b"system.", b"security.")
"""Namespaces of extended attributes that get ENOTSUP.

After ENOTSUP `ls -l` asks no more; ENODATA made it ask for each of 64,000 files.
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """The user who owns everything in the mount; snapshots hold no owners."""

    uid: int
    gid: int


class NodeAttributes(NamedTuple):
    """One file or directory. The owner is the mount's."""

    node: int
    mode: int
    """The mode with its type bits."""
    size: int
    mtime_ns: int
    links: int = 1
    valid_s: int = FOREVER_S
    """The time for which the kernel may keep the attributes."""

    def encoded(self, owner: Owner) -> bytes:
        """Return the attributes as `struct fuse_attr`."""
        return kernel_protocol.attributes(
            *(self.node, self.mode, self.size, self.mtime_ns, owner.uid, owner.gid, self.links)
        )

    def entry(self, owner: Owner) -> bytes:
        """Return the answer to LOOKUP."""
        return kernel_protocol.entry(self.node, self.encoded(owner), self.valid_s)

    def reply(self, owner: Owner) -> bytes:
        """Return the answer to GETATTR."""
        return kernel_protocol.attributes_reply(self.encoded(owner), self.valid_s)
