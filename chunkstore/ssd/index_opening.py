"""The opening of the SSD index: rebuild it from the region tables if it is missing or stale."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from chunkstore.ssd import index_environment
from chunkstore.ssd.region_files import RegionFiles
from chunkstore.ssd.release import fit
from chunkstore.ssd.segment_index import FULL, UNSOUND, Region, SegmentIndex
from chunkstore.ssd.segment_reader import Entry

log = logging.getLogger(__name__)


def open_index(
    files: RegionFiles, folder: Path, now: float, *, rebuild: bool = False
) -> SegmentIndex:
    """Open the index, and remove regions that the budget has no room for.

    `rebuild`: discard the existing index because it is damaged. One process at a time does this.
    Raises `OSError` and `lmdb.Error`.
    """
    with files.locks.exclusive():
        if rebuild:
            index_environment.discard(folder)
        index = _opened(folder, files.folder)
        try:
            tables = files.geometry.id.encode()
            if not index.is_view_of(tables):
                described = sorted(_described(files, now), key=lambda of: of[0].born)
                index.fill(tables, described)
            fit(files, index, index.regions(), files.count)
            files.remove_left_overs()
        except BaseException:
            index.close()
            raise
        return index


def _opened(folder: Path, tier: Path) -> SegmentIndex:
    try:
        return SegmentIndex(folder, tier)
    except UNSOUND as error:
        log.warning("the index %s is rebuilt from the region tables: %s", folder, error)
        index_environment.discard(folder)
        return SegmentIndex(folder, tier)


def _described(files: RegionFiles, now: float) -> Iterator[tuple[Region, list[Entry]]]:
    for number in files.present():
        table = files.table(number)
        if table is None or not table.entries:
            yield Region(number), []
            continue
        end = max(placed.offset + placed.length for _, placed in table.entries)
        count = len(table.entries)
        region = Region(number, FULL, table.generation, table.dataset, end, count, table.born, now)
        yield region, list(table.entries)
