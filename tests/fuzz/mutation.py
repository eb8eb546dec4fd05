"""Damages bytes at random: a seeded source of inputs that are nearly right, which is where decoders
go wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

_INTERESTING: Final = [0, 1, 2, 0x2F, 0x7F, 0x80, 0xFF]
_NUMBERS: Final = [0, 1, 2, 63, 64, 0xFFFF, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
_LARGE_NUMBERS: Final = [1 << 32, 1 << 48, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


def mutated(data: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """`data` after one to eight changes; `others` are inputs to take pieces from."""
    damaged = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 3, 8])):
        _change(damaged, others, draw)
    return bytes(damaged)


def _change(damaged: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    at = draw.randrange(len(damaged) + 1)
    match draw.randrange(8):
        case 0 if at < len(damaged):
            damaged[at] ^= 1 << draw.randrange(8)
        case 1 if at < len(damaged):
            damaged[at] = draw.choice(_INTERESTING)
        case 2:
            width = draw.choice([2, 4, 4, 8, 8])
            number = draw.choice(_NUMBERS + _LARGE_NUMBERS) % (1 << 8 * width)
            at -= at % width
            damaged[at : at + width] = number.to_bytes(width, draw.choice(["little", "big"]))
        case 3:
            del damaged[at:]
        case 4:
            del damaged[at : at + draw.choice([1, 2, 4, 8, 16, 64])]
        case 5:
            damaged[at:at] = draw.randbytes(draw.choice([1, 2, 4, 8, 16, 64]))
        case 6:
            other = draw.choice(others)
            start = draw.randrange(len(other) + 1)
            block = other[start : start + draw.choice([4, 16, 64, 1024])]
            damaged[at : at + len(block)] = block
        case _:  # two fields change places
            width = draw.choice([1, 4, 8, 16, 32])
            to = draw.randrange(len(damaged) + 1)
            damaged[at : at + width], damaged[to : to + width] = (
                damaged[to : to + width],
                damaged[at : at + width],
            )
