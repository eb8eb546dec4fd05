"""The release of regions: drop them from the index and the SSD unless a process fills them."""

from __future__ import annotations

from collections.abc import Iterable

from chunkstore.ssd.region_files import RegionFiles
from chunkstore.ssd.segment_index import Region, SegmentIndex


def release(files: RegionFiles, index: SegmentIndex, region: Region) -> int:
    """Release a region if it is unchanged; return how many bytes of the SSD became free."""
    if not files.locks.take(region.number):
        return 0
    try:
        if not index.release(region.number, region.generation):
            return 0
        files.remove(region.number)
        return files.geometry.region_bytes
    finally:
        files.locks.release(region.number)


def remove(files: RegionFiles, index: SegmentIndex, number: int) -> bool:
    """Remove region `number` in any state, and its record, because the budget has no room for it.

    Return False if the region is being filled.
    """
    if not files.locks.take(number):
        return False
    try:
        index.release(number, remove=True)
        files.remove(number)
    finally:
        files.locks.release(number)
    return True


def fit(files: RegionFiles, index: SegmentIndex, regions: Iterable[Region], count: int) -> bool:
    """Keep `count` regions, the number that the budget has room for, and remove those beyond.

    Return False if some of them are being filled; those stay until they are no longer filled.
    """
    known = {region.number for region in regions}
    above = [number for number in known | set(files.present()) if number >= count]
    removed = [remove(files, index, number) for number in sorted(above)]
    index.add_free(count)
    return all(removed)
