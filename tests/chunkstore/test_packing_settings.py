"""The four bytes that remember how a dataset is packed."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.chunk_writer import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES
from chunkstore.errors import Corrupt
from chunkstore.keep_together import KeepTogether
from chunkstore.packing_settings import Order, PackingSettings


@given(
    st.integers(MIN_CHUNK_BYTES // 64, MAX_CHUNK_BYTES // 64).map(lambda units: 64 * units),
    st.sampled_from(get_args(Order)),
    st.sampled_from(get_args(KeepTogether)),
)
def test_round_trip(target_bytes: int, order: Order, kept: KeepTogether) -> None:
    settings = PackingSettings(target_bytes, order, kept)
    assert 0 < settings.encode() < 1 << 32
    assert PackingSettings.decode(settings.encode()) == settings


def test_the_bits_stay() -> None:
    """Changed? Then bump VERSION: stores have these numbers."""
    assert PackingSettings().encode() == 0x00FFFF01
    assert PackingSettings(1 << 30, "given", "directory").encode() == 0xFFFFFFA1
    assert PackingSettings(4096, "path", "sample").encode() == 0x00003F51


def test_a_size_is_rounded_up_to_what_the_record_can_hold() -> None:
    decoded = PackingSettings.decode(PackingSettings(10_000).encode())
    assert decoded.target_bytes == 10_048


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (0x00000001, "chunks of 64 bytes"),
        (0x00003E01, "chunks of 4,032 bytes"),
        (0x00FFFF02, "version 2"),
        (0x00FFFF00, "version 0"),
        (0x00FFFF31, "order 3"),
        (0x00FFFFC1, "keep-together 3"),
    ],
)
def test_what_makes_no_sense_is_refused(record: int, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        PackingSettings.decode(record)
