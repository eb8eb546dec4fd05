"""`put --delete`: a directory of the dataset becomes equal to its source, and nothing else
changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.errors import BadSource
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.dataset.dataset import open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.dataset.path_filter import PathFilter, Rule
from dieselfs.errors import Refused
from dieselfs.packing import pack as pack_module
from dieselfs.packing.deletion import Deletions, planned_deletions
from dieselfs.packing.forecast import Forecast, forecast
from dieselfs.packing.pack import pack
from dieselfs.packing.put_request import PackProgress, PackRequest
from dieselfs.packing.source_tree import SourceTree
from metadata.kv.key_value_store import KeyValueStore
from metadata.kv.lmdb_file import LmdbFileStore
from tests.dieselfs.dataset_content import Node, content_of, tree_of


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "source"
        for name in ("a/1", "a/2", "a/deep/3", "b/4", "c/x.log", "top"):
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_bytes(name.encode())

    def store(self) -> LocalDirectory:
        return LocalDirectory(self.folder / "store")

    def index(self) -> KeyValueStore:
        return LmdbFileStore(self.folder / "index")

    def request(self, *rules: Rule, target: bytes = b"", **options: object) -> PackRequest:
        tree = SourceTree(os.fsencode(self.source), target, PathFilter(rules))
        return PackRequest([tree], jobs=2, **options)  # type: ignore[arg-type]

    def put(self, request: PackRequest) -> PackProgress:
        progress = PackProgress()
        pack("d", request, self.store, self.index, progress)
        return progress

    def mirror(self, *rules: Rule, **options: object) -> PackProgress:
        """Put with deletion; the forecast of it counts the same."""
        request = self.request(*rules, delete=True, **options)
        found = self.forecast(request)
        progress = self.put(request)
        assert (found.files, found.deleted) == (progress.files_committed, progress.files_deleted)
        return progress

    def forecast(self, request: PackRequest) -> Forecast:
        index = self.index()
        try:
            return forecast(request, open_dataset(self.store(), index, "d"))
        finally:
            index.close()

    def content(self) -> dict[bytes, Node]:
        index = self.index()
        try:
            return dict(content_of(open_dataset(self.store(), index, "d")))
        finally:
            index.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.put(place.request())
    return place


def test_files_and_directories_that_are_gone_are_deleted(place: Place) -> None:
    (place.source / "a/1").unlink()
    shutil.rmtree(place.source / "a/deep")
    shutil.rmtree(place.source / "b")
    (place.source / "new").write_bytes(b"new")
    progress = place.mirror()
    assert (progress.files_committed, progress.files_deleted) == (1, 3)
    assert place.content() == tree_of(place.source)
    assert place.mirror().files_deleted == 0


def test_a_file_becomes_a_directory_and_the_other_way_round(place: Place) -> None:
    (place.source / "top").unlink()
    (place.source / "top/deep").mkdir(parents=True)
    (place.source / "top/deep/5").write_bytes(b"5")
    shutil.rmtree(place.source / "a")
    (place.source / "a").write_bytes(b"a")
    assert place.mirror().files_deleted == 4
    assert place.content() == tree_of(place.source)


@pytest.mark.parametrize("kept", ["", "new"])
def test_a_file_that_a_directory_hides_is_deleted_too(place: Place, kept: str) -> None:
    """Another writer has put a file below the name of a file at the same time."""
    index = place.index()
    dataset = open_dataset(place.store(), index, "d")
    with DatasetWriter(dataset) as one, DatasetWriter(dataset) as other:
        one.put(b"new/1", b"hidden")
        other.put(b"new/1/below", b"seen")
    index.close()
    (place.source / kept).mkdir(exist_ok=True)
    assert place.mirror().files_deleted == 2
    assert place.content() == tree_of(place.source)


def test_what_the_filters_leave_out_stays_on_both_sides(place: Place) -> None:
    shutil.rmtree(place.source / "c")
    shutil.rmtree(place.source / "b")
    (place.source / "a/1").unlink()
    before = place.content()
    progress = place.mirror(Rule(False, "*.log"), Rule(False, "/a/1"))
    assert progress.files_deleted == 1
    assert before.keys() - place.content().keys() == {b"b", b"b/4"}
    assert place.mirror(Rule(True, "*.log")).files_deleted == 1
    assert b"c/x.log" not in place.content()
    assert b"a/1" in place.content()


def test_what_lies_where_a_link_is_left_out_stays(place: Place) -> None:
    for name in ("a", "top"):
        (place.source / name).rename(place.folder / name)
        (place.source / name).symlink_to(place.folder / name)
    (place.folder / "a/1").unlink()
    (place.source / "b/4").unlink()
    before = place.content()
    tree = SourceTree(os.fsencode(place.source), b"", links="skip")
    assert place.put(PackRequest([tree], delete=True)).files_deleted == 1
    assert before.keys() - place.content().keys() == {b"b/4"}


def test_links_that_are_kept_replace_and_are_replaced(place: Place) -> None:
    """A link takes the place of a file or a directory, and gives it up again."""

    def mirror() -> PackProgress:
        tree = SourceTree(os.fsencode(place.source), b"", links="keep")
        request = PackRequest([tree], delete=True)
        found = place.forecast(request)
        progress = place.put(request)
        assert (found.files, found.deleted) == (progress.files_committed, progress.files_deleted)
        assert place.content() == tree_of(place.source, follow=False)
        return progress

    shutil.rmtree(place.source / "a")
    (place.source / "a").symlink_to("b")
    (place.source / "top").unlink()
    (place.source / "top").symlink_to("c")
    assert mirror().files_deleted == 3
    (place.source / "a").unlink()
    (place.source / "a").mkdir()
    (place.source / "a/inner").symlink_to("../b/4")
    (place.source / "top").unlink()
    assert mirror().files_deleted == 2
    (place.source / "a/inner").unlink()
    assert mirror().files_deleted == 1


def test_only_what_lies_below_the_target_is_deleted(place: Place, tmp_path: Path) -> None:
    place.put(place.request(target=b"in/side"))
    outside = {path: node for path, node in place.content().items() if not path.startswith(b"in")}
    (place.source / "a/1").unlink()
    single = tmp_path / "single"
    single.write_bytes(b"single")
    tree = place.request(target=b"in/side").sources[0]
    named = SourceTree(os.fsencode(single), b"in/side/b/single")
    for _ in range(2):  # a file that is named as a source lies in no directory on disk
        place.put(PackRequest([tree, named], delete=True))
        found = place.content()
        assert {path: found[path] for path in outside if path} == {
            path: node for path, node in outside.items() if path
        }
        assert b"in/side/a/1" not in found
        assert {b"in/side/b/4", b"in/side/b/single"} <= found.keys()


def test_several_sources_make_one_directory(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "a").mkdir(parents=True)
    (other / "a/9").write_bytes(b"9")
    trees = [SourceTree(os.fsencode(path), b"") for path in (place.source, other)]
    for _ in range(2):
        progress = PackProgress()
        pack("d", PackRequest(trees, delete=True), place.store, place.index, progress)
        assert progress.files_deleted == 0
    assert {b"a/1", b"a/9"} <= place.content().keys()


def test_a_limit_is_checked_before_anything_changes(place: Place) -> None:
    before = place.content()
    shutil.rmtree(place.source / "a")
    (place.source / "new").write_bytes(b"new")
    with pytest.raises(Refused, match="would delete 3 files, --max-delete allows 2"):
        place.put(place.request(delete=True, max_delete=2))
    assert place.content() == before
    assert place.mirror(max_delete=3).files_deleted == 3


def test_nothing_is_deleted_if_a_source_is_bad_or_a_file_fails(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = place.content()
    (place.source / "top").unlink()
    (place.source / "top").mkdir()
    (place.source / "b/dangling").symlink_to("nowhere")
    with pytest.raises(BadSource):
        place.put(place.request(delete=True))
    assert place.content() == before
    (place.source / "b/dangling").unlink()
    (place.source / "top").rmdir()
    monkeypatch.setattr(pack_module, "mixed", lambda batches, _: _vanish(place, batches))
    (place.source / "b/5").write_bytes(b"5")
    progress = place.put(place.request(delete=True))
    assert (len(progress.failed), progress.files_deleted) == (1, 0)
    assert b"top" in place.content()


def _vanish(place: Place, batches: Iterator[object]) -> Iterator[object]:
    found = list(batches)
    (place.source / "b/5").unlink()
    return iter(found)


def test_what_another_writer_puts_meanwhile_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*arguments: object) -> Deletions:
        found = planned_deletions(*arguments)  # type: ignore[arg-type]
        index = LmdbFileStore(place.folder / "index of another")
        with DatasetWriter(open_dataset(place.store(), index, "d")) as writer:
            writer.put(b"b/4", b"again")
            writer.put(b"a/deep/6", b"six")
        index.close()
        return found

    shutil.rmtree(place.source / "b")
    shutil.rmtree(place.source / "a/deep")
    monkeypatch.setattr(pack_module, "planned_deletions", plan)
    place.put(place.request(delete=True))
    found = place.content()
    assert (found[b"b/4"].data, found[b"a/deep/6"].data) == (b"again", b"six")
    assert b"a/deep/3" not in found
