"""The store as a client without node memory reads it.

Its reads go through the SSD tier, if there is one, and are paid for by its job, if it has one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from chunkstore.chunk_reader import ChunkReader
from dieselfs.cache.jobs.job_name import job_name
from dieselfs.config import TASK_VARIABLE, Config, load_config
from dieselfs.dataset.dataset import Dataset
from dieselfs.errors import NotYetSupported
from metadata.errors import MetadataError

if TYPE_CHECKING:
    from dieselfs.cache.ports.verified_source import VerifiedSource
    from dieselfs.cache.ssd.settings import SsdChoice

_SSD_OPENS_S: Final = 0.5
"""The wait for the SSD tier at the first read; a tier that works needs some milliseconds."""


def store_source(
    dataset: Dataset, ssd: SsdChoice, config: Config | None = None
) -> tuple[VerifiedSource, Callable[[], object]]:
    """Return the reader of a dataset's chunks, and what to call when nothing is read any more.

    Without `config` the environment names a tier and a job. The call waits briefly until the tier
    is open, so that its cached chunks are found. Raises `NotYetSupported` for a tier on another
    system than Linux; there a job's remote IO is not limited.
    """
    config = config or load_config()
    has_tier = not (ssd is None or (ssd == "configured" and config.ssd is None))
    has_job = sys.platform == "linux" and bool(
        job_name(None, config.job, os.environ.get(TASK_VARIABLE), os.environ)
    )
    if not has_tier and not has_job:
        return ChunkReader(dataset.store, dataset.ref), lambda: None
    if sys.platform != "linux":
        raise NotYetSupported(
            f"the SSD tier needs Linux, and this is {sys.platform}",
            "leave it out: ssd=None, and no DIESELFS_SSD",
        )
    from dieselfs.cache.cached_datasets import cached_datasets
    from dieselfs.cache.read_settings import ReadSettings
    from dieselfs.cache.read_stack import ReadStack, client_allocation
    from dieselfs.cache.ssd.settings import chosen_tier, shared_tier
    from dieselfs.snapshots.expected_files import ExpectedFiles

    tier = chosen_tier(ssd, config) if has_tier else None
    if tier is not None:
        shared_tier(tier).wait_until_open(_SSD_OPENS_S)
    settings = ReadSettings(
        ssd=tier,
        cached_datasets=cached_datasets(None, config),
        allocation=client_allocation(config, None, os.environ),
    )
    stack = ReadStack(dataset.ref, dataset.store, settings, ExpectedFiles())
    if stack.allocations is not None and has_job:
        with suppress(MetadataError):  # a snapshot is read without an index too
            stack.allocations.reads(dataset.namespace.state().bytes)
        stack.allocations.measures_fetches()
    return stack.source, stack.close
