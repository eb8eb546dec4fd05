"""The fast path of a mount: C threads that answer the kernel from the snapshot and from chunks in memory, and one that
stores files into the page cache before they are read.

What it does, and how it gets between the kernel and pyfuse3, is in docs/decisions/0005-fast-path.md. It is optional: where the extension
is not built or cannot be loaded Python answers everything, more slowly.

This module must be imported before pyfuse3, which is why the package's `__init__` does it.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chunkstore.chunk_id import ChunkId
from dieselfs.fuse.statistics import FastPathStatistics, StoredAhead
from metadata.snapshot import Snapshot

if TYPE_CHECKING:  # these import pyfuse3
    from collections.abc import Callable

    from chunkstore.stores.object_store import Buffer
    from dieselfs.fuse.attributes import Owner
    from dieselfs.fuse.epochs import Epochs
    from dieselfs.fuse.file_reader import CachedSource

log = logging.getLogger(__name__)

THREADS: Final = 2
"""One more than one, so that a request does not wait behind a large reply."""
STORING_THREADS: Final = 2
"""While a group's files are stored its reader goes on by READs, so storing should be quick: docs/decisions/0005-fast-path.md."""
STOP_TIMEOUT_S: Final = 1.0
MAX_STORED_FILE_BYTES: Final = 512 << 10
"""Larger files are read in large requests, which cost little more than storing."""

# linux/fuse.h; the names are those of the handlers in Python.
_KINDS: Final = {
    1: "lookup",
    2: "forget",
    3: "getattr",
    14: "open",
    15: "read",
    22: "getxattr",
    25: "flush",
    27: "opendir",
    28: "readdir",
    36: "interrupt",
    39: "ioctl",
    42: "forget",
    44: "readdir",
}


def _load() -> tuple[Any, str | None]:
    """The extension in the global scope, where pyfuse3 finds its two functions before libfuse's; or why not."""
    if "pyfuse3" in sys.modules and "dieselfs.fuse._fast_path" not in sys.modules:
        return None, "pyfuse3 was imported before dieselfs.fuse"
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_GLOBAL)
    try:
        from dieselfs.fuse import _fast_path
    except ImportError as error:
        return None, f"the extension is not there: {error}"
    finally:
        sys.setdlopenflags(flags)
    return _fast_path, None


_extension, _why_not = _load()


class PlanProgress(NamedTuple):
    """The clock of a plan. Of files that the kernel has there are no READs: sentinels tell."""

    low: int
    """So many files at the order's beginning have been read: all up to the last sentinel that was READ after all those before it. Exact for
    one reader; of several, some may be behind by what lies between two sentinels and what they read at the same time."""
    high: int
    """One more than the greatest index that was READ."""
    off_plan: int
    """READs of files, counted at their beginning, that are not in the plan or before `low`."""


