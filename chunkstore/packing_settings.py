"""The settings with which a dataset is packed, as its first commit remembers them.

They are four bytes of the commit, which former releases ignore. docs/chunk-format.md defines the
bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from chunkstore.chunk_writer import DEFAULT_TARGET_BYTES, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES
from chunkstore.errors import Corrupt
from chunkstore.keep_together import KeepTogether

Order = Literal["scatter", "path", "given"]
"""How files share chunks; the place in this list is the number in the record."""

VERSION: Final = 1
_UNIT: Final = 64
_ORDERS: Final[tuple[Order, ...]] = get_args(Order)
_KEPT: Final[tuple[KeepTogether, ...]] = get_args(KeepTogether)


@dataclass(frozen=True, slots=True)
class PackingSettings:
    """The settings of a dataset."""

    target_bytes: int = DEFAULT_TARGET_BYTES
    order: Order = "scatter"
    keep_together: KeepTogether = "none"

    def encode(self) -> int:
        """Return the record. A size that is no multiple of 64 bytes is rounded up to one."""
        units = -(-self.target_bytes // _UNIT) - 1
        kept = _KEPT.index(self.keep_together)
        return VERSION | _ORDERS.index(self.order) << 4 | kept << 6 | units << 8

    @classmethod
    def decode(cls, record: int) -> PackingSettings:
        """Return the settings in a record that is not 0; `Corrupt` if they make no sense."""
        version, order, kept = record & 15, record >> 4 & 3, record >> 6 & 3
        target_bytes = ((record >> 8) + 1) * _UNIT
        if version != VERSION:
            raise Corrupt(f"they have version {version}, and this release reads {VERSION}")
        if not MIN_CHUNK_BYTES <= target_bytes <= MAX_CHUNK_BYTES:
            raise Corrupt(f"chunks of {target_bytes:,} bytes; a chunk has 4 KiB to 1 GiB")
        if order >= len(_ORDERS) or kept >= len(_KEPT):
            raise Corrupt(f"order {order} and keep-together {kept}, which this release lacks")
        return cls(target_bytes, _ORDERS[order], _KEPT[kept])
