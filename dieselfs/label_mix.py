"""How well an order mixes classes, batch by batch: the formulas of docs/shuffle-quality.md.

Everything is a sum over the classes that occur in a batch, which sorting a batch's labels gives as runs. So the cost does not depend on the number
of classes: about 100 ns a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

PARTS: Final = 10
"""Of an epoch, whose mixes show whether it gets worse."""
_SAMPLES_AT_ONCE: Final = 1 << 19
"""Bounds the memory beside the labels to some 20 MB."""


@dataclass(frozen=True, slots=True)
class ClassMixing:
    """Of one order, cut into batches of consecutive samples. The last one is left out unless it is full or the only one."""

    batch: int
    """Samples; fewer than asked for if there are no more."""
    batches: int
    mean: float
    """The mix: distinct classes in a batch."""
    fifth_percentile: float
    """Of the mix: one batch in twenty has no more."""
    by_part: tuple[float, ...]
    """The mix in each tenth of the epoch, in order."""
    variation: float
    """Mean total variation distance between a batch's shares of the classes and the dataset's: 0 to 1, but above 0 for any order."""
    design_effect: float
    """Kish's: how many times the variance of independent samples a batch's class counts have. 1 for a full shuffle."""

    @property
    def effective_batch(self) -> float:
        """How many independently drawn samples tell as much of the classes as a batch does."""
        return self.batch / max(self.design_effect, 1.0)


def class_mixing(
    labels: npt.NDArray[np.unsignedinteger], class_files: npt.NDArray[np.int64], batch: int
) -> ClassMixing:
    """The mix of samples with these labels (in reading order), of which the dataset has `class_files[label]` each, none of them 0."""
    if batch < 1:
        raise ValueError(f"a batch has 1 sample or more, not {batch}")
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
    """Mean of how many distinct numbers a batch of consecutive ones has."""
    batch = min(batch, len(numbers))
    batches = len(numbers) // batch
    rows = numbers[: batches * batch].reshape(batches, batch)
    return float(_run_starts(np.sort(rows, axis=1)).sum() / batches)


def _run_starts(rows: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.bool_]:
    """Where, in rows that are sorted, a new number begins."""
    starts = np.ones(rows.shape, np.bool_)
    np.not_equal(rows[:, 1:], rows[:, :-1], out=starts[:, 1:])
    return starts


def _measure(
    rows: npt.NDArray[np.unsignedinteger], share: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Of each row: distinct labels, total variation distance, and Pearson's chi-square, from the labels that occur alone.

    Counts and shares have equal sums, so half of the sum of absolute differences is the sum of the positive ones; and
    Σ (n - Bp)² / Bp is Σ n² / Bp - B.
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
    """Chi-square by what drawing without replacement makes one expect of it, (classes - 1)(samples - batch) / (samples - 1)."""
    expected = (classes - 1) * (samples - batch) / (samples - 1) if samples > 1 else 0.0
    return chi_square / expected if expected else 1.0
