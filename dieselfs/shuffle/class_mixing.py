"""Class mixing of an order, batch by batch: the formulas of docs/shuffle-quality.md.

Every result is a sum over the classes that occur in a batch. Sorting a batch's labels gives these
classes as runs, so the cost does not depend on the number of classes: about 100 ns a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

PARTS: Final = 10
"""The parts of an epoch; their classes per batch show whether mixing gets worse."""
_SAMPLES_AT_ONCE: Final = 1 << 19
"""Bounds the memory beside the labels to some 20 MB."""


@dataclass(frozen=True, slots=True)
class ClassMixing:
    """Class mixing of one order, cut into batches of consecutive samples.

    The last batch is left out unless it is full or the only one.
    """

    batch: int
    """Samples in a batch; fewer than requested if there are no more."""
    batches: int
    mean: float
    """The mean classes per batch: distinct classes in a batch."""
    fifth_percentile: float
    """The fifth percentile of the classes per batch: one batch in twenty has no more."""
    by_part: tuple[float, ...]
    """The mean classes per batch in each tenth of the epoch, in order."""
    variation: float
    """The mean total variation distance of a batch's class shares from the dataset's.

    It is between 0 and 1, but above 0 for any order.
    """
    design_effect: float
    """Kish's design effect: the variance of a batch's class counts relative to independent samples.

    It is 1 for a full shuffle.
    """

    @property
    def effective_batch(self) -> float:
        """The number of independent samples with as much information on the classes as a batch."""
        return self.batch / max(self.design_effect, 1.0)


def class_mixing(
    labels: npt.NDArray[np.unsignedinteger], class_files: npt.NDArray[np.int64], batch: int
) -> ClassMixing:
    """Return the class mixing of samples with these labels, in reading order.

    The dataset has `class_files[label]` samples of each label, none of them 0.
    """
    if batch < 1:
        raise ValueError(f"a batch must have 1 sample or more, not {batch}")
    total = len(labels)
    if not total:
        raise ValueError("there are no samples to measure")
    batch = min(batch, total)
    batches = total // batch
    rows = labels[: batches * batch].reshape(batches, batch)
    share = class_files / class_files.sum()
    at_once = max(1, _SAMPLES_AT_ONCE // batch)
    slabs = [_measure(rows[at : at + at_once], share) for at in range(0, batches, at_once)]
    distinct, variation, chi_square = map(np.concatenate, zip(*slabs, strict=True))
    parts = np.array_split(distinct, min(PARTS, batches))
    return ClassMixing(
        batch,
        batches,
        float(distinct.mean()),
        float(np.percentile(distinct, 5)),
        tuple(float(part.mean()) for part in parts),
        float(variation.mean()),
        _design_effect(float(chi_square.mean()), len(share), batch, int(class_files.sum())),
    )


def distinct_numbers(numbers: npt.NDArray[np.unsignedinteger], batch: int) -> float:
    """Return the mean number of distinct numbers in a batch of consecutive ones."""
    batch = min(batch, len(numbers))
    batches = len(numbers) // batch
    rows = numbers[: batches * batch].reshape(batches, batch)
    return float(_run_starts(np.sort(rows, axis=1)).sum() / batches)


def _run_starts(rows: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.bool_]:
    """Return a mask of the places where a new number begins, in rows that are sorted."""
    starts = np.ones(rows.shape, np.bool_)
    np.not_equal(rows[:, 1:], rows[:, :-1], out=starts[:, 1:])
    return starts


def _measure(
    rows: npt.NDArray[np.unsignedinteger], share: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return, for each row, distinct labels, total variation distance and Pearson's chi-square.

    Only the labels that occur are needed. Counts and shares have equal sums, so half of the sum of
    absolute differences is the sum of the positive ones; and Σ (n - Bp)² / Bp is Σ n² / Bp - B.
    """
    batch = rows.shape[1]
    rows = np.sort(rows, axis=1)
    starts = _run_starts(rows)
    distinct = starts.sum(axis=1)
    at = np.flatnonzero(starts)
    count = np.diff(at, append=rows.size)
    expected = share[rows.ravel()[at]]
    first = np.cumsum(distinct) - distinct
    variation = np.add.reduceat(np.maximum(count / batch - expected, 0.0), first)
    chi_square = np.add.reduceat(count * count / expected, first) / batch - batch
    return distinct, variation, chi_square


def _design_effect(chi_square: float, classes: int, batch: int, samples: int) -> float:
    """Return the chi-square divided by its expectation under drawing without replacement.

    The expectation is (classes - 1)(samples - batch) / (samples - 1).
    """
    expected = (classes - 1) * (samples - batch) / (samples - 1) if samples > 1 else 0.0
    return chi_square / expected if expected else 1.0
