"""Files lie in the blobs in inode order at block boundaries, and every look-up finds what a walk
over all files finds."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.blob_layout import BLOCK_BYTES, DEVICE_BLOCKS, BlobLayout
from metadata.errors import KernelImageTooLarge
from metadata.snapshot import Snapshot
from tests.metadata.snapshot_trees import PETS, Tree, build

block_counts = st.lists(st.integers(0, 6), max_size=40)


def layout_of(lengths: list[int], device_blocks: int = DEVICE_BLOCKS) -> BlobLayout:
    return BlobLayout(np.array(lengths, np.uint64), device_blocks)


def places(blocks: list[int], device_blocks: int) -> list[tuple[int, int]]:
    """(device, first block) of each file, one file after the other."""
    found, device, block = [], 0, 0
    for count in blocks:
        if block + count > device_blocks:
            device, block = device + 1, 0
        found.append((device, block))
        block += count
    return found


def test_files_start_at_blocks_in_inode_order() -> None:
    layout = layout_of([1, 0, 4096, 4097, 0, 10])
    assert layout.first_block.tolist() == [0, 1, 1, 2, 4, 4, 5]
    assert layout.device_count == 1
    assert layout.device_bytes(0) == 5 * BLOCK_BYTES
    assert [layout.start_byte(inode) // 4096 for inode in range(6)] == [0, 1, 1, 2, 4, 4]
    assert [layout.file_at(0, block * 4096 + 4095) for block in range(5)] == [0, 2, 3, 3, 5]


@given(blocks=block_counts, device_blocks=st.integers(6, 30), bytes_less=st.integers(0, 4095))
def test_equals_a_walk_over_all_files(
    blocks: list[int], device_blocks: int, bytes_less: int
) -> None:
    lengths = [max(0, count * BLOCK_BYTES - bytes_less) for count in blocks]
    layout = layout_of(lengths, device_blocks)
    expected = places(blocks, device_blocks)
    owners: dict[tuple[int, int], int] = {}
    for inode, (device, block) in enumerate(expected):
        if blocks[inode]:
            assert (layout.device_of(inode), layout.start_byte(inode)) == (device, block * 4096)
        for number in range(block, block + blocks[inode]):
            owners[device, number] = inode
    assert layout.device_count == max((device for device, _ in owners), default=0) + 1
    for device in range(layout.device_count):
        used = [block for owner, block in owners if owner == device]
        assert layout.device_bytes(device) == BLOCK_BYTES * max(1, len(used))
        for block in range(device_blocks + 2):
            if (device, block) in owners:
                assert layout.file_at(device, block * 4096 + 17) == owners[device, block]
            else:
                with pytest.raises(IndexError):
                    layout.file_at(device, block * 4096)
    for first in range(len(blocks) + 1):
        for end in range(first, len(blocks) + 1, 3):
            covered = {
                (device, block)
                for device, start, stop in layout.range_of_files(first, end)
                for block in range(start // 4096, stop // 4096)
            }
            assert covered == {place for place, inode in owners.items() if first <= inode < end}


def test_an_empty_dataset_has_a_blob_of_one_block() -> None:
    layout = layout_of([])
    assert (layout.device_count, layout.device_bytes(0)) == (1, BLOCK_BYTES)
    assert layout.range_of_files(0, 0) == []
    for device, offset in ((0, 0), (0, -1), (1, 0), (-1, 0)):
        with pytest.raises(IndexError):
            layout.file_at(device, offset)
    with pytest.raises(IndexError):
        layout.start_byte(0)


def test_sixteen_tib_a_device() -> None:
    tib = 1 << 40
    layout = layout_of([6 * tib, 9 * tib, 2 * tib, 15 * tib, 5])
    assert [layout.device_of(inode) for inode in range(5)] == [0, 0, 1, 2, 2]
    assert layout.start_byte(1) == 6 * tib
    assert layout.start_byte(4) == 15 * tib
    assert layout.file_at(2, 15 * tib) == 4
    assert layout.range_of_files(1, 4) == [
        (0, 6 * tib, 15 * tib),
        (1, 0, 2 * tib),
        (2, 0, 15 * tib),
    ]


def test_a_file_larger_than_a_device_is_refused() -> None:
    layout_of([DEVICE_BLOCKS * BLOCK_BYTES])
    with pytest.raises(KernelImageTooLarge, match="inode 1 has 4294967296 blocks"):
        layout_of([5, DEVICE_BLOCKS * BLOCK_BYTES + 1])
    with pytest.raises(KernelImageTooLarge):
        layout_of([(1 << 64) - 1, (1 << 64) - 1])
    with pytest.raises(KernelImageTooLarge, match="65535 devices"):
        layout_of([4096] * 70_000, 1)
    with pytest.raises(ValueError, match="1 to"):
        layout_of([], DEVICE_BLOCKS + 1)


def test_of_a_snapshot(tmp_path: Path) -> None:
    with Snapshot.open(build(PETS, tmp_path)) as snapshot:
        layout = BlobLayout.of(snapshot)
        for inode in range(snapshot.file_count):
            if snapshot.size(inode):
                assert layout.file_at(0, layout.start_byte(inode)) == inode
        assert layout.device_bytes(0) >= snapshot.total_bytes
    with Snapshot.open(build(Tree({}), tmp_path)) as snapshot:
        assert BlobLayout.of(snapshot).device_bytes(0) == BLOCK_BYTES
