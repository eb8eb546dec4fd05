from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from chunkstore.chunk_format import BLOCK_BYTES
from chunkstore.chunk_id import ChunkId, ChunkIdGenerator
from chunkstore.commit_log import newest_generation
from chunkstore.errors import NotFound, Unavailable
from chunkstore.leases import Lease, delete_lease, new_lease_id, write_lease
from chunkstore.object_keys import chunk_key, commit_prefix, snapshot_prefix, tag_key
from dieselfs.client import Client
from dieselfs.dataset.dataset import open_dataset
from dieselfs.errors import Conflict, UsageError
from dieselfs.housekeeping.purge.purge import plan, purge
from dieselfs.housekeeping.purge.purge_request import PurgeRequest
from dieselfs.housekeeping.purge.tombstone_rewrite import TombstoneRewrite, tombstone_rewrite_of
from dieselfs.recovery import recover
from dieselfs.snapshots import lifecycle
from metadata import keys
from metadata.dataset_state import mark_rebuilding
from metadata.errors import IndexBehind, RecordsLost
from metadata.kv.key_value_store import KeyValueStore, MapFields
from tests.chunkstore.packed import StoreWrapper
from tests.dieselfs.housekeeping.purge.interrupted_calls import EndOfProcess, stepped
from tests.dieselfs.housekeeping.purge.purged_dataset import (
    NAME,
    SMALL_ROUNDS,
    TARGET,
    PurgedDataset,
    maps_of,
    rebuilt,
)

KEEPING = PurgeRequest(leave=0, small_bytes=0, target_bytes=TARGET)
"""With the usual grace period."""


def with_holes(files: int = 60, size: int = 500) -> PurgedDataset:
    """Every third file deleted, every third replaced."""
    world = PurgedDataset()
    world.put({b"d/%03d" % n: random.Random(n).randbytes(size) for n in range(files)})
    world.delete(*[b"d/%03d" % n for n in range(0, files, 3)])
    world.put({b"d/%03d" % n: random.Random(-n).randbytes(size) for n in range(1, files, 3)})
    return world


def flip(world: PurgedDataset, chunk_id: bytes, at: int) -> None:
    key = chunk_key(NAME, ChunkId(chunk_id))
    data = bytearray(world.store.get(key))
    data[at] ^= 1
    world.store.delete(key)
    world.store.create(key, [bytes(data)])


def test_holes_are_gone_and_the_old_chunks_wait() -> None:
    world = with_holes()
    before = world.objects()
    report = world.purge(KEEPING)
    world.check()
    assert report.changed
    assert before < world.objects()  # nothing was deleted
    assert report.bytes_after > report.bytes_before
    assert len(report.waiting) == report.chunks_retired > 5
    assert not report.pinned
    assert report.files_moved == sum(1 for n in range(60) if n % 3 == 2)
    live = sum(map(len, world.files.values()))
    assert report.live_bytes == live
    stored = sum(record.payload_bytes for record in world.open().namespace.chunks().values())
    assert stored == live
    # A second one finds nothing to do, and says so.
    again = world.purge(KEEPING)
    assert (again.changed, len(again.waiting)) == (False, report.chunks_retired)


def test_after_the_grace_period_the_old_chunks_go() -> None:
    world = with_holes()
    retired = world.purge(KEEPING).waiting
    report = world.purge(SMALL_ROUNDS)
    world.check()
    assert report.chunks_deleted >= len(retired)
    assert not report.waiting
    chunks = world.open().namespace.chunks()
    assert world.objects() == {str(ChunkId(chunk_id)) for chunk_id in chunks}
    # What the deletions hid is gone, so they go too, and the directory's record is all that is left
    # beside the files.
    assert report.deletions_dropped == 20
    assert sum(record.entry_count - record.file_count for record in chunks.values()) == 1
    assert not world.purge(SMALL_ROUNDS).changed


