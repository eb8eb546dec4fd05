"""SplitMix64's finalizer: a hash that is the same on every machine and in every release.

Orders that nodes must agree on come from it, since NumPy does not promise that its generators give
the same stream for ever (NEP 19). Source: Steele, Lea, Flood: Fast Splittable Pseudorandom Number
Generators, OOPSLA 2014. All arithmetic is modulo 2^64.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

GOLDEN: Final = 0x9E3779B97F4A7C15
"""The distance between two states of SplitMix64."""
UINT64: Final = (1 << 64) - 1
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB


def mixed(value: int) -> int:
    """Return the hash of one number."""
    value = ((value ^ (value >> 30)) * _MIX_1) & UINT64
    value = ((value ^ (value >> 27)) * _MIX_2) & UINT64
    return value ^ (value >> 31)


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Hash all numbers in place, and return them."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(_MIX_1)
    values ^= values >> np.uint64(27)
    values *= np.uint64(_MIX_2)
    values ^= values >> np.uint64(31)
    return values