class FastPath:
    """The fast path of this process's one mount. Make it before the session; it takes the next one that is made.

    Without the extension, or if it is not `wanted`, it does nothing and says so in its statistics.
    """

    def __init__(self, wanted: bool = True) -> None:
        self.reason = _why_not if wanted else "not wanted: --plain"
        """Why it is not active; None if it is, or will be when it is started."""
        self._started = False
        self.listed_ahead = 0
        """Directories; counted by who lists them."""
        if self.reason is None:
            _extension.enable()

    @property
    def is_active(self) -> bool:
        return self._started

    def start(self, epochs: Epochs, source: CachedSource, owner: Owner, budget_bytes: int) -> bool:
        """Begin to answer, if pyfuse3 came to us for its requests; else say so in the log, and Python answers.

        `budget_bytes`: see `set_budget`; 0 stores nothing ahead.
        """
        if self.reason is None and not _extension.captured():
            self.reason = "pyfuse3 was bound to libfuse before the extension was loaded"
        if self.reason is not None:
            log.warning("no fast path: %s", self.reason)
            return False
        from dieselfs.fuse.attributes import FOREVER_S

        epochs.listen(self.show)
        source.observe(self)
        _extension.start(
            THREADS,
            STORING_THREADS,
            owner.uid,
            owner.gid,
            int(FOREVER_S),
            MAX_STORED_FILE_BYTES,
            budget_bytes,
        )
        self._started = True
        return True

    def stop(self, abort: Callable[[], None], timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the threads: before the session is closed, since they use its descriptor.

        `abort` ends the connection: needed only if a READ was left unanswered for which a thread that stores ahead waits; `timeout_s` is
        for such a thread to come back without it.
        """
        if self._started and not _extension.stop(timeout_s):
            log.warning(
                "a file that is stored ahead waits for a read that nobody answers: aborting"
            )
            abort()
            _extension.stop()

    def show(self, epoch: int, snapshot: Snapshot) -> None:
        """Answer for the snapshot's inodes, and for the root from it, from now on until the process ends."""
        header = snapshot.header
        counts = header.files, header.directories, header.chunks
        _extension.add_epoch(epoch, snapshot.columns.file, counts, dict(header.sections))

    # What node memory tells: `dieselfs.node_memory.chunk_observer.ChunkObserver`.

    def hold(self, chunk: ChunkId, payload: memoryview) -> None:
        """Answer READs from this chunk, and store its files ahead if one of them was READ."""
        _extension.hold(chunk.value, payload)

    def release(self, chunk: ChunkId) -> None:
        _extension.release(chunk.value)

    def consumed(self) -> list[ChunkId]:
        """Chunks that need not be held any more: what is left of them is in the page cache."""
        return [ChunkId(value) for value in _extension.consumed()]

    def set_budget(self, stored_bytes: int) -> None:
        """Bound what is stored and not known to be read."""
        _extension.set_budget(stored_bytes)

    # What a plan's follower does. Storing by plan: docs/decisions/0005-fast-path.md.

    def set_plan(self, epoch: int, order: Buffer, position_of: Buffer, sentinels: Buffer) -> None:
        """Files of that mount epoch will be read in this order: from now on its chunks are stored when `store` asks for it, not when
        they are READ. What was known of its files, and of those of the plan before, starts over; so does the clock.

        `order` holds u32 inodes of the snapshot; `position_of` a u32 for each file of it, its index in the order or 0xFFFFFFFF;
        `sentinels` a bit for each, bit inode % 8 of byte inode // 8 (`numpy.packbits(…, bitorder="little")`). The order's last file that
        is not empty is a sentinel too. They are kept, and must not be changed, until the next plan. `ValueError` if they do not fit.
        """
        _extension.set_plan(epoch, order, position_of, sentinels)

    def clear_plan(self) -> None:
        """Store without a plan again."""
        _extension.clear_plan()

    def store(self, chunk_id: Buffer) -> bool:
        """Begin to store a chunk in memory: its files that are in the plan, to come, not READ yet, no sentinels, and not above
        `MAX_STORED_FILE_BYTES`. Its sentinels are copied, so that they are answered when the chunk has left memory.

        False if it is not in memory, or was asked for before. No budget is applied.
        """
        return bool(_extension.store(chunk_id))

    def stored(self) -> list[tuple[bytes, bool]]:
        """Ids of chunks whose storing has ended, since this was last asked. Those with False lack files, mostly since the kernel does not
        know their inodes: `store` will do after a look-up (`dieselfs.fuse.kernel_pages`), and stores what is lacking only."""
        return list(_extension.stored())

    def drop_residue(self, chunk_id: Buffer) -> None:
        """Let go of the copies of a stored chunk's sentinels: all of them have been read."""
        _extension.drop_residue(chunk_id)

    def plan_progress(self) -> PlanProgress:
        """Where the readers of the plan are; zeros without one. Empties `plan_fd`."""
        return PlanProgress(*_extension.plan_progress())

    def advance(self, low: int) -> None:
        """The readers are past the first `low` files of the order, though they left sentinels out. It never goes back.

        `ValueError` beyond the end of the order, or without a plan.
        """
        _extension.advance(low)

    def plan_fd(self) -> int:
        """Readable when the clock has moved since `plan_progress` was asked, or a storing has ended that `stored` has not told. `OSError`."""
        return int(_extension.plan_fd())

    # What readers list: `dieselfs.fuse.lister`.

    def listings_fd(self) -> int:
        """Readable when listings of directories have begun that the kernel does not have."""
        return int(_extension.listings_fd())

    def begun_listings(self) -> list[int]:
        """Their inodes, since this was last asked. Some are missing if there were many."""
        return list(_extension.begun_listings())

    def ignore_pid(self, pid: int) -> None:
        """Leave out the listings of this process."""
        _extension.ignore_pid(pid)

    def statistics(self) -> FastPathStatistics:
        if not self._started:
            return FastPathStatistics(reason=self.reason)
        found = _extension.statistics()
        requests: dict[str, int] = {}
        for opcode, count in found["requests"].items():
            kind = _KINDS.get(opcode, f"opcode {opcode}")
            requests[kind] = requests.get(kind, 0) + count
        return FastPathStatistics(
            active=True,
            reason=None,
            threads=THREADS,
            requests=requests,
            node_memory_hits=found["reads_answered"],
            bytes_read=found["bytes_answered"],
            stored_ahead=StoredAhead(
                files=found["stored_files"],
                bytes=found["stored_bytes"],
                chunks=found["stored_chunks"],
                skipped_unknown_inodes=found["unknown_inodes"],
                failed=found["failed"],
                budget_bytes=found["budget_bytes"],
                outstanding_bytes=found["outstanding_bytes"],
                consumed_chunks=found["consumed_chunks"],
                read_without_request=found["read_without_request"],
                plan_files_stored=found["plan_files_stored"],
                reads_of_stored=found["reads_of_stored"],
                residue_bytes=found["residue_bytes"],
            ),
            listed_ahead=self.listed_ahead,
        )
