"""`dlcmd advise --power`: Table 1, devices with prices, and figures that make no sense."""

from __future__ import annotations

import pytest

from tests.dieselfs.cli.conftest import Dlcmd

DEVICES = (
    *("--hdd-device", "capacity=20TB,io=150MB/s,watts=9,cost=300"),
    *("--ssd-device", "capacity=8TB,io=5GB/s,watts=15,cost=800"),
)


def test_without_devices_it_is_table_1(dlcmd: Dlcmd) -> None:
    lines = dlcmd("advise", "--power", "--absorbed", "36%").lines
    assert lines[0].startswith("100 PB and 10 TB/s; power over")
    assert [line.split() for line in lines[2:6]] == [
        ["STORAGE", "IO", "BOTH"],
        ["HDD", "1.00", "9.92", "9.92"],
        ["SSD", "6.53", "1.88", "6.53"],
        ["HDD", "+", "SSD", "1.00", "1.88", "7.03"],
    ]
    assert "36.0% of the IO takes 29.2% less power" in lines[7]


def test_devices_have_counts_and_prices(dlcmd: Dlcmd) -> None:
    demand = ("--storage", "400TB", "--io", "20GB/s", "--absorbed", "70%", "--tier-size", "50TB")
    lines = dlcmd("advise", "--power", *demand, *DEVICES).lines
    assert lines[5].split() == [
        "HDD",
        "+",
        "SSD",
        "180",
        "60",
        "474",
        "41",
        "HDD",
        "+",
        "7",
        "SSD",
        "17,900",
    ]
    assert max(map(len, lines)) <= 80


def test_io_may_be_in_requests(dlcmd: Dlcmd) -> None:
    devices = ("capacity=20TB,io=150,watts=9", "capacity=8TB,io=50000 IOPS,watts=15")
    options = ("--hdd-device", devices[0], "--ssd-device", devices[1], "--storage", "10TB")
    (found,) = dlcmd("advise", "--power", "--io", "5000", *options, "--json").records
    assert (found["hdd"]["both"]["hdds"], found["tiered"]["both"]["hdds"]) == (34, 1)
    assert found["cost_saving"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "nothing to advise on"),
        (("--power", "--io", "nan"), "'nan' is not a rate"),
        (("--power", "--io", "5000"), "Table 1 has IO in bytes a second"),
        (("--power", "--storage", "0"), "storage of 0"),
        (("--power", *DEVICES), "needs both devices and the demand"),
        (("--power", *DEVICES, "--storage", "1TB", "--io", "50"), "and in requests a second"),
        (
            (
                "--power",
                *DEVICES[:3],
                "capacity=8TB,io=1GB,watts=nan",
                "--storage",
                "1",
                "--io",
                "1GB",
            ),
            "watts of nan",
        ),
        (("--power", *DEVICES[:3], "8TB", "--storage", "1", "--io", "1GB"), "not the figures"),
        (("--storage", "1TB"), "add --power"),
    ],
)
def test_figures_that_make_no_sense(dlcmd: Dlcmd, options: tuple[str, ...], said: str) -> None:
    found = dlcmd("advise", *options)
    assert (found.code, found.out) == (2, b"")
    assert said in found.err
