"""The topic of a client's hello: the cache cluster, and one dataset of its store.

A node of a task names the task in this place.

    ring/NAME                           pings only
    ring/NAME/DATASET-ID/DATASET        chunks of a dataset; the id as 32 hexadecimal digits

So requests name only chunks, as everywhere on the wire, and both proofs of the handshake cover the
dataset as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.object_keys import check_dataset_name

_CLUSTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DATASET_ID: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class CacheClusterTopic:
    """A topic. As text it has at most 231 of the 255 bytes that a hello takes."""

    cache_cluster: str
    dataset: DatasetRef | None = None

    def __str__(self) -> str:
        if self.dataset is None:
            return f"ring/{self.cache_cluster}"
        return f"ring/{self.cache_cluster}/{self.dataset.id.hex()}/{self.dataset.name}"

    @classmethod
    def parse(cls, text: str) -> CacheClusterTopic | None:
        """Return the topic in a text; None for any other text.

        The name of the dataset becomes a part of object keys, so it is checked as such.
        """
        match text.split("/"):
            case ["ring", cache_cluster] if is_cluster_name(cache_cluster):
                return cls(cache_cluster)
            case ["ring", cache_cluster, id, name] if is_cluster_name(
                cache_cluster
            ) and _DATASET_ID.fullmatch(id):
                try:
                    check_dataset_name(name)
                except ValueError:
                    return None
                return cls(cache_cluster, DatasetRef(name, bytes.fromhex(id)))
        return None


def is_cluster_name(text: str) -> bool:
    """Return whether the text is a valid name of a cache cluster."""
    return _CLUSTER_NAME.fullmatch(text) is not None
