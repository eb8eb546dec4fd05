"""The power and the cost of HDDs with an SSD tier, against HDDs alone (Tectonic-Shift §3.1, §6.2).

Disks are bought for two reasons: to hold the bytes, and to answer the IO. HDDs that hold the bytes
answer little IO, so HDDs alone must be many more. An SSD tier absorbs a share of the IO, and the
HDDs are provisioned for the rest.

IO is in bytes a second or in requests a second, the same for the demand and both devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dieselfs.errors import UsageError


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise UsageError(f"{name} of {value}", "give a positive number")


@dataclass(frozen=True, slots=True)
class Device:
    """One disk, or one server with its disks."""

    capacity_bytes: float
    io_per_s: float
    watts: float
    cost: float | None = None
    """Its price in any currency; None: not known."""

    def __post_init__(self) -> None:
        for name in ("capacity_bytes", "io_per_s", "watts", "cost"):
            _check_positive(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class Demand:
    """The bytes to be stored, and the IO to be answered."""

    storage_bytes: float
    """All bytes on HDDs, copies or parity included."""
    io_per_s: float

    def __post_init__(self) -> None:
        _check_positive("storage", self.storage_bytes)
        _check_positive("IO", self.io_per_s)


@dataclass(frozen=True, slots=True)
class Provision:
    """The devices that meet a demand, their power and their cost."""

    hdds: int
    ssds: int
    watts: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class Requirements:
    """The devices for the storage alone, for the IO alone, and for both: a row of Table 1."""

    storage: Provision
    io: Provision
    both: Provision


@dataclass(frozen=True, slots=True)
class PowerReport:
    """The comparison of HDDs alone, SSDs alone, and HDDs behind an SSD tier."""

    hdd: Requirements
    ssd: Requirements
    tiered: Requirements
    absorbed_share: float
    """The IO that the tier absorbs, over all IO."""
    neutral_share: float | None
    """The share that this tier must absorb to save power; None: it cannot save any."""

    @property
    def power_saving(self) -> float:
        """The power that the tier saves, over that of HDDs alone; negative if it takes more."""
        return 1 - self.tiered.both.watts / self.hdd.both.watts

    @property
    def cost_saving(self) -> float | None:
        """The cost that the tier saves, over that of HDDs alone; None if a price is not known."""
        alone, tiered = self.hdd.both.cost, self.tiered.both.cost
        return None if alone is None or tiered is None else 1 - tiered / alone


TABLE_1_DEMAND: Final = Demand(100e15, 10e12)
"""The demand of Table 1: 100 PB and 10 TB/s."""
TABLE_1_HDD: Final = Device(100e9, 10e6 / 9.92, 1e-6)
"""A millionth of the HDDs that store 100 PB. The unit of power is that of all of them.

The paper gives no capacity, bandwidth or watts, but three ratios: HDDs for the IO alone take 9.92
times the power of HDDs for the storage alone, flash for the storage 6.53 and for the IO 1.88 times.
"""
TABLE_1_SSD: Final = Device(100e9 / 6.53, 10e6 / 1.88, 1e-6)
"""Flash that takes the power of `TABLE_1_HDD`."""


def power_report(
    demand: Demand,
    hdd: Device,
    ssd: Device,
    absorbed_share: float | None = None,
    tier_bytes: float = 0.0,
) -> PowerReport:
    """Compare the power and the cost of the three ways to meet a demand.

    Without `absorbed_share` the tier absorbs all IO that the HDDs which store the bytes cannot
    answer: the ideal of Table 1. The tier has SSDs for `tier_bytes` at least. Raises `UsageError`
    for values that make no sense.
    """
    if not (math.isfinite(tier_bytes) and tier_bytes >= 0):
        raise UsageError(f"an SSD tier of {tier_bytes} bytes", "give a positive size")
    hdds, ssds = _requirements(demand, hdd, is_hdd=True), _requirements(demand, ssd, is_hdd=False)
    share = _ideal_share(demand, hdd, hdds) if absorbed_share is None else absorbed_share
    if not 0 <= share <= 1:
        raise UsageError(f"an absorbed share of {share}", "give a share from 0 to 1")
    hdds_left = max(hdds.storage.hdds, _count(demand.io_per_s * (1 - share), hdd.io_per_s))
    tier = max(
        _count(demand.io_per_s * share, ssd.io_per_s), _count(tier_bytes, ssd.capacity_bytes)
    )
    both = _provision(hdds_left, tier, hdd, ssd)
    tiered = Requirements(hdds.storage, ssds.io, both)
    return PowerReport(hdds, ssds, tiered, share, _neutral_share(hdds, tier * ssd.watts))


def _requirements(demand: Demand, device: Device, *, is_hdd: bool) -> Requirements:
    storage = _count(demand.storage_bytes, device.capacity_bytes)
    io = _count(demand.io_per_s, device.io_per_s)

    def provision(count: int) -> Provision:
        cost = None if device.cost is None else count * device.cost
        hdds, ssds = (count, 0) if is_hdd else (0, count)
        return Provision(hdds, ssds, count * device.watts, cost)

    return Requirements(provision(storage), provision(io), provision(max(storage, io)))


def _provision(hdds: int, ssds: int, hdd: Device, ssd: Device) -> Provision:
    cost = None
    if hdd.cost is not None and ssd.cost is not None:
        cost = hdds * hdd.cost + ssds * ssd.cost
    return Provision(hdds, ssds, hdds * hdd.watts + ssds * ssd.watts, cost)


def _ideal_share(demand: Demand, hdd: Device, hdds: Requirements) -> float:
    return max(0.0, 1 - hdds.storage.hdds * hdd.io_per_s / demand.io_per_s)


def _neutral_share(hdds: Requirements, tier_watts: float) -> float | None:
    """Return the share at which the HDDs that are saved take the power of the tier (Figure 10)."""
    left_watts = hdds.both.watts - tier_watts
    if left_watts < hdds.storage.watts:
        return None
    return max(0.0, 1 - left_watts / hdds.io.watts)


def _count(needed: float, of_one: float) -> int:
    return math.ceil(needed / of_one - 1e-9)