def test_files_keep_their_order() -> None:
    """What lay together lies together: a purge does not sort what was scattered, nor scatter what
    was sorted."""
    world = PurgedDataset()
    paths = [b"%02d" % n for n in random.Random(3).sample(range(80), 80)]
    dataset = world.open()
    with world.writer(dataset, open_chunks=1) as writer:
        for path in paths:
            writer.put(path, bytes(300), mtime_ns=1)
    world.files = dict.fromkeys(paths, bytes(300))
    world.delete(*paths[::4], paths[-1])
    world.purge()
    world.check()
    order = [
        (bytes(row["chunk"]), int(row["position"]), name)
        for listing in dataset.namespace.walk()
        for name, row in zip(listing.file_names, listing.files, strict=True)
    ]
    assert [name for *_, name in sorted(order)] == [p for p in paths if p in world.files]


def test_large_files_and_many_blocks() -> None:
    world = PurgedDataset()
    sizes = {b"big": 5 * BLOCK_BYTES + 1, b"mid": BLOCK_BYTES + 1, b"small": 9, b"gone": 99}
    with world.writer() as writer:
        writer._packer.target_bytes = 8 * BLOCK_BYTES
        for path, size in sizes.items():
            world.files[path] = random.Random(size).randbytes(size)
            writer.put(path, world.files[path], 0o600, 1)
    world.delete(b"gone")
    report = world.purge(PurgeRequest(leave=0, grace_s=0, target_bytes=4 * BLOCK_BYTES))
    assert report.files_moved == 3
    world.check()
    assert sorted(r.file_count for r in world.open().namespace.chunks().values()) == [1, 2]


def test_a_chunk_too_large_to_be_held_is_moved_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs.housekeeping.purge.chunk_merging.MAX_WHOLE_BYTES", 900)
    world = with_holes()
    world.purge()
    world.check()


def test_a_damaged_chunk_is_left_alone_and_told() -> None:
    world = with_holes()
    chunks = world.open().namespace.chunks()
    broken = next(c for c, r in chunks.items() if 0 < r.deleted_count < r.file_count)
    row = next(
        row
        for rows in world.open().namespace.walk()
        for row in rows.files
        if bytes(row["chunk"]) == broken
    )
    flip(world, broken, chunks[broken].head_bytes + int(row["offset"]))
    report = world.purge()
    assert [found.id for found in report.damaged] == [ChunkId(broken)]
    assert "checksum" in report.damaged[0].reason
    left = world.open().namespace.chunks().keys() & chunks.keys()
    whole = {c for c, record in chunks.items() if record.file_count and not record.deleted_count}
    assert left == {broken} | whole
    assert maps_of(world.index) == maps_of(rebuilt(world.open()))
    assert str(ChunkId(broken)) in world.objects()


def test_a_damaged_file_that_is_deleted_does_not_matter() -> None:
    world = PurgedDataset()
    world.put({b"a": b"a" * 400, b"b": b"b" * 500})
    row = world.open().namespace.stat(b"a").row
    chunk = bytes(row["chunk"])
    head = world.open().namespace.chunk(chunk).head_bytes
    world.delete(b"a")
    flip(world, chunk, head + int(row["offset"]))
    assert not world.purge().damaged
    world.check()


@pytest.mark.parametrize("fault", ["gone", "head damaged"])
def test_a_lost_chunk_whose_files_were_put_again_goes_too(fault: str) -> None:
    world = PurgedDataset()
    world.make_directory(b"made", 0o700, 7)
    files = {b"d%d/e/%03d" % (n % 3, n): random.Random(n).randbytes(300) for n in range(30)}
    world.put(files)
    lost = next(c for c, r in world.open().namespace.chunks().items() if r.file_count > 2)
    if fault == "gone":
        world.store.delete(chunk_key(NAME, ChunkId(lost)))
    else:
        flip(world, lost, 70)
    assert ChunkId(lost) not in [found.id for found in world.purge().damaged]  # it has no holes yet
    rows = [
        (listing.path + b"/" + name, row)
        for listing in world.open().namespace.walk()
        for name, row in zip(listing.file_names, listing.files, strict=True)
    ]
    hit = [path for path, row in rows if bytes(row["chunk"]) == lost]
    world.put({path: files[path] for path in hit[1:]})
    report = world.purge()  # one file is still only there
    assert [found.id for found in report.damaged] == [ChunkId(lost)]
    world.put({hit[0]: files[hit[0]]})
    assert not world.purge().damaged
    assert lost not in world.open().namespace.chunks()
    world.check()  # a new index can be made again
    world.delete_tree(b"d1")
    world.purge()
    world.check()


