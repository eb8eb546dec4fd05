"""Listings in the kernel's format equal `Snapshot.children`, wherever they begin and however they
are cut."""

import random
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs.fuse.requests.attributes import Owner
from dieselfs.fuse.requests.nodes import node_of
from dieselfs.fuse.serving import tree_listings
from dieselfs.fuse.serving.tree_listings import TreeListings
from metadata.errors import SnapshotRefused
from metadata.snapshot import ROOT, Snapshot
from metadata.snapshot_format import DIRECTORY_BASE
from tests.dieselfs.fuse.kernel_messages import Attributes, Entry, decoded_listing
from tests.metadata.snapshot_trees import PETS, File, Tree, build, trees

OWNER = Owner(1234, 4321)


def expected(snapshot: Snapshot, directory: int, hidden: bytes | None = None) -> list[Entry]:
    found = []
    for position, (name, inode) in enumerate(snapshot.children(directory)):
        if name == hidden:
            continue
        node, size, links = node_of(inode), snapshot.size(inode), 1
        if snapshot.is_directory(inode):
            size = 4096
            links = 2 + sum(snapshot.is_directory(child) for _, child in snapshot.children(inode))
        attributes = Attributes(
            *(node, size, -(-size // 512), snapshot.mtime_ns(inode), snapshot.mode(inode), links),
            *(OWNER.uid, OWNER.gid, 4096),
        )
        kind = stat.S_IFMT(snapshot.mode(inode)) >> 12
        found.append(Entry(name, node, position + 1, kind, node, attributes))
    return found


def listed(
    listings: TreeListings, directory: int, size: int, plus: bool = True, start: int = 0
) -> Iterator[Entry]:
    """As the kernel lists: it goes on where the last entry says, until an answer is empty."""
    while part := listings.read(directory, start, size, plus=plus):
        assert len(part) <= size
        for entry in decoded_listing(bytes(part), plus=plus):
            yield entry
            start = entry.following


@pytest.mark.long
@given(tree=trees(), size=st.sampled_from([512, 4096, 1 << 17]), seed=st.integers(0, 1000))
@settings(max_examples=150)
def test_a_listing_equals_the_children(tree: Tree, size: int, seed: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Snapshot.open(build(tree, Path(folder))) as snapshot,
    ):
        listings = TreeListings(snapshot, OWNER)
        for number in range(snapshot.directory_count):
            directory = DIRECTORY_BASE + number
            wanted = expected(snapshot, directory)
            assert list(listed(listings, directory, size)) == wanted
            start = random.Random(seed).randrange(len(wanted) + 2)
            assert list(listed(listings, directory, size, start=start)) == wanted[start:]
            plain = [Entry(*(e.name, e.number, e.following, e.type)) for e in wanted]
            assert list(listed(listings, directory, size, plus=False)) == plain


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Snapshot]:
    names = [b"%04d" % n + b"x" * (n % 100) for n in range(100)]
    files = {b"all/" + name: File(0, n, n * 10, 10) for n, name in enumerate(names)}
    more = {b"top%d" % n: File(1, n) for n in range(8)}
    with Snapshot.open(build(Tree({**files, **more}), tmp_path)) as snapshot:
        yield snapshot


@pytest.mark.parametrize("block", [1, 2, 7, 100, 1000])
@pytest.mark.parametrize("hidden", [None, b"all", b"top0", b"top7"])
def test_blocks_and_a_hidden_name_make_no_difference(
    crowd: Snapshot, monkeypatch: pytest.MonkeyPatch, block: int, hidden: bytes | None
) -> None:
    monkeypatch.setattr(tree_listings, "BLOCK_ENTRIES", block)
    listings = TreeListings(crowd, OWNER, hidden)
    assert list(listed(listings, ROOT, 512)) == expected(crowd, ROOT, hidden)
    below = crowd.resolve(b"all")
    assert below is not None
    assert list(listed(listings, below, 512)) == expected(crowd, below)


def test_the_cache_is_bounded(crowd: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_listings, "BLOCK_ENTRIES", 10)
    listings = TreeListings(crowd, OWNER, cache_bytes=8000)
    below = crowd.resolve(b"all")
    assert below is not None
    for _ in range(3):
        assert list(listed(listings, below, 4096)) == expected(crowd, below)
        blocks = listings._blocks.values()
        assert listings._cached_bytes == sum(block.cached_bytes for block in blocks) <= 8000


def test_a_file_is_no_directory(crowd: Snapshot) -> None:
    with pytest.raises(IndexError):
        TreeListings(crowd, OWNER).read(0, 0, 4096, plus=True)


def test_damage_is_refused_or_seen_and_never_a_crash(tmp_path: Path) -> None:
    """Any byte of the columns may be wrong: opening checks the header alone."""
    sound = build(PETS, tmp_path / "sound").read_bytes()
    dice = random.Random(1)
    for round_ in range(1000):
        damaged = bytearray(sound)
        damaged[dice.randrange(700, len(sound))] ^= dice.randrange(1, 256)
        path = tmp_path / f"damaged{round_}"
        path.write_bytes(damaged)
        with Snapshot.open(path) as snapshot:
            listings = TreeListings(snapshot, OWNER)
            for number in range(snapshot.directory_count):
                try:
                    listings.read(DIRECTORY_BASE + number, 0, 4096, plus=True)
                except SnapshotRefused:
                    pass
        path.unlink()
