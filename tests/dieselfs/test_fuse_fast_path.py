"""The fast path without a kernel: which snapshots it refuses, whose memory it keeps, and when it says that it is not active.

What it answers is tested on mounts. Its state is that of the process, so these tests go on where the one before them ended.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from chunkstore.chunk_id import ChunkId
from dieselfs.fuse import fast_path
from dieselfs.fuse.attributes import Owner
from dieselfs.fuse.epochs import Epochs
from dieselfs.fuse.fast_path import FastPath
from dieselfs.fuse.statistics import FastPathStatistics
from metadata.snapshot import Snapshot
from tests.mount.versions import pack_versions

extension = pytest.importorskip("dieselfs.fuse._fast_path", reason="it is not built")
unused_epochs = itertools.count(1)
chunk_numbers = itertools.count(1)

Sections = dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    files = {f"d{n % 3}/{n}": b"content" for n in range(20)}
    versions = pack_versions(files, files, tmp_path_factory.mktemp("fast-path"))
    with Snapshot.open(versions.before.snapshot) as opened:
        yield opened


def add(snapshot: Snapshot, epoch: int, sections: Any = None, **counts: int) -> None:
    header = snapshot.header
    found = {"files": header.files, "directories": header.directories, "chunks": header.chunks}
    numbers = tuple((found | counts).values())
    chosen = dict(header.sections) if sections is None else sections
    extension.add_epoch(epoch, snapshot.columns.file, numbers, chosen)


def test_an_epoch_follows_one_with_a_smaller_number(snapshot: Snapshot) -> None:
    first = next(unused_epochs)
    add(snapshot, first)
    for number in (0, first, 1 << 16, 1 << 40):
        with pytest.raises(ValueError, match=f"epoch {number} can't follow {first}"):
            add(snapshot, number)
    add(snapshot, next(unused_epochs))


def test_a_section_out_of_bounds_is_refused(snapshot: Snapshot) -> None:
    epoch = next(unused_epochs)
    size = len(memoryview(snapshot.columns.file))
    sections: Sections = dict(snapshot.header.sections)
    start, length = sections["mtime_ns"]
    for wrong in (
        (start + 4, length),  # not where a column can begin
        (size + 8, length),
        (size & ~7, length),
        (1 << 63, length),
        (start, length - 8),
        (start, length + 8),
        (start, (1 << 64) - 8),
        (start, 0),
    ):
        with pytest.raises(ValueError, match="section mtime_ns is out of bounds"):
            add(snapshot, epoch, sections | {"mtime_ns": wrong})
    start, length = sections["offset"]  # of numbers of 4 bytes, or of 8
    with pytest.raises(ValueError, match="section offset is out of bounds"):
        add(snapshot, epoch, sections | {"offset": (start, length - 1)})
    for name in ("names", "directory_paths"):  # of any length within the map
        with pytest.raises(ValueError, match=f"section {name} is out of bounds"):
            add(snapshot, epoch, sections | {name: (sections[name][0], size)})
    add(snapshot, epoch)  # what was refused has left nothing


def test_sections_that_are_none_are_refused(snapshot: Snapshot) -> None:
    epoch = next(unused_epochs)
    sections = dict(snapshot.header.sections)
    without = {name: extent for name, extent in sections.items() if name != "parent"}
    with pytest.raises(KeyError, match="parent"):
        add(snapshot, epoch, without)
    for wrong in ("text", (1,), ("1", "2"), None):
        with pytest.raises((TypeError, SystemError)):
            add(snapshot, epoch, sections | {"parent": wrong})
    with pytest.raises(TypeError):
        add(snapshot, epoch, 5)
    add(snapshot, epoch)


@pytest.mark.parametrize("kind", ["files", "directories", "chunks"])
def test_counts_that_do_not_fit_the_sections_are_refused(snapshot: Snapshot, kind: str) -> None:
    epoch = next(unused_epochs)
    real = getattr(snapshot.header, kind)
    for count in (0, real - 1, real + 1, 1 << 61, (1 << 63) + real, (1 << 64) - 1):
        with pytest.raises(ValueError, match="is out of bounds"):
            add(snapshot, epoch, **{kind: count})
    add(snapshot, epoch)


def test_no_product_of_a_count_and_a_width_wraps_around(snapshot: Snapshot) -> None:
    sections = dict(snapshot.header.sections)
    for name in sections:
        if name.startswith("directory_"):
            sections[name] = (sections[name][0], 8 if name == "directory_path_at" else 0)
    with pytest.raises(ValueError, match="is out of bounds"):
        add(snapshot, next(unused_epochs), sections, directories=1 << 63)


def new_id() -> ChunkId:
    return ChunkId(next(chunk_numbers).to_bytes(16, "big"))


def is_kept(payload: bytearray) -> bool:
    """Whether someone holds a view of it."""
    try:
        payload.append(0)
    except BufferError:
        return True
    del payload[-1]
    return False


def test_a_chunk_is_kept_from_hold_to_release() -> None:
    chunk, payload = new_id(), bytearray(1000)
    extension.hold(chunk.value, payload)
    assert is_kept(payload)
    extension.release(chunk.value)
    assert not is_kept(payload)
    extension.release(chunk.value)  # it is not there: nothing happens


def test_a_chunk_that_is_held_again_takes_the_place_of_the_first() -> None:
    chunk, first, second = new_id(), bytearray(10), bytearray(10)
    extension.hold(chunk.value, first)
    extension.hold(chunk.value, second)
    extension.consumed()  # lets go of what nobody uses, as any call does
    assert (is_kept(first), is_kept(second)) == (False, True)
    extension.release(chunk.value)
    assert not is_kept(second)


def test_chunks_that_share_a_bucket_are_told_apart() -> None:
    ids = [ChunkId(bytes([n]) + bytes(13) + b"\x07\x07") for n in range(5)]
    payloads = [bytearray(10) for _ in ids]
    for chunk, payload in zip(ids, payloads, strict=True):
        extension.hold(chunk.value, payload)
    for number in (2, 0, 4):
        extension.release(ids[number].value)
    assert [is_kept(payload) for payload in payloads] == [False, True, False, True, False]
    for chunk in ids:
        extension.release(chunk.value)
    assert not any(map(is_kept, payloads))


@pytest.mark.parametrize("wrong", [b"", bytes(15), bytes(17)])
def test_what_is_no_chunk_id_is_refused(wrong: bytes) -> None:
    payload = bytearray(10)
    with pytest.raises(ValueError, match="16 bytes"):
        extension.hold(wrong, payload)
    assert not is_kept(payload)
    with pytest.raises(ValueError, match="16 bytes"):
        extension.release(wrong)
    with pytest.raises(TypeError):
        extension.hold("text", payload)
    assert not is_kept(payload)


def test_chunks_of_a_snapshot_come_and_go_also_before_it(snapshot: Snapshot) -> None:
    chunk = snapshot.chunk(0)
    before, after = bytearray(chunk.payload_bytes), bytearray(chunk.payload_bytes)
    extension.hold(chunk.id.value, before)
    add(snapshot, next(unused_epochs))
    extension.release(chunk.id.value)
    extension.hold(chunk.id.value, after)
    assert (is_kept(before), is_kept(after)) == (False, True)
    extension.release(chunk.id.value)
    assert not is_kept(after)
    assert extension.consumed() == []


NOT_PLANNED = 0xFFFFFFFF


def words(*values: int) -> bytearray:
    """32 bits each."""
    return bytearray(struct.pack(f"={len(values)}I", *values))


def shown(snapshot: Snapshot) -> int:
    epoch = next(unused_epochs)
    add(snapshot, epoch)
    return epoch


def test_a_plan_is_kept_until_the_next_one(snapshot: Snapshot) -> None:
    epoch, files = shown(snapshot), range(snapshot.file_count)
    buffers = [words(*files), words(*files), bytearray(3)]
    extension.set_plan(epoch, *buffers)
    assert all(map(is_kept, buffers))
    following = [words(*files), words(*files), bytearray(3)]
    extension.set_plan(epoch, *following)
    assert not any(map(is_kept, buffers))
    assert all(map(is_kept, following))
    extension.clear_plan()
    assert not any(map(is_kept, following))
    extension.clear_plan()


def test_a_plan_that_does_not_fit_is_refused_and_the_one_before_stays(snapshot: Snapshot) -> None:
    epoch, count = shown(snapshot), snapshot.file_count
    files, bits = words(*range(count)), bytearray(3)
    extension.set_plan(epoch, files, files, bits)
    extension.advance(3)
    others = list(range(1, count))
    for wrong, reason in [
        ((epoch + 1, files, files, bits), "no such epoch"),
        ((0, files, files, bits), "no such epoch"),
        ((1 << 40, files, files, bits), "no such epoch"),
        ((epoch, files[:-1], files, bits), "32-bit"),
        ((epoch, files, files[:-2], bits), "32-bit"),
        ((epoch, memoryview(files + b"1234")[1:-3], files, bits), "32-bit"),  # misaligned
        ((epoch, files, files[:-4], bits), "not one position for each file"),
        ((epoch, files, files + words(NOT_PLANNED), bits), "not one position for each file"),
        ((epoch, files, files, bits[:2]), "not one bit for each file"),
        ((epoch, words(*others, count), files, bits), "no file's"),
        ((epoch, words(*others, NOT_PLANNED), files, bits), "no file's"),
        ((epoch, files, words(*others, count), bits), "at the position"),
        ((epoch, files, words(*others, 0), bits), "at the position"),
        ((epoch, files[:-4], files, bits), "at the position"),
        ((epoch, b"", files, bits), "at the position"),
    ]:
        with pytest.raises(ValueError, match=reason):
            extension.set_plan(*wrong)
    with pytest.raises(TypeError):
        extension.set_plan(epoch, files, files, None)
    assert extension.plan_progress() == (3, 0, 0)
    extension.clear_plan()
    assert not is_kept(files)


def test_a_file_may_be_read_twice_and_others_not_at_all(snapshot: Snapshot) -> None:
    epoch, count = shown(snapshot), snapshot.file_count
    positions = [2, *[NOT_PLANNED] * (count - 2), 1]
    extension.set_plan(epoch, words(0, count - 1, 0), words(*positions), bytearray(3))
    assert extension.plan_progress() == (0, 0, 0)
    extension.set_plan(epoch, b"", words(*[NOT_PLANNED] * count), bytearray(3))
    assert extension.plan_progress() == (0, 0, 0)
    extension.clear_plan()


def test_the_clock_is_moved_within_the_plan_and_not_back(snapshot: Snapshot) -> None:
    with pytest.raises(ValueError, match="no plan"):
        extension.advance(0)
    count = snapshot.file_count
    files = words(*range(count))
    extension.set_plan(shown(snapshot), files, files, bytearray(3))
    for low, expected in [(5, 5), (3, 5), (count, count), (0, count)]:
        extension.advance(low)
        assert extension.plan_progress() == (expected, 0, 0)
    for beyond in (count + 1, -1):
        with pytest.raises(ValueError, match="ends before that"):
            extension.advance(beyond)
    extension.clear_plan()
    assert extension.plan_progress() == (0, 0, 0)


def test_a_held_chunk_of_the_plan_is_queued_once(snapshot: Snapshot) -> None:
    """No thread stores anything here."""
    chunk = snapshot.chunk(0)
    files = words(*range(snapshot.file_count))
    extension.hold(chunk.id.value, bytearray(chunk.payload_bytes))
    assert not extension.store(chunk.id.value), "there is no plan"
    epoch = shown(snapshot)
    extension.set_plan(epoch, files, files, bytearray(3))
    assert not extension.store(new_id().value)
    assert extension.store(chunk.id.value)
    assert not extension.store(chunk.id.value)
    extension.set_plan(epoch, files, files, bytearray(3))
    assert extension.store(chunk.id.value), "a next plan starts over"
    extension.clear_plan()
    assert not extension.store(chunk.id.value)
    extension.set_plan(epoch, files, files, bytearray(3))
    extension.release(chunk.id.value)
    assert not extension.store(chunk.id.value)
    assert extension.stored() == []
    extension.drop_residue(chunk.id.value)  # there is none: nothing happens
    extension.clear_plan()
    for call in (extension.store, extension.drop_residue):
        with pytest.raises(ValueError, match="16 bytes"):
            call(bytes(15))


def test_a_fast_path_that_is_not_wanted_does_nothing(
    snapshot: Snapshot, caplog: pytest.LogCaptureFixture
) -> None:
    path = FastPath(wanted=False)
    assert not started(path, snapshot)
    assert path.statistics() == FastPathStatistics(reason="not wanted: --plain")
    assert caplog.messages == ["no fast path: not wanted: --plain"]
    path.stop(lambda: pytest.fail("nothing is to be aborted"))


def test_without_the_extension_it_says_why(
    snapshot: Snapshot, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path, "_extension", None)
    monkeypatch.setattr(fast_path, "_why_not", "it is Tuesday")
    path = FastPath()
    assert not started(path, snapshot)
    assert path.statistics() == FastPathStatistics(reason="it is Tuesday")
    assert caplog.messages == ["no fast path: it is Tuesday"]


def test_a_session_that_went_past_it_is_seen(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path._extension, "enable", lambda: None)  # no session is made here
    path = FastPath()
    assert path.reason is None
    assert not started(path, snapshot)
    assert path.reason == "pyfuse3 was bound to libfuse before the extension was loaded"
    assert not path.statistics().active


class Unobserved:
    """A source that nobody is to observe."""

    def observe(self, observer: object) -> None:
        raise AssertionError("there is nothing to tell")


def started(path: FastPath, snapshot: Snapshot) -> bool:
    found: bool = path.start(Epochs(snapshot, Owner(1, 2)), Unobserved(), Owner(1, 2), 1 << 20)  # type: ignore[arg-type]
    return found