def test_what_a_published_snapshot_names_is_not_deleted(tmp_path: Path) -> None:
    world = with_holes()
    dataset = world.open()
    needed = {str(ChunkId(chunk_id)) for chunk_id in dataset.namespace.chunks()}
    lifecycle.publish_snapshot(world.store, lifecycle.build(dataset, tmp_path))
    report = world.purge()
    assert needed <= world.objects()
    left = {str(ChunkId(chunk_id)) for chunk_id in dataset.namespace.chunks()}
    assert {str(chunk_id) for chunk_id in report.pinned} == needed - left
    assert report.deletions_dropped == 0
    [published] = world.store.list(snapshot_prefix(NAME))
    world.store.delete(published.key)
    assert world.purge().chunks_deleted >= len(needed - left)
    assert not (needed - left) & world.objects()
    world.check()


def test_what_a_lease_names_is_not_deleted() -> None:
    world = with_holes()
    dataset = world.open()
    generation = dataset.namespace.state().generation
    lease = Lease(
        new_lease_id(), 1, dataset.ref.id, (generation,), "node", 1, time.time_ns(), ttl_s=3600
    )
    write_lease(world.store, NAME, lease)
    needed = world.objects()
    assert world.purge().chunks_deleted == 0
    assert needed <= world.objects()
    delete_lease(world.store, NAME, lease.lease_id, 1)
    report = world.purge()
    assert report.chunks_deleted > 5
    assert not report.waiting
    world.check()


def test_a_mount_that_begins_while_chunks_are_deleted_keeps_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mounted(StoreWrapper):
        """At the first deletion of a chunk a mount writes its lease."""

        lease: Lease | None = None

        def before(self, call: str, key: str) -> None:
            if call == "delete" and "/chunks/" in key and self.lease is None:
                self.lease = Lease(
                    new_lease_id(), 1, dataset.ref.id, (generation,), "node", 1, time.time_ns()
                )
                write_lease(self.inner, NAME, self.lease)

    monkeypatch.setattr("dieselfs.housekeeping.purge.purge._DELETED_AT_ONCE", 1)
    world = with_holes()
    dataset = world.open()
    generation = dataset.namespace.state().generation
    needed = world.objects()
    world.store = Mounted(world.store)
    world.purge()
    assert len(needed - world.objects()) == 1
    world.check()


def test_a_tag_that_cannot_be_read_may_mean_anything() -> None:
    world = with_holes()
    world.store.create(tag_key(NAME, "v1", 1), [b"garbage"])
    report = world.purge()
    assert report.chunks_deleted == 0
    assert len(report.unreadable) == 1
    assert len(report.pinned) == len(report.waiting) > 5
    world.check()


def test_a_plan_changes_nothing() -> None:
    world = with_holes()
    before, maps = world.objects(), maps_of(world.index)
    found = plan(world.open(), SMALL_ROUNDS)
    assert (world.objects(), maps_of(world.index)) == (before, maps)
    report = world.purge(KEEPING)
    assert {chunk.id for chunk in found.retired} <= {c.ref.id for c in report.waiting}
    assert sum(chunk.live_bytes for chunk in found.retired) == report.bytes_moved
    assert found.dataset_bytes == report.bytes_before
    assert len(plan(world.open(), SMALL_ROUNDS).deletable) == len(report.waiting)


def test_small_chunks_of_many_appends_are_merged() -> None:
    world = PurgedDataset()
    for number in range(30):
        world.put({b"%02d" % number: bytes(100)})
    assert world.open().namespace.state().chunks == 30
    world.purge()
    world.check()
    assert world.open().namespace.state().chunks == 1
    assert not world.purge().changed


