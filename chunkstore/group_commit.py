"""Group commit: many durable chunks share one commit object, closed by bytes or by time.

A thread collects durable chunks, appends the commit, and then calls `publish` to update the index.
A file counts as acknowledged when its commit object is durable; the index learns of the file only
then. docs/chunk-format.md defines the commit object.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import Commit, CommitLog

DEFAULT_GROUP_BYTES = 64 << 20
"""Payload bytes that close a group."""
DEFAULT_GROUP_DELAY_S = 1.0
"""Seconds after which a group is closed, counted from its first chunk."""


@dataclass(frozen=True, slots=True)
class DurableChunk:
    """A chunk that is in the store but not committed yet."""

    ref: ChunkRef
    head: bytes


class GroupCommit:
    """A queue that turns durable chunks into commits.

    Any thread may call `add`. The next call raises the first failure. `publish(commit, heads)` runs
    after each commit, in order, on the committing thread. `after` is a generation known to exist.

    While `hold` is set, nothing is committed (put uses this to validate all input first). The
    chunks added meanwhile are kept without a bound, but only their heads take memory. After
    `release` they are committed in groups of the usual size.
    """

    def __init__(
        self,
        log: CommitLog,
        after: int,
        publish: Callable[[Commit, Sequence[bytes]], object],
        *,
        group_bytes: int = DEFAULT_GROUP_BYTES,
        group_delay_s: float = DEFAULT_GROUP_DELAY_S,
        hold: bool = False,
    ) -> None:
        self._log = log
        self._generation = after
        self._publish = publish
        self._group_bytes = group_bytes
        self._group_delay_s = group_delay_s
        self._change = threading.Condition()
        self._waiting: deque[DurableChunk] = deque()
        self._waiting_bytes = 0
        self._oldest = 0.0
        # Chunks are counted in the order of `add`, so that a flush waits for the chunks before it
        # and for no others.
        self._added = 0
        self._published = 0
        self._flush_up_to = 0
        self._held = hold
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="commit", daemon=True)
        self._thread.start()

    @property
    def generation(self) -> int:
        """The last generation that this object committed, or `after` if it committed none."""
        return self._generation

    def add(self, chunk: DurableChunk) -> None:
        """Add a chunk that is durable in the store.

        The call blocks while four groups are waiting, unless the group commit is on hold.
        """
        with self._change:
            self._change.wait_for(
                lambda: self._held or self._ended or self._waiting_bytes < 4 * self._group_bytes
            )
            self._raise_if_ended()
            if not self._waiting:
                self._oldest = time.monotonic()
            self._waiting.append(chunk)
            self._waiting_bytes += chunk.ref.payload_bytes
            self._added += 1
            self._change.notify_all()

    def release(self) -> None:
        """End the `hold` that was set at the start."""
        with self._change:
            self._held = False
            self._change.notify_all()

    def flush(self) -> int:
        """Wait until all chunks added before are committed and published; return the generation.

        While the group commit is on hold, the call returns only after `release` (from any thread).
        """
        with self._change:
            wanted = self._added
            self._flush_up_to = max(self._flush_up_to, wanted)
            self._change.notify_all()
            self._change.wait_for(lambda: self._ended or self._published >= wanted)
            if self._published < wanted:
                self._raise_if_ended()
            self._raise_failure()
            return self._generation

    def close(self) -> None:
        """Stop the thread. May be repeated.

        Chunks that were not flushed stay uncommitted and therefore invisible.
        """
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    def __enter__(self) -> GroupCommit:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self) -> None:
        while group := self._next_group():
            try:
                self._log.check_late(chunk.ref for chunk in group)
                commit = self._log.append(self._generation, [chunk.ref for chunk in group])
                self._generation = commit.generation
                self._publish(commit, [chunk.head for chunk in group])
            except BaseException as error:  # raised in the thread that adds or flushes
                with self._change:
                    self._failure = error
                    self._change.notify_all()
                return
            with self._change:
                self._published += len(group)
                self._change.notify_all()

    def _next_group(self) -> list[DurableChunk]:
        """Return the next chunks to commit together, or an empty list when closed.

        The group ends with the chunk that makes it reach `group_bytes`.
        """
        with self._change:
            while not (self._closed or self._due()):
                self._change.wait(self._patience())
            if self._closed:
                return []
            group: list[DurableChunk] = []
            group_bytes = 0
            while self._waiting and group_bytes < self._group_bytes:
                group.append(self._waiting.popleft())
                group_bytes += group[-1].ref.payload_bytes
            self._waiting_bytes -= group_bytes
            self._change.notify_all()
            return group

    def _due(self) -> bool:
        if not self._waiting or self._held:
            return False
        full = self._waiting_bytes >= self._group_bytes
        flushing = self._published < self._flush_up_to
        return full or flushing or time.monotonic() - self._oldest >= self._group_delay_s

    def _patience(self) -> float | None:
        if not self._waiting or self._held:
            return None
        return max(0.0, self._oldest + self._group_delay_s - time.monotonic())

    @property
    def _ended(self) -> bool:
        return self._closed or self._failure is not None

    def _raise_if_ended(self) -> None:
        self._raise_failure()
        if self._closed:
            raise RuntimeError("the group commit is closed")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
