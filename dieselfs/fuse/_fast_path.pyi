"""The C extension behind `dieselfs.fuse.fast_path`. One process has one mount, so there is one state."""

from collections.abc import Mapping

from typing_extensions import Buffer

def enable() -> None:
    """Take the requests of the FUSE session that is made next."""

def captured() -> bool:
    """Whether a session was made since, and asked this module for its descriptor."""

def add_epoch(
    number: int,
    map: Buffer,
    counts: tuple[int, int, int],
    sections: Mapping[str, tuple[int, int]],
) -> None:
    """Show a snapshot from now on; `counts` are its files, directories and chunks. The map is kept for good.

    `ValueError` if a section does not fit the counts or a greater epoch was added before, `MemoryError`.
    """

def hold(chunk_id: Buffer, payload: Buffer) -> None:
    """Answer from this chunk until it is released."""

def release(chunk_id: Buffer) -> None:
    """Forget a chunk; nothing happens if it is not held. Its memory is let go of when no thread uses it any more."""

def consumed() -> list[bytes]:
    """Ids of chunks of which all files have been read, or lie in the page cache, since this was last asked."""

def set_plan(epoch: int, order: Buffer, position_of: Buffer, sentinels: Buffer) -> None:
    """Store in that epoch by a plan, and in no other, until the next one is set. Everything that is known of its files and chunks, and
    of those of the plan before, starts over.

    `order`: u32 inodes in reading order; `position_of`: u32, each file's index in it, 0xFFFFFFFF where it is not in it; `sentinels`: a bit
    a file, bit inode % 8 of byte inode // 8. The buffers are kept until the next plan, and must not change. `ValueError` if they do not fit
    the epoch or each other. 20 ns a file, without the GIL.
    """

def clear_plan() -> None:
    """Store by READs again. Everything that is known of the plan's epoch starts over."""

def store(chunk_id: Buffer) -> bool:
    """Queue a held chunk of the plan's epoch for storing. False without a plan, or if it is not held, is queued, or was stored."""

def stored() -> list[tuple[bytes, bool]]:
    """Chunks whose storing has ended since this was last asked, and whether all of their files were stored that should be."""

def drop_residue(chunk_id: Buffer) -> None:
    """Forget the copies of a stored chunk's sentinels; nothing happens if there are none."""

def plan_progress() -> tuple[int, int, int]:
    """(low, high, off plan); zeros without a plan. Empties `plan_fd`, but for what `stored` has not told yet."""

def advance(low: int) -> None:
    """Move the clock on. `ValueError` beyond the order's end, or without a plan."""

def plan_fd() -> int:
    """A descriptor, not to be closed, that is readable when the clock has moved or a storing by plan has ended. `OSError`."""

def listings_fd() -> int:
    """A descriptor, not to be closed, that is readable when listings have begun. They are noted from the first call on. `OSError`."""

def begun_listings() -> list[int]:
    """Inodes of directories whose listing has begun since this was last asked; the newest are left out if there were many."""

def ignore_pid(pid: int) -> None:
    """Do not note the listings that this process makes; one process at a time."""

def start(
    threads: int,
    storing_threads: int,
    uid: int,
    gid: int,
    timeout_s: int,
    max_file_bytes: int,
    budget_bytes: int,
) -> None:
    """Start the threads that answer and those that store ahead. An epoch must have been added. `OSError`."""

def stop(timeout_s: float = 2.0) -> bool:
    """End the threads; what is being answered is answered. False, after so long, if a thread that stores can't end since it waits
    for a READ that nobody answers: abort the connection, and call this again."""

def set_budget(bytes: int) -> None:
    """For what is stored and not known to be read. Also drops from it what nobody has read on for a minute."""

def statistics() -> dict[str, object]: ...
