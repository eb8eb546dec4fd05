"""The cache policies of one SSD tier: which are chosen, and what they learn of its reads.

A tier without a policy, shadow policy or observer has no `PolicyRunner`, and loads no policy. A
read then costs a comparison more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from chunkstore.chunk_format import DatasetRef
from chunkstore.ssd.admission import Admission
from chunkstore.ssd.policy_choice import PolicyChoice, PolicyFile
from chunkstore.ssd.policy_statistics import PoliciesStatistics, policies_statistics
from chunkstore.ssd.reader_tags import ChunkRead, ReaderTags, dataset_tags, decided_at_once
from chunkstore.ssd.segments import USUAL_CHUNK_BYTES

if TYPE_CHECKING:
    from chunkstore.ssd.policies.job_specifications import JobSpecification
    from chunkstore.ssd.policy_events import Observer
    from chunkstore.ssd.policy_runner import PolicyRunner
    from chunkstore.ssd.segment_store import SegmentStore

log = logging.getLogger(__name__)

T = TypeVar("T")
_RANK_TIMEOUT_S: Final = 30.0


class Call(Protocol):
    """A function that accesses the SSD and returns the result: `SsdTier.call`."""

    def __call__(
        self, access: Callable[[], T], length: int, timeout_s: float | None = None
    ) -> T | None:
        """Return the result; None if the SSD fails or is late."""
        ...


class TierPolicies:
    """The policies of a tier's folder in one process. Thread-safe.

    The choice in the folder's `PolicyFile` goes before the one that the process has configured.
    """

    def __init__(self, folder: Path, admission: Admission, choice: PolicyChoice) -> None:
        """`admission` decides without a policy. The owner calls `renew` before the first use."""
        self._folder, self.admission, self._configured = folder, admission, choice
        self.names: dict[bytes, str] = {}
        """The names of registered datasets, by id."""
        self.runner: PolicyRunner | None = None
        """The policy runner; None while there is no policy, shadow policy or observer."""

    def renew(self) -> None:
        """Start with new policies and zero counts; called at first and in a forked child."""
        self.runner = None
        self._observe: Observer | None = None
        self._file = PolicyFile(self._folder)
        self._on_policy: list[Callable[[], object]] = []
        self._default_tags: dict[bytes, ReaderTags] = {}
        self.choose(self._configured)

    def choose(self, choice: PolicyChoice) -> None:
        """Obey a choice of cache policies from now on."""
        self._chosen, runner = choice, self.runner
        if choice.is_plain and self._observe is None:
            self.runner = None
        elif runner is None:
            from chunkstore.ssd.policy_runner import PolicyRunner

            self.runner = PolicyRunner(
                choice, self.admission, names=self.names, observe=self._observe
            )
        else:
            runner.observe = self._observe
            runner.change(choice)
        if self.runner is not None:
            for call in self._on_policy:
                call()

    def observe(self, observer: Observer | None) -> None:
        """Show requests, decisions and published specifications to an observer, or to none."""
        self._observe = observer
        self.choose(self._chosen)

    def when_policy(self, call: Callable[[], object]) -> None:
        """Call `call` now if there is a policy runner, and whenever a policy is chosen later.

        It must return quickly and never raise; the tier's thread may call it.
        """
        self._on_policy.append(call)
        if self.runner is not None:
            call()

    def publish(self, specification: JobSpecification) -> None:
        """Take note of what a reader of a job will read; without a policy, do nothing.

        Readers publish again and again, within their lease, from any thread. It costs nothing.
        """
        runner = self.runner
        if runner is not None:
            runner.publish(specification)

    def statistics(self) -> PoliciesStatistics | None:
        """Return what the policies have decided; None without one."""
        return None if self.runner is None else policies_statistics(self.runner)

    # The tier tells the calls below of its reads. `size` is that of the object, if it is known.

    def read(
        self,
        dataset: bytes,
        chunk: bytes,
        start: int,
        length: int | None,
        tags: ReaderTags | None,
        size: int | None,
        *,
        hit: bool,
        told: bool,
    ) -> None:
        """Take note of a read of the SSD. `told`: the policy knows of the request (`asked`)."""
        runner = self.runner
        if runner is not None and (tags is None or tags.may_keep):
            read = self._read(dataset, chunk, start, length, tags, size)
            (runner.looked_up if told else runner.requested)(read, hit=hit)

    def asked(
        self, dataset: bytes, chunk: bytes, start: int, length: int, tags: ReaderTags, size: int
    ) -> None:
        """Take note of a request that memory in front of the tier may answer.

        The SSD is then read, if at all, with `told`: one read may be for several requests.
        """
        runner = self.runner
        if runner is not None and tags.may_keep:
            runner.asked(self._read(dataset, chunk, start, length, tags, size), hit=False)

    def admits(
        self, dataset: bytes, chunk: bytes, start: int, tags: ReaderTags | None, size: int | None
    ) -> bool:
        """Return whether to cache what a read has missed; called after `read`."""
        if tags is not None and not tags.may_keep:
            return False
        runner = self.runner
        if runner is None:
            return self.admission.admits(dataset, chunk)
        return runner.admits(self._read(dataset, chunk, start, None, tags, size))

    def written(self, dataset: bytes, chunk: bytes, start: int, length: int) -> None:
        """Take note of bytes that the SSD was given to write."""
        runner = self.runner
        if runner is not None:
            runner.written(dataset, chunk, start, length)

    def filled(self, dataset: bytes, chunk: bytes, length: int, tags: ReaderTags | None) -> None:
        """Take note of bytes that were read from the store for the SSD alone."""
        runner = self.runner
        if runner is not None:
            runner.filled(self._read(dataset, chunk, 0, length, tags, None), length)

    def _read(
        self,
        dataset: bytes,
        chunk: bytes,
        start: int,
        length: int | None,
        tags: ReaderTags | None,
        size: int | None,
    ) -> ChunkRead:
        first, most = decided_at_once(start)
        of_part = min(most, USUAL_CHUNK_BYTES if size is None else max(1, size - first))
        if tags is None:
            tags = self._default_tags.get(dataset)
            if tags is None:
                name = self.names.get(dataset) or dataset.hex()
                tags = self._default_tags[dataset] = dataset_tags(DatasetRef(name, dataset))
        return ChunkRead(
            tags, dataset, chunk, start, of_part if length is None else length, of_part
        )

    # The tier's background thread calls the methods below.

    def obey_file(self, call: Call) -> None:
        """Obey the choice in the folder, or else the one that was configured."""
        # A list tells the answer None from a call that failed.
        found = call(lambda: [self._file.read()], 0)
        choice = self._chosen if found is None else found[0] or self._configured
        if choice != self._chosen:
            self.choose(choice)
            log.info("the SSD tier %s has the cache policy %s", self._folder, choice.policy)

    def learn_budget(self, segments: SegmentStore, call: Call) -> None:
        """Tell the policies the size of the tier."""
        runner = self.runner
        if runner is not None:
            runner.budget_bytes = call(lambda: segments.budget_bytes, 0) or runner.budget_bytes

    def tend(self, segments: SegmentStore | None, call: Call) -> None:
        """Refresh the policies if that is due. `segments` is None while the tier is away."""
        runner = self.runner
        if runner is None or not (runner.tend() or runner.has_stale_ranks) or segments is None:
            return
        call(lambda: runner.rank(segments.ranked), 0, _RANK_TIMEOUT_S)
        if runner.choice.write_budget is not None:
            call(lambda: runner.node_wrote(_written_bytes(segments)), 0, _RANK_TIMEOUT_S)


def _written_bytes(segments: SegmentStore) -> int:
    """Return what the acting policies of all processes have written."""
    decided = segments.decisions().items()
    return sum(counts.written_bytes for by, counts in decided if by.role == "acting")
