"""`dlcmd advise --power`: the power and the cost of HDDs with an SSD tier, as a table."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Final

from dieselfs.cache.advice.power import (
    TABLE_1_DEMAND,
    TABLE_1_HDD,
    TABLE_1_SSD,
    Demand,
    Device,
    PowerReport,
    Provision,
    Requirements,
    power_report,
)
from dieselfs.cli.rendering.output import Output
from dieselfs.cli.values.sizes import human_size, parse_size
from dieselfs.errors import UsageError

_RATE: Final = re.compile(r"(.*?)\s*(/s|iops)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PowerRequest:
    """The options of the calculation, as the command line gives them; None: the paper's."""

    storage_bytes: int | None
    io: str | None
    hdd: str | None
    ssd: str | None
    absorbed_share: float | None
    tier_bytes: int | None


def print_power(output: Output, request: PowerRequest) -> None:
    """Print the calculation; raise `UsageError` for figures that make no sense."""
    is_paper = request.hdd is request.ssd is None
    if not is_paper and None in (request.hdd, request.ssd, request.storage_bytes, request.io):
        raise UsageError(
            "a calculation for devices needs both devices and the demand",
            "give --hdd-device, --ssd-device, --storage and --io, or none of the devices",
        )
    rate = _PAPER_RATE if request.io is None else _Rate.parse(request.io)
    hdd = TABLE_1_HDD if request.hdd is None else _device("--hdd-device", request.hdd, rate)
    ssd = TABLE_1_SSD if request.ssd is None else _device("--ssd-device", request.ssd, rate)
    if is_paper and not rate.in_bytes:
        raise UsageError("Table 1 has IO in bytes a second", "write for instance --io 10TB/s")
    demand = Demand(
        TABLE_1_DEMAND.storage_bytes if request.storage_bytes is None else request.storage_bytes,
        rate.per_s,
    )
    found = power_report(demand, hdd, ssd, request.absorbed_share, request.tier_bytes or 0)
    if output.json:
        output.record(as_record(found, demand, hdd, ssd, is_paper=is_paper))
        return
    shown = "100 PB and 10 TB/s"
    if demand != TABLE_1_DEMAND:
        shown = f"{human_size(demand.storage_bytes)} and {rate.shown}"
    output.line(f"{shown}; {_unit(is_paper)}")
    output.line()
    output.table(*_table(found, is_paper=is_paper))
    output.line()
    for line in conclusions(found):
        output.line(line)


@dataclass(frozen=True, slots=True)
class _Rate:
    per_s: float
    in_bytes: bool
    """True for bytes a second, False for requests a second."""

    @classmethod
    def parse(cls, text: str) -> _Rate:
        match = _RATE.fullmatch(text.strip())
        number, unit = (match[1], (match[2] or "").lower()) if match else ("", "")
        if re.fullmatch(r"\d+(\.\d+)?", number):
            return cls(float(number), False)
        try:
            if unit != "iops":
                return cls(parse_size(number), True)
        except UsageError:
            pass
        raise UsageError(f"{text!r} is not a rate", "write for instance 150MB/s, or 150 (requests)")

    @property
    def shown(self) -> str:
        return f"{human_size(self.per_s)}/s" if self.in_bytes else f"{self.per_s:,.0f} requests/s"


_PAPER_RATE: Final = _Rate(TABLE_1_DEMAND.io_per_s, True)


def _device(option: str, text: str, demanded: _Rate) -> Device:
    """Return the device of `capacity=20TB,io=150MB/s,watts=9,cost=300`."""
    fields = dict(part.strip().partition("=")[::2] for part in text.split(","))
    if not {"capacity", "io", "watts"} <= fields.keys() <= {"capacity", "io", "watts", "cost"}:
        raise UsageError(
            f"{option} {text}: not the figures of a device",
            f"write for instance {option} capacity=20TB,io=150MB/s,watts=9,cost=300",
        )
    rate, cost = _Rate.parse(fields["io"]), fields.get("cost")
    if rate.in_bytes != demanded.in_bytes:
        raise UsageError(
            "IO in bytes a second and in requests a second", "give all of it in one unit"
        )
    try:
        watts, price = float(fields["watts"]), None if cost is None else float(cost)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}", "watts and cost are numbers") from error
    return Device(parse_size(fields["capacity"]), rate.per_s, watts, price)


def _unit(is_paper: bool) -> str:
    if is_paper:
        return "power over that of HDDs for the storage (Tectonic-Shift, Table 1)"
    return "power in watts"


def _table(found: PowerReport, *, is_paper: bool) -> tuple[list[str], list[list[str]]]:
    headings = ["", "STORAGE", "IO", "BOTH"]
    rows = [
        [name, *(_watts(part, is_paper) for part in (row.storage, row.io, row.both))]
        for name, row in _rows(found)
    ]
    if not is_paper:
        headings += ["DEVICES"]
        rows = [[*row, _devices(of.both)] for row, (_, of) in zip(rows, _rows(found), strict=True)]
    if found.cost_saving is not None:
        headings += ["COST"]
        rows = [
            [*row, f"{of.both.cost:,.0f}"] for row, (_, of) in zip(rows, _rows(found), strict=True)
        ]
    return headings, rows


def _rows(found: PowerReport) -> list[tuple[str, Requirements]]:
    return [("HDD", found.hdd), ("SSD", found.ssd), ("HDD + SSD", found.tiered)]


def _watts(part: Provision, is_paper: bool) -> str:
    return f"{part.watts:.2f}" if is_paper else f"{part.watts:,.0f}"


def _devices(part: Provision) -> str:
    counts = ((part.hdds, "HDD"), (part.ssds, "SSD"))
    return " + ".join(f"{count:,} {name}" for count, name in counts if count)


def conclusions(found: PowerReport) -> list[str]:
    """Return the lines that say what the tier saves, and from which share on."""

    def change(saving: float) -> str:
        return f"{abs(saving):.1%} {'less' if saving >= 0 else 'more'}"

    lines = [
        f"an SSD tier that absorbs {found.absorbed_share:.1%} of the IO takes "
        f"{change(found.power_saving)} power than HDDs alone"
    ]
    if found.cost_saving is not None:
        lines.append(f"it costs {change(found.cost_saving)}")
    if found.neutral_share is None:
        return [*lines, "it takes more power than all HDDs that it can replace"]
    return [*lines, f"it saves power if it absorbs more than {found.neutral_share:.1%}"]


def as_record(
    found: PowerReport, demand: Demand, hdd: Device, ssd: Device, *, is_paper: bool
) -> dict[str, object]:
    """Return the calculation with its inputs as a JSON record."""
    return {
        **asdict(found),
        "power_saving": found.power_saving,
        "cost_saving": found.cost_saving,
        "demand": asdict(demand),
        "hdd_device": asdict(hdd),
        "ssd_device": asdict(ssd),
        "watts_are": "over HDDs for the storage" if is_paper else "watts",
    }
