"""Which snapshot answers for an inode, and how the root's listing goes on from one epoch into the next."""

import errno

import pyfuse3
import pytest

from dieselfs.fuse.attributes import FOREVER_S, Owner
from dieselfs.fuse.epochs import Epochs
from dieselfs.fuse.inodes import (
    FIRST_EPOCH,
    ROOT_INODE,
    SHUFFLE_INODE,
    epoch_of,
    kernel_inode,
    root_position,
)
from metadata.snapshot import Snapshot
from tests.mount.versions import pack_versions

OLD = {"both": b"old", "gone": b"old", "inner/file": b"old", "turned": b"a file"}
NEW = {"both": b"newer", "come": b"new", "inner/file": b"newer", "turned/file": b"in a directory"}


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Snapshot, Snapshot]:
    versions = pack_versions(OLD, NEW, tmp_path_factory.mktemp("epochs"))
    return Snapshot.open(versions.before.snapshot), Snapshot.open(versions.after.snapshot)


@pytest.fixture
def epochs(snapshots: tuple[Snapshot, Snapshot]) -> Epochs:
    return Epochs(snapshots[0], Owner(1, 2))


def names(epochs: Epochs, directory: int = ROOT_INODE, position: int = 0) -> list[bytes]:
    return [name for name, _, _ in epochs.children(directory, position)]


def test_the_root_is_that_of_the_current_snapshot(
    epochs: Epochs, snapshots: tuple[Snapshot, Snapshot]
) -> None:
    assert epochs.tree_of(ROOT_INODE).snapshot is snapshots[0]
    assert names(epochs) == [b"inner", b"both", b"gone", b"turned"]
    assert epochs.add(snapshots[1]) is epochs.current is epochs.tree_of(ROOT_INODE)
    assert epochs.current.epoch == FIRST_EPOCH + 1
    assert names(epochs) == [b"inner", b"turned", b"both", b"come"]


def test_an_inode_is_answered_from_its_own_epoch_for_good(
    epochs: Epochs, snapshots: tuple[Snapshot, Snapshot]
) -> None:
    old = epochs.current.lookup(ROOT_INODE, b"both").st_ino
    for snapshot in (snapshots[1], snapshots[0], snapshots[1]):
        epochs.add(snapshot)
        new = epochs.current.lookup(ROOT_INODE, b"both").st_ino
        assert epochs.tree_of(old).attributes(old).st_size == 3
        assert epochs.tree_of(new).attributes(new).st_size == len(
            OLD["both"] if snapshot is snapshots[0] else NEW["both"]
        )
        assert old != new


@pytest.mark.parametrize("inode", [kernel_inode(FIRST_EPOCH + 1, 0), SHUFFLE_INODE, 1 << 62])
def test_what_no_epoch_gave_out_is_stale(epochs: Epochs, inode: int) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        epochs.tree_of(inode)
    assert raised.value.errno == errno.ESTALE


def test_listeners_hear_of_all_epochs_before_they_are_current(
    epochs: Epochs, snapshots: tuple[Snapshot, Snapshot]
) -> None:
    heard: list[tuple[int, Snapshot, Snapshot]] = []
    epochs.listen(lambda epoch, new: heard.append((epoch, new, epochs.current.snapshot)))
    epochs.add(snapshots[1])
    assert heard == [
        (FIRST_EPOCH, snapshots[0], snapshots[0]),
        (FIRST_EPOCH + 1, snapshots[1], snapshots[0]),
    ]


def test_a_listener_that_fails_keeps_the_old_snapshot_and_its_number_is_not_used_again(
    epochs: Epochs, snapshots: tuple[Snapshot, Snapshot]
) -> None:
    def fail_at_the_second(epoch: int, snapshot: Snapshot) -> None:
        if epoch == FIRST_EPOCH + 1:
            raise MemoryError

    epochs.listen(fail_at_the_second)
    with pytest.raises(MemoryError):
        epochs.add(snapshots[1])
    assert epochs.current.snapshot is snapshots[0]
    assert epochs.add(snapshots[1]).epoch == FIRST_EPOCH + 2


def test_positions_of_the_root_alone_carry_the_epoch(epochs: Epochs) -> None:
    inner = epochs.current.lookup(ROOT_INODE, b"inner").st_ino
    assert [position for _, _, position in epochs.children(inner, 0)] == [1]
    root = [position for _, _, position in epochs.children(ROOT_INODE, 0)]
    assert root == [root_position(FIRST_EPOCH, n) for n in (1, 2, 3, 4)]


def test_a_listing_goes_on_where_it_was_at_each_position(epochs: Epochs) -> None:
    whole = list(epochs.children(ROOT_INODE, 0))
    for index, (_, _, position) in enumerate(whole, 1):
        assert names(epochs, position=position) == [name for name, _, _ in whole[index:]]


def test_an_old_listing_has_the_old_names_and_leads_to_nothing_old(
    epochs: Epochs, snapshots: tuple[Snapshot, Snapshot]
) -> None:
    _, _, position = next(epochs.children(ROOT_INODE, 0))
    epochs.add(snapshots[1])
    rest = {name: entry for name, entry, _ in epochs.children(ROOT_INODE, position)}
    assert list(rest) == [b"both", b"gone", b"turned"]
    for name in (b"both", b"turned"):
        assert rest[name].st_ino == epochs.current.lookup(ROOT_INODE, name).st_ino
        assert rest[name].entry_timeout == FOREVER_S
    assert rest[b"gone"].entry_timeout == 0, "the kernel asks again before it follows it"
    assert epoch_of(rest[b"gone"].st_ino) == FIRST_EPOCH
    assert all(epoch_of(at) == FIRST_EPOCH for _, _, at in epochs.children(ROOT_INODE, position))


def test_a_position_of_no_epoch_is_stale(epochs: Epochs) -> None:
    with pytest.raises(pyfuse3.FUSEError) as raised:
        list(epochs.children(ROOT_INODE, root_position(FIRST_EPOCH + 1, 1)))
    assert raised.value.errno == errno.ESTALE


def test_directories_of_old_epochs_are_listed_from_their_snapshot(
    epochs: Epochs, snapshots: tuple[Snapshot, Snapshot]
) -> None:
    inner = epochs.current.lookup(ROOT_INODE, b"inner").st_ino
    epochs.add(snapshots[1])
    [(name, entry, _)] = epochs.children(inner, 0)
    assert (name, entry.st_size) == (b"file", 3)
