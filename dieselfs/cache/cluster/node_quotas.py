"""The quotas of one cache node, in its SSD tier and in its memory.

The SSD tier keeps its quotas itself, by the file that is written here. Memory is for chunks that
were just read: a dataset with a quota has nothing there that the SSD has not, and when its quota
falls, memory forgets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chunkstore.ssd.allocated_quotas import AllocatedQuotas
from dieselfs.cache.cluster.dataset_chunks import NodeParts


class NodeQuotas:
    """The quotas of one node. One thread uses it."""

    def __init__(self, parts: NodeParts, tier: Path) -> None:
        """`tier` is the folder of the SSD tier. The quotas of an earlier process hold on."""
        self._parts, self._file = parts, AllocatedQuotas(tier)
        self._quotas: Mapping[bytes, int] = self._file.read()
        parts.limited = self._quotas.keys()

    def __contains__(self, dataset: bytes) -> bool:
        """Return whether a dataset has a quota here, by its id."""
        return dataset in self._quotas

    def held_bytes(self, dataset: bytes) -> int:
        """Return the bytes of a dataset on the SSD, as of the last second."""
        return self._parts.tier.held_bytes(dataset)

    def obey(self, quotas: Mapping[bytes, int]) -> None:
        """Keep to these bytes for each dataset, by its id, and to none for the others."""
        former, self._quotas = self._quotas, quotas
        self._parts.limited = quotas.keys()
        self._file.write(quotas)
        for dataset, size_bytes in quotas.items():
            is_lower = size_bytes < former.get(dataset, size_bytes + 1)
            if is_lower or self.held_bytes(dataset) > size_bytes:
                self._parts.memory.forget_dataset(dataset)
