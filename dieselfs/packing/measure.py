"""The forecast of a put, without the put: `dlcmd put --dry-run`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from dieselfs.packing.preflight import preflight
from dieselfs.packing.put_request import PackProgress, PackRequest, batches_of
from dieselfs.packing.source_tree import SkippedEntries


@dataclass(frozen=True, slots=True)
class Forecast:
    """The amount of data that a put would pack."""

    files: int
    bytes: int
    chunks: int
    """Chunks at the target size; larger files have one each."""


def forecast(request: PackRequest) -> Forecast:
    """Examine every source file (one stat each); raise `BadSource` as the put would."""
    preflight(request.sources, PackProgress())
    files = total = large = small = 0
    for size in _sizes(request):
        files += 1
        total += size
        if size >= request.target_bytes:
            large += 1
        else:
            small += size
    return Forecast(files, total, large + -(-small // request.target_bytes))


def _sizes(request: PackRequest) -> Iterator[int]:
    for batch in batches_of(request.sources, SkippedEntries()):  # the preflight has reported them
        for name in batch.names:
            yield os.stat(os.path.join(batch.disk_directory, name)).st_size