class Busy(StoreWrapper):
    """Another writer commits whenever a purge is about to."""

    def __init__(self, world: PurgedDataset, commits: int) -> None:
        super().__init__(world.store)
        self.world, self.left = world, commits

    def before(self, call: str, key: str) -> None:
        if call == "create" and key.startswith(commit_prefix(NAME)) and self.left:
            self.left -= 1
            self.world.put({b"e/%d" % self.left: b"busy"})


def test_a_writer_in_between_costs_no_second_reading_of_files() -> None:
    world = with_holes()
    store = Busy(world, 5)
    report = purge(open_dataset(store, world.index, NAME), SMALL_ROUNDS)
    assert store.left == 0
    assert report.files_moved == 20
    world.check()
    named = {str(ref.id) for commit in world.open().log.since(0) for ref in commit.added}
    assert world.objects() <= named  # the restatements that came too late are deleted


def test_writers_that_never_pause_end_the_purge() -> None:
    world = with_holes()
    chunks = world.objects()
    with pytest.raises(Conflict, match="a writer committed first"):
        purge(open_dataset(Busy(world, 1000), world.index, NAME), SMALL_ROUNDS)
    world.check()
    named = {str(ref.id) for commit in world.open().log.since(0) for ref in commit.added}
    assert chunks <= world.objects() <= named


def test_of_two_purges_the_slower_one_gives_way() -> None:
    world = with_holes()

    class Overtaken(StoreWrapper):
        done = False

        def before(self, call: str, key: str) -> None:
            if call == "create" and key.startswith(commit_prefix(NAME)) and not self.done:
                self.done = True
                world.purge(KEEPING)

    with pytest.raises(Conflict, match="another purge"):
        purge(open_dataset(Overtaken(world.store), world.index, NAME), SMALL_ROUNDS)
    world.check()


def test_a_purge_that_slept_for_longer_than_the_grace_period_commits_nothing_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gc deleted what it had stored: its sources must stay."""
    world = with_holes()
    ids = ChunkIdGenerator(lambda: time.time() - 8 * 86400)
    monkeypatch.setattr("dieselfs.housekeeping.purge.chunk_merging.CHUNK_IDS", ids)
    before = world.objects()

    class Collected(StoreWrapper):
        def after(self, call: str, key: str) -> None:
            if call == "create" and "chunks" in key:
                self.inner.delete(key)

    store = Collected(world.store)
    with pytest.raises(NotFound, match="run the same"):
        purge(open_dataset(store, world.index, NAME), KEEPING)
    assert before <= world.objects()
    monkeypatch.undo()
    world.check()
    world.purge()
    world.check()


def test_a_commit_that_was_not_answered_counts_once() -> None:
    world = with_holes()

    class Unanswered(StoreWrapper):
        lost = 0

        def after(self, call: str, key: str) -> None:
            if call == "create" and key.startswith(commit_prefix(NAME)):
                self.lost += 1
                raise Unavailable("connection lost")

    store = Unanswered(world.store)
    report = purge(open_dataset(store, world.index, NAME), KEEPING)
    assert store.lost == 1
    assert report.rounds == 1
    world.check()


def test_a_store_without_room_loses_nothing() -> None:
    world = with_holes()
    before = world.objects()

    class Full(StoreWrapper):
        def before(self, call: str, key: str) -> None:
            if call == "create" and "chunks" in key:
                raise Unavailable("no room")

    with pytest.raises(Unavailable):
        purge(open_dataset(Full(world.store), world.index, NAME), SMALL_ROUNDS)
    assert world.objects() == before
    world.check()


def test_progress_adds_up() -> None:
    world = with_holes()
    told: list[tuple[int, int]] = []
    expected: list[tuple[int, int]] = []

    class Watching:
        def advance(self, files: int, size_bytes: int) -> None:
            told.append((files, size_bytes))

        def expect(self, files: int, size_bytes: int) -> None:
            expected.append((files, size_bytes))

    report = purge(world.open(), KEEPING, Watching())
    assert [sum(column) for column in zip(*told, strict=True)] == [20, report.bytes_moved]
    assert expected[-1] == (20, report.bytes_moved)


@pytest.mark.parametrize(
    "request_",
    [
        PurgeRequest(leave=-1),
        PurgeRequest(grace_s=-1),
        PurgeRequest(round_bytes=0),
        PurgeRequest(target_bytes=1),
    ],
)
def test_requests_that_make_no_sense(request_: PurgeRequest) -> None:
    with pytest.raises(UsageError):
        purge(PurgedDataset().open(), request_)


def test_a_deleted_directory_is_remembered_as_long_as_any_record_lies_below_it() -> None:
    """A chunk that stays holds the deletion of a file in it, whose record is found by way of the
    directory's alone."""
    world = PurgedDataset()
    world.put({b"d/x": b"x"})
    dataset = world.open()
    applied = dataset.namespace.state().generation
    with world.writer(dataset, open_chunks=1) as writer:
        writer.delete(dataset.namespace.stat(b"d/x"))
        writer.put(b"keep", b"k", mtime_ns=1)
        writer.flush()
        writer.delete(dataset.namespace.stat(b"d"), applied + 1)
    world.files, world.directories = {b"keep": b"k"}, set()
    world.purge()
    world.check()
    assert sorted(world.entries()) == [b"d", b"keep", b"x"]
    world.delete(b"keep")
    world.purge()
    world.check()
    assert world.entries() == []


