"""A store that shows the reads of chunks to a trace recorder, where no SSD tier does."""

from __future__ import annotations

from collections.abc import Callable

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.object_keys import chunk_of_key
from chunkstore.ssd.admission import AdmitAll
from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policy_choice import PolicyChoice
from chunkstore.ssd.policy_events import Observer
from chunkstore.ssd.policy_runner import PolicyRunner
from chunkstore.ssd.reader_tags import ChunkRead, ReaderTags, dataset_tags, decided_at_once
from chunkstore.stores.object_store import Buffer, KeepsCopies, ObjectReader

_USUAL_BYTES = 4 << 20


class RecordingStore:
    """A chunk reader's view of a store. Implements `ObjectReader` and `KeepsCopies`; thread-safe.

    It asks a policy runner without a policy, so a trace is the same as one of an SSD tier that
    never hits.
    """

    def __init__(
        self,
        store: ObjectReader,
        dataset: DatasetRef,
        observer: Observer,
        size_of: Callable[[ChunkId], int | None],
        tags: ReaderTags | None = None,
    ) -> None:
        self._store, self._dataset, self._size_of = store, dataset, size_of
        self._tags = tags or dataset_tags(dataset)
        self.runner = PolicyRunner(
            PolicyChoice(), AdmitAll(), names={dataset.id: dataset.name}, observe=observer
        )

    def get(self, key: str) -> Buffer:
        """See `ObjectReader`."""
        self._note(key, 0, None)
        return self._store.get(key)

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        """See `ObjectReader`."""
        self._note(key, offset, length)
        return self._store.get_range(key, offset, length)

    def forget(self, key: str) -> bool:
        """See `KeepsCopies`."""
        return isinstance(self._store, KeepsCopies) and self._store.forget(key)

    def publish(self, specification: JobSpecification) -> None:
        """Record what a reader of a job will read, as `TierPolicies.publish` does."""
        self.runner.publish(specification)

    def when_policy(self, call: Callable[[], object]) -> None:
        """Call `call` now: there is always a runner."""
        call()

    def _note(self, key: str, offset: int, length: int | None) -> None:
        chunk = chunk_of_key(self._dataset.name, key)
        if chunk is None or not self._tags.may_keep:
            return
        size = self._size_of(chunk)
        first, most = decided_at_once(offset)
        part = min(most, _USUAL_BYTES if size is None else max(1, size - first))
        read = ChunkRead(
            self._tags,
            self._dataset.id,
            chunk.value,
            offset,
            part if length is None else length,
            part,
        )
        self.runner.asked(read, hit=False)
