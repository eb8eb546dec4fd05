"""Scattered and class-sorted packings: what a report says of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dieselfs.errors import UsageError
from dieselfs.shuffle.class_labels import class_folder_labels
from dieselfs.shuffle.quality import (
    ChunkClasses,
    OrderQuality,
    ShuffleReport,
    report,
    usual_group_sizes,
)
from metadata.snapshot import Snapshot
from tests.dieselfs.chunks_of import chunks_of
from tests.metadata.snapshot_trees import File, Tree, build

CLASSES = 20
IN_CLASS = 200
IN_CHUNK = 40
CHUNKS = CLASSES * IN_CLASS // IN_CHUNK


def tree(places: np.ndarray) -> Tree:
    """File number i lies in the chunk `places[i] // IN_CHUNK`."""
    return Tree(
        {
            b"c%02d/%03d" % divmod(number, IN_CLASS): File(*divmod(place, IN_CHUNK))
            for number, place in enumerate(places.tolist())
        }
    )


SORTED = tree(np.arange(CLASSES * IN_CLASS))
SCATTERED = tree(np.random.default_rng(1).permutation(CLASSES * IN_CLASS))


@contextmanager
def opened(packed: Tree, folder: Path) -> Iterator[Snapshot]:
    with Snapshot.open(build(packed, folder)) as snapshot:
        yield snapshot


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ShuffleReport]:
    found = {}
    for name, packed in (("sorted", SORTED), ("scattered", SCATTERED)):
        with opened(packed, tmp_path_factory.mktemp(name)) as snapshot:
            labels = class_folder_labels(snapshot)
            found[name] = report(snapshot, [1, 4, 16, 1000], labels, batch=50)
    return found


@pytest.mark.parametrize("packing", ["sorted", "scattered"])
def test_the_references_are_a_full_shuffle_and_directory_order(
    reports: dict[str, ShuffleReport], packing: str
) -> None:
    found = reports[packing]
    assert (found.files, found.classes, found.chunks) == (CLASSES * IN_CLASS, CLASSES, CHUNKS)
    assert found.full.distance == 0
    assert found.full.classes_per_batch.mean == pytest.approx(
        CLASSES * (1 - (1 - 1 / CLASSES) ** 50), abs=0.3
    )
    assert found.full.classes_per_batch.design_effect == pytest.approx(1, abs=0.15)
    assert found.directory.classes_per_batch.mean == 1
    assert found.directory.distance == pytest.approx(1)


def test_a_group_beyond_all_chunks_is_the_full_shuffle(reports: dict[str, ShuffleReport]) -> None:
    last = reports["sorted"].groups[-1]
    assert last.group_size == CHUNKS
    assert last.order == reports["sorted"].full


def test_scattered_chunks_are_as_good_as_a_full_shuffle_in_any_group(
    reports: dict[str, ShuffleReport],
) -> None:
    found = reports["scattered"]
    assert [quality.group_size for quality in found.groups] == [1, 4, 16, CHUNKS]
    for quality in found.groups:
        assert quality.order.distance == pytest.approx(0, abs=0.03)
        assert quality.order.classes_per_batch.mean == pytest.approx(
            found.full.classes_per_batch.mean, rel=0.03
        )
    assert found.recommended.group_size <= 4
    assert not found.chunk_classes.sorted_by_class
    assert found.chunk_classes.found == pytest.approx(found.chunk_classes.expected, rel=0.03)


def test_class_sorted_chunks_need_a_large_group(reports: dict[str, ShuffleReport]) -> None:
    found = reports["sorted"]
    one, four, sixteen, _ = (quality.order for quality in found.groups)
    assert one.classes_per_batch.mean <= 3  # a batch of 50 touches two or three chunks of 40
    assert one.distance > four.distance > sixteen.distance > 0.1
    assert (
        one.classes_per_batch.effective_batch
        < four.classes_per_batch.effective_batch
        < sixteen.classes_per_batch.effective_batch
        < 40
    )
    assert found.recommended.group_size > 16
    assert found.is_close(found.recommended.order)
    assert found.is_close(found.full)
    assert not found.is_close(sixteen)
    assert found.chunk_classes.sorted_by_class
    assert found.chunk_classes.found == 1
    expected = CLASSES * (1 - (1 - 1 / CLASSES) ** IN_CHUNK)
    assert found.chunk_classes.expected == pytest.approx(expected)


def test_chunks_met_in_a_batch(reports: dict[str, ShuffleReport]) -> None:
    one, four, _, all_chunks = (quality.order for quality in reports["scattered"].groups)
    assert 2 <= one.chunks_in_batch <= 3
    assert 4 <= four.chunks_in_batch <= 8
    assert all_chunks.chunks_in_batch == pytest.approx(CHUNKS * (1 - (1 - 1 / CHUNKS) ** 50), abs=1)


def test_files_that_are_not_read_are_left_out(tmp_path: Path) -> None:
    with opened(SCATTERED, tmp_path) as snapshot:
        labels = class_folder_labels(snapshot)
        labels[labels > 10] = -1  # directory numbers; the root is 0
        found = report(snapshot, [4], labels, batch=50)
    assert (found.files, found.classes) == (10 * IN_CLASS, 10)
    assert found.groups[0].order.classes_per_batch.batches == 10 * IN_CLASS // 50
    assert found.full.classes_per_batch.mean == pytest.approx(10 * (1 - 0.9**50), abs=0.1)
    assert found.chunks == CHUNKS


def test_chunks_without_a_file_that_is_read_are_not_in_groups(tmp_path: Path) -> None:
    with opened(SORTED, tmp_path) as snapshot:
        labels = class_folder_labels(snapshot, under="c03")
        found = report(snapshot, [1, 1000], labels, batch=IN_CHUNK)
    assert found.chunks == IN_CLASS // IN_CHUNK
    assert [quality.group_size for quality in found.groups] == [1, IN_CLASS // IN_CHUNK]
    assert found.groups[0].order.chunks_in_batch == 1


def test_the_end_of_an_epoch_shows_a_last_group_of_few_chunks(tmp_path: Path) -> None:
    with opened(SORTED, tmp_path) as snapshot:
        # 90 chunks are one group, and the last tenth of the epoch is another, of 10.
        found = report(snapshot, [90], class_folder_labels(snapshot), batch=50)
    order = found.groups[0].order
    assert order.classes_per_batch.by_part[-1] < min(order.classes_per_batch.by_part[:-1]) - 3
    assert not found.is_close(order)


def test_close_is_close_by_classes_by_distance_and_in_each_tenth(
    reports: dict[str, ShuffleReport],
) -> None:
    found = reports["scattered"]
    full = found.full
    parts = full.classes_per_batch.by_part

    def with_classes(**changes: object) -> OrderQuality:
        return replace(full, classes_per_batch=replace(full.classes_per_batch, **changes))

    assert found.is_close(replace(full, distance=0.019))
    assert not found.is_close(replace(full, distance=0.021))
    assert found.is_close(with_classes(mean=full.classes_per_batch.mean * 0.981))
    assert not found.is_close(with_classes(mean=full.classes_per_batch.mean * 0.979))
    assert found.is_close(with_classes(by_part=(*parts[1:], min(parts) * 0.91)))
    assert not found.is_close(with_classes(by_part=(*parts[1:], min(parts) * 0.89)))


def test_one_class_has_no_distance(tmp_path: Path) -> None:
    with opened(SCATTERED, tmp_path) as snapshot:
        found = report(snapshot, [1, 10], np.zeros(snapshot.file_count, np.int64))
    assert [quality.order.distance for quality in found.groups] == [0, 0]
    assert found.recommended.group_size == 1
    assert not found.chunk_classes.sorted_by_class


@pytest.mark.parametrize(
    ("found", "expected", "is_sorted"),
    [
        (1.0, 2.0, True),  # cats and dogs
        (1.4, 2.0, True),
        (1.6, 2.0, False),
        (1.0, 35.4, True),
        (20.0, 35.4, False),
        (1.0, 1.0, False),  # one file a chunk
        (1.0, 1.4, False),
    ],
)
def test_when_a_packing_is_called_sorted(found: float, expected: float, is_sorted: bool) -> None:
    assert ChunkClasses(found, expected).sorted_by_class is is_sorted


def test_the_same_seed_gives_the_same_report_and_another_another(tmp_path: Path) -> None:
    with opened(SCATTERED, tmp_path) as snapshot:
        labels = class_folder_labels(snapshot)
        first = report(snapshot, [4], labels, seed=7)
        assert report(snapshot, [4], labels, seed=7) == first
        assert report(snapshot, [4], labels, seed=8).groups != first.groups


def test_the_group_that_fits_is_reported(tmp_path: Path) -> None:
    with chunks_of([10, 500, 30, 400, 20], tmp_path) as snapshot:
        labels = class_folder_labels(snapshot)
        none = report(snapshot, [1], labels, memory_bytes=100)
        assert (none.fitting, none.least_memory_bytes) == (None, 960)
    with chunks_of([100] * 20, tmp_path / "equal") as snapshot:
        fitting = report(snapshot, [1], class_folder_labels(snapshot), memory_bytes=999).fitting
        assert fitting is not None
        assert (fitting.group_size, fitting.memory_bytes) == (7, 900)


@pytest.mark.parametrize(("labels", "message"), [(-1, "no file to measure"), (None, "labels for")])
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, labels: int | None, message: str
) -> None:
    with opened(SCATTERED, tmp_path) as snapshot:
        count = snapshot.file_count if labels is not None else 3
        with pytest.raises((UsageError, ValueError), match=message):
            report(snapshot, [1], np.full(count, labels or 0))


@pytest.mark.parametrize("size", [0, -1])
def test_a_group_has_a_chunk_at_least(tmp_path: Path, size: int) -> None:
    with opened(SCATTERED, tmp_path) as snapshot, pytest.raises(ValueError, match="group size"):
        report(snapshot, [size], class_folder_labels(snapshot))


def test_usual_group_sizes() -> None:
    assert usual_group_sizes(1) == [1]
    assert usual_group_sizes(30) == [1, 3, 10, 30]
    assert usual_group_sizes(250) == [1, 3, 10, 30, 100, 250]
