"""The store as a client without node memory reads it: through the SSD tier, if there is one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from chunkstore.chunk_reader import ChunkReader
from dieselfs.config import Config, load_config
from dieselfs.dataset.dataset import Dataset
from dieselfs.errors import NotYetSupported

if TYPE_CHECKING:
    from dieselfs.cache.ports.verified_source import VerifiedSource
    from dieselfs.cache.ssd.settings import SsdChoice

_SSD_OPENS_S: Final = 0.5
"""The wait for the SSD tier at the first read; a tier that works needs some milliseconds."""


def store_source(dataset: Dataset, ssd: SsdChoice, config: Config | None = None) -> VerifiedSource:
    """Return the reader of a dataset's chunks. Without `config` the environment names a tier.

    The call waits briefly until the tier is open, so that its cached chunks are found. Raises
    `NotYetSupported` for a tier on another system than Linux.
    """
    if ssd is None or (ssd == "configured" and (config or load_config()).ssd is None):
        return ChunkReader(dataset.store, dataset.ref)
    if sys.platform != "linux":
        raise NotYetSupported(
            f"the SSD tier needs Linux, and this is {sys.platform}",
            "leave it out: ssd=None, and no DIESELFS_SSD",
        )
    from dieselfs.cache.cached_datasets import cached_datasets
    from dieselfs.cache.read_settings import ReadSettings
    from dieselfs.cache.read_stack import ReadStack
    from dieselfs.cache.ssd.settings import chosen_tier, shared_tier
    from dieselfs.snapshots.expected_files import ExpectedFiles

    tier = chosen_tier(ssd, config)
    if tier is not None:
        shared_tier(tier).wait_until_open(_SSD_OPENS_S)
    eligible = cached_datasets(None, config or load_config())
    settings = ReadSettings(ssd=tier, cached_datasets=eligible)
    return ReadStack(dataset.ref, dataset.store, settings, ExpectedFiles()).source
