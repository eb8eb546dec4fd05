"""Numbers of the kernel: one file each, by arithmetic alone."""

import pytest

from dieselfs.fuse.requests.nodes import (
    CONTROL_NODE,
    DATASET_NODES,
    PLAN_NODE,
    SHUFFLE_NODE,
    WHY_NODE,
    inode_of,
    is_control,
    node_of,
)
from metadata.snapshot import ROOT
from metadata.snapshot_format import DIRECTORY_BASE, MAX_FILES


@pytest.mark.parametrize(
    "inode", [0, 1, MAX_FILES, DIRECTORY_BASE, DIRECTORY_BASE + 1, DIRECTORY_BASE + MAX_FILES]
)
def test_every_inode_has_a_node_and_back(inode: int) -> None:
    node = node_of(inode)
    assert inode_of(node) == inode
    assert not is_control(node)
    assert node < 1 << 63
    assert (node == 1) == (inode == ROOT)
    if inode != ROOT:
        assert node == DATASET_NODES + inode


def test_the_control_directory_has_numbers_of_its_own() -> None:
    folders = [CONTROL_NODE, SHUFFLE_NODE, PLAN_NODE, WHY_NODE]
    assert all(map(is_control, folders))
    assert len(set(folders)) == 4
    assert not is_control(1)
    assert is_control(DATASET_NODES - 1)
    assert not is_control(DATASET_NODES)
