"""The fast path without a kernel: which snapshots it refuses, whose memory it keeps, and when it says that it is not active.

What it answers is tested on mounts. Its state is that of the process, so these tests go on where the one before them ended.
"""

from __future__ import annotations

import itertools
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


def test_use_is_told_once() -> None:
    chunk = new_id()
    assert not extension.was_used(chunk.value)
    extension.hold(chunk.value, b"payload")
    assert extension.was_used(chunk.value), "it came since it is being read"
    assert not extension.was_used(chunk.value)
    extension.release(chunk.value)
    assert not extension.was_used(chunk.value)


@pytest.mark.parametrize("wrong", [b"", bytes(15), bytes(17)])
def test_what_is_no_chunk_id_is_refused(wrong: bytes) -> None:
    payload = bytearray(10)
    with pytest.raises(ValueError, match="16 bytes"):
        extension.hold(wrong, payload)
    assert not is_kept(payload)
    for call in (extension.release, extension.was_used):
        with pytest.raises(ValueError, match="16 bytes"):
            call(wrong)
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
