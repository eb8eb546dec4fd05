"""Regions that are let go: forgotten by the index and removed from the SSD, unless somebody fills them."""

from __future__ import annotations

from collections.abc import Iterable

from chunkstore.ssd.region_files import RegionFiles
from chunkstore.ssd.segment_index import Region, SegmentIndex


def let_go(files: RegionFiles, index: SegmentIndex, region: Region) -> int:
    """If it is still what it was; how many bytes of the SSD are free now."""
    if not files.lock(region.number):
        return 0
    try:
        if not index.release(region.number, region.generation):
            return 0
        files.remove(region.number)
        return files.geometry.region_bytes
    finally:
        files.unlock(region.number)


def remove(files: RegionFiles, index: SegmentIndex, number: int) -> bool:
    """Whatever it is by now, and its record too: the budget has no room for it. False if somebody fills it."""
    if not files.lock(number):
        return False
    try:
        index.release(number, remove=True)
        files.remove(number)
    finally:
        files.unlock(number)
    return True


def fit(files: RegionFiles, index: SegmentIndex, regions: Iterable[Region], count: int) -> bool:
    """As many regions as the budget has room for; False if some that are above it are being filled, and stay until they are not."""
    known = {region.number for region in regions}
    above = [number for number in known | set(files.present()) if number >= count]
    gone = [remove(files, index, number) for number in sorted(above)]
    index.add_free(count)
    return all(gone)
