"""A made-up image classification problem that a small network learns in seconds, but not perfectly.

A class is a smooth random pattern. An image shows its class's pattern, moved by some pixels, with
another class's pattern faintly over it and with noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

SIDE: Final = 16
"""Pixels, unless another side is asked for."""
_LARGEST_SHIFT: Final = 2
_DISTRACTION: Final = 0.7
_NOISE: Final = 1.1


@dataclass(frozen=True, slots=True)
class Images:
    """Grey images and their classes."""

    pixels: npt.NDArray[np.uint8]
    """(images, side, side)."""
    labels: npt.NDArray[np.int64]


def make_images(classes: int, per_class: int, part: int, side: int = SIDE) -> Images:
    """`per_class` images of each class, class by class. The same patterns for each `part`, other
    images."""
    patterns = _patterns(classes, side)
    generator = np.random.default_rng([1, part])
    labels = np.repeat(np.arange(classes), per_class)
    count = len(labels)
    other = (labels + generator.integers(1, classes, count)) % classes
    shown = _moved(patterns[labels], generator) + _DISTRACTION * _moved(patterns[other], generator)
    shown += _NOISE * generator.standard_normal(shown.shape)
    return Images(np.clip(128 + 32 * shown, 0, 255).astype(np.uint8), labels)


def _patterns(classes: int, side: int) -> npt.NDArray[np.float64]:
    """(classes, side, side): noise of low frequency, mean 0 and variance 1 each."""
    noise = np.random.default_rng(0).standard_normal((classes, side, side))
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
    smooth = np.fft.ifft2(np.fft.fft2(noise) * (frequency < 0.2)).real
    smooth -= smooth.mean(axis=(1, 2), keepdims=True)
    return smooth / smooth.std(axis=(1, 2), keepdims=True)


def _moved(
    images: npt.NDArray[np.float64], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Each by its own number of pixels in both directions; what leaves on one side comes back on
    the other."""
    count, side = images.shape[:2]
    rows, columns = (
        (np.arange(side) + generator.integers(-_LARGEST_SHIFT, _LARGEST_SHIFT + 1, (count, 1)))
        % side
        for _ in range(2)
    )
    return images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
