"""The statistics of a mix, against their definitions spelled out and against values known
beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.shuffle.class_mixing import ClassMixing, class_mixing, distinct_numbers


def by_definition(labels: list[int], batch: int) -> tuple[float, float, float]:
    """Mix, mean total variation, mean chi-square: with a loop over all classes."""
    classes = max(labels) + 1
    share = [labels.count(label) / len(labels) for label in range(classes)]
    batch = min(batch, len(labels))
    distinct_counts, variations, squares = [], [], []
    for start in range(0, len(labels) - batch + 1, batch):
        part = labels[start : start + batch]
        counts = [part.count(label) for label in range(classes)]
        distinct_counts.append(sum(count > 0 for count in counts))
        pairs = list(zip(counts, share, strict=True))
        variations.append(sum(abs(count / batch - p) for count, p in pairs) / 2)
        squares.append(sum((count - batch * p) ** 2 / (batch * p) for count, p in pairs))
    return float(np.mean(distinct_counts)), float(np.mean(variations)), float(np.mean(squares))


def measured(labels: np.ndarray, batch: int) -> ClassMixing:
    return class_mixing(labels.astype(np.uint16), np.bincount(labels), batch)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 20))
def test_it_is_what_the_definition_says(drawn: list[int], batch: int) -> None:
    labels = np.unique(drawn, return_inverse=True)[1]
    found = measured(labels, batch)
    distinct, variation, chi_square = by_definition(labels.tolist(), batch)
    assert found.mean == pytest.approx(distinct)
    assert found.variation == pytest.approx(variation)
    files, classes = len(labels), labels.max() + 1
    size = min(batch, files)
    if classes > 1 and files > size:
        expected = (classes - 1) * (files - size) / (files - 1)
        assert found.design_effect == pytest.approx(chi_square / expected, abs=1e-9)
    else:
        assert found.design_effect == 1.0


def test_a_full_shuffle_of_100_classes_has_92_classes_per_batch_and_no_design_effect() -> None:
    labels = np.random.default_rng(1).permutation(np.arange(100_000) % 100)
    found = measured(labels, 256)
    assert found.mean == pytest.approx(100 * (1 - 0.99**256), abs=0.5)  # 92.4
    assert found.design_effect == pytest.approx(1.0, abs=0.03)
    assert found.effective_batch == pytest.approx(256, abs=8)


def test_files_sorted_by_class_have_one_class_per_batch_and_are_worth_one_sample_a_batch() -> None:
    found = measured(np.repeat(np.arange(100), 1024), 256)
    assert (found.mean, found.fifth_percentile) == (1.0, 1.0)
    assert found.variation == pytest.approx(0.99)
    assert found.effective_batch == pytest.approx(1.0, abs=0.01)


def test_an_order_that_gets_worse_shows_in_its_parts() -> None:
    half = 50 * 1000
    good = np.random.default_rng(1).permutation(np.arange(half) % 50)
    labels = np.concatenate([good, np.sort(good)])
    parts = measured(labels, 100).by_part
    assert len(parts) == 10
    assert min(parts[:5]) > 40
    assert max(parts[5:]) < 3


def test_the_fifth_percentile_sees_few_bad_batches() -> None:
    labels = np.arange(100 * 64) % 64
    labels[: 10 * 64] = 0
    found = measured(labels, 64)
    assert found.mean == pytest.approx((90 * 64 + 10) / 100)
    assert found.fifth_percentile == 1


def test_many_batches_are_measured_in_slabs_with_the_same_result() -> None:
    labels = np.random.default_rng(2).integers(0, 5, 1_200_000)
    found = measured(labels, 1000)
    rows = labels.reshape(-1, 1000)
    share = np.bincount(labels) / len(labels)
    counts = np.stack([(rows == label).sum(1) for label in range(5)], axis=1)
    assert found.batches == 1200
    assert found.variation == pytest.approx(np.abs(counts / 1000 - share).sum(1).mean() / 2)


def test_distinct_numbers_of_batches() -> None:
    numbers = np.array([1, 1, 2, 3, 3, 3, 9], np.uint32)
    assert distinct_numbers(numbers, 3) == 1.5  # the 9 is left out
    assert distinct_numbers(numbers, 100) == 4


@pytest.mark.parametrize(("samples", "batch"), [(0, 256), (10, 0)])
def test_nothing_to_measure_is_refused(samples: int, batch: int) -> None:
    with pytest.raises(ValueError, match="sample"):
        class_mixing(np.zeros(samples, np.uint16), np.array([1]), batch)
