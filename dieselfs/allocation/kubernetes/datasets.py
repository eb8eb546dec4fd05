"""Sizes and ids of datasets for pods whose annotations do not say them: what the store has."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from chunkstore.errors import ChunkStoreError
from chunkstore.stores.object_store import ObjectStore
from dieselfs.allocation.kubernetes.pod_jobs import DatasetFacts
from dieselfs.errors import DieselFSError
from dieselfs.snapshots.stored_datasets import stored_dataset
from metadata.errors import MetadataError
from metadata.kv.key_value_store import KeyValueStore

log = logging.getLogger(__name__)

KNOWN_S: Final = 300.0
"""The time for which an answer counts; datasets grow."""
UNKNOWN_S: Final = 60.0
"""The time for which nothing is asked about a dataset that was not found."""


class StoredDatasets:
    """The datasets of a store. One thread uses it."""

    def __init__(
        self,
        open_places: Callable[[], tuple[ObjectStore, KeyValueStore]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_places` returns the store and the index; it is called for each answer."""
        self._open, self._clock = open_places, clock
        self._found: dict[str, tuple[float, DatasetFacts | None]] = {}
        self._fault = ""

    def __call__(self, name: str) -> DatasetFacts | None:
        """Return what the store says of a dataset; None if it has none, or does not answer."""
        until, found = self._found.get(name, (-1.0, None))
        if self._clock() >= until:
            found = self._ask(name) or found
            lasts_s = UNKNOWN_S if found is None else KNOWN_S
            self._found[name] = self._clock() + lasts_s, found
        return found

    def _ask(self, name: str) -> DatasetFacts | None:
        try:
            store, index = self._open()
            try:
                found = stored_dataset(store, index, name)
            finally:
                index.close()
        except (DieselFSError, ChunkStoreError, MetadataError, ValueError) as error:
            if not self._fault:
                log.warning("sizes of datasets count as their pods say: %s", error)
            self._fault = str(error)
            return None
        self._fault = ""
        if found is None or found.totals is None or not found.totals.bytes:
            return None
        return DatasetFacts(found.ref.id.hex(), found.totals.bytes)