def test_a_reader_without_a_snapshot_finds_a_file_that_is_moved_while_it_looks(
    tmp_path: Path,
) -> None:
    """The purge comes between the look-up of the file and that of its chunk."""
    world = with_holes()
    steps = EndOfProcess()
    _, index = stepped(world.store, world.index, steps)
    with Client.connect(
        NAME, store=world.store, index=index, snapshot_folder=tmp_path
    ) as undisturbed:
        before = steps.taken
        undisturbed.get(b"d/002")
    steps_of_get = steps.taken - before
    assert steps_of_get > 1
    for number in range(1, steps_of_get + 1):
        world = with_holes()
        left = [-1]

        def purge_in_between(left: list[int] = left, world: PurgedDataset = world) -> None:
            left[0] -= 1
            if left[0] == 0:
                world.purge(KEEPING)

        _, index = stepped(world.store, world.index, purge_in_between)
        with Client.connect(
            NAME, store=world.store, index=index, snapshot_folder=tmp_path
        ) as client:
            left[0] = number
            assert client.get(b"d/002") == world.files[b"d/002"]
            assert left[0] <= 0


@pytest.mark.parametrize("of_directory", [False, True])
def test_an_index_that_forgot_is_not_purged_by(of_directory: bool) -> None:
    """A recount of its holes takes for dead what it forgot; the store still has it, and a purge
    would not take it along."""
    world = with_holes()
    world.make_directory(b"empty", 0o700, 5)
    dataset = world.open()
    key_of, lost = (
        (keys.directories_of(dataset.ref.id, b""), b"empty")
        if of_directory
        else (keys.files_of(dataset.ref.id, b"d"), b"002")
    )
    world.index.remove([MapFields(key_of, [lost])])
    generation = dataset.namespace.state().generation
    dataset.namespace.reapply(dataset.log, dataset.reader, generation)
    with pytest.raises(RecordsLost, match="dlcmd recover"):
        world.purge(KEEPING)
    assert not list(dataset.log.since(generation))
    recover(world.store, world.index, NAME)
    world.check()
    world.purge()
    world.check()


def test_what_is_read_of_an_index_while_it_is_mended_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recovery that began with an older log takes back what came later, until its end."""
    world = with_holes()
    generation = world.open().namespace.state().generation

    def read_while_mended(index: KeyValueStore, dataset_id: bytes, *rest: Any) -> TombstoneRewrite:
        mark_rebuilding(index, dataset_id, generation - 1)
        return tombstone_rewrite_of(index, dataset_id, *rest)

    monkeypatch.setattr(
        "dieselfs.housekeeping.purge.retiring.tombstone_rewrite_of", read_while_mended
    )
    with pytest.raises(IndexBehind):
        world.purge(KEEPING)
    assert newest_generation(world.store, NAME) == generation
    recover(world.store, world.index, NAME)
    monkeypatch.undo()
    world.purge()
    world.check()
