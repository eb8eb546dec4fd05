"""Kernel inodes: ranges that never meet, and numbers that come back as they went."""

from hypothesis import given
from hypothesis import strategies as st

from dieselfs.fuse.inodes import (
    CONTROL_INODE,
    FIRST_CONTROL_FILE_INODE,
    FIRST_DATASET_INODE,
    FIRST_EPOCH,
    ROOT_INODE,
    SHUFFLE_INODE,
    epoch_of,
    is_control,
    kernel_inode,
    snapshot_inode,
)
from metadata.snapshot_format import DIRECTORY_BASE, MAX_FILES

SNAPSHOT_INODES = st.one_of(
    st.integers(0, MAX_FILES - 1), st.integers(DIRECTORY_BASE, DIRECTORY_BASE + MAX_FILES)
)
EPOCHS = st.integers(FIRST_EPOCH, (1 << 23) - 1)


@given(EPOCHS, SNAPSHOT_INODES)
def test_epoch_and_snapshot_inode_come_back(epoch: int, inode: int) -> None:
    number = kernel_inode(epoch, inode)
    assert (epoch_of(number), snapshot_inode(number)) == (epoch, inode)
    assert FIRST_DATASET_INODE <= number < 1 << 63
    assert not is_control(number)


@given(EPOCHS, EPOCHS, SNAPSHOT_INODES, SNAPSHOT_INODES)
def test_no_number_means_two_files(one: int, other: int, first: int, second: int) -> None:
    same = (one, first) == (other, second)
    assert (kernel_inode(one, first) == kernel_inode(other, second)) == same


def test_control_files_lie_between_the_root_and_the_first_epoch() -> None:
    assert not is_control(ROOT_INODE)
    assert is_control(CONTROL_INODE)
    assert is_control(SHUFFLE_INODE)
    assert is_control(FIRST_CONTROL_FILE_INODE)
    assert is_control(FIRST_DATASET_INODE - 1)
    assert not is_control(FIRST_DATASET_INODE)
