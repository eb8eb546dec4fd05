"""`dlcmd alloc plan`: the table, the records, the reasons in words, and bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dieselfs.cli.conftest import Dlcmd

HEADER = "job,dataset,dataset_bytes,speed_bytes_per_s,gpus,passes,submitted_s,regular"
TABLE_6 = f"""{HEADER}
resnet-1,data-1,1.3TB,114MB/s,1,13,0,yes
resnet-2,data-2,1.3TB,114MB/s,1,13,0,yes
efficientnet-1,data-3,1.3TB,69MB/s,1,10,0,yes
efficientnet-2,data-4,1.3TB,69MB/s,1,10,0,yes
bert,web-search,20.9TB,8MB/s,4,0.07,0,yes
"""
TOTALS = ("--cache", "2TB", "--remote-io", "200MB/s")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "jobs.csv").write_text(TABLE_6)
    return tmp_path / "jobs.csv"


def test_the_table_and_its_sums(dlcmd: Dlcmd, table: Path) -> None:
    lines = dlcmd("alloc", "plan", table, *TOTALS).lines
    assert lines[0].split()[:4] == ["JOB", "DATASET", "GPUS", "CACHE"]
    assert len(lines) == 8
    assert lines[7].startswith("in all 2.0 TiB of 2.0 TiB cache and 199 MiB/s of 200 MiB/s remote")


@pytest.mark.parametrize("policy", ["greedy", "fifo", "sjf", "max-min"])
def test_records_follow_equation_4(dlcmd: Dlcmd, table: Path, policy: str) -> None:
    found = dlcmd("alloc", "plan", table, "--policy", policy, *TOTALS, "--json").records
    assert sum(each["cache_bytes"] for each in found) == 2 << 40
    sizes = {"bert": 20.9 * (1 << 40)}
    for each in found:
        misses = 1 - each["cache_bytes"] / sizes.get(each["job"], 1.3 * (1 << 40))
        loading = each["io_bytes_per_s"] / misses if misses > 1e-9 else 1e12
        assert each["speed_bytes_per_s"] <= loading * (1 + 1e-6)
        assert each["limited_by"] == "speed"


def test_jobs_that_tell_their_orders(dlcmd: Dlcmd, tmp_path: Path) -> None:
    line = "data,1TB,100MB/s,1,10,0,yes"
    (tmp_path / "told.csv").write_text(f"{HEADER},order\na,{line},told\nb,{line},told\n")
    options = ("--cache", "512GiB", "--remote-io", "40MB/s", "--explain")
    found = dlcmd("alloc", "plan", tmp_path / "told.csv", *options, "--json").records
    speeds = [each["speed_bytes_per_s"] / (1 << 20) for each in found]
    assert speeds == pytest.approx([20 / (1 - 0.719)] * 2, rel=1e-2)
    assert "Without that it would answer 50%." in " ".join(found[0]["explanation"])
    other = dlcmd("alloc", "plan", tmp_path / "told.csv", "--system", "coordl", *options, "--json")
    assert [each["speed_bytes_per_s"] for each in other.records] == [40 << 20] * 2


def test_the_reasons_in_words(dlcmd: Dlcmd, table: Path) -> None:
    options = ("--policy", "greedy", "--cache", "2TB", "--remote-io", "100MB/s", "--explain")
    text = "\n".join(dlcmd("alloc", "plan", table, *options).lines)
    assert "54% of its reads, and the rest arrives at 30.7 MiB/s: remote IO limits it." in text
    assert "One more GiB of cache would bring it" in text
    assert "No job has more remote IO; 3 jobs in all got" in text
    assert "Cache is with data-1 (1.3 TiB, 87.7 KiB/s), data-2 (717 GiB, 87.7 KiB/s), " in text
    assert "where a GiB spares more" in text
    assert "It ends before it reads a byte twice" in text
    assert "not effective until its first epoch ends" in text
    records = dlcmd("alloc", "plan", table, *options, "--json").records
    assert all(record["explanation"] for record in records)


def test_systems(dlcmd: Dlcmd, table: Path) -> None:
    def cached(system: str) -> dict[str, int]:
        records = dlcmd("alloc", "plan", table, "--system", system, *TOTALS, "--json").records
        return {record["job"]: record["cache_bytes"] >> 30 for record in records}

    assert cached("quiver") | {"resnet-1": 0} == dict.fromkeys(cached("silod"), 0)
    assert cached("coordl")["bert"] == 1024
    assert sum(cached("alluxio").values()) == pytest.approx(2048, abs=8)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--cache", "2TB"), "--remote-io is not given"),
        (("--remote-io", "1GB/s"), "--cache is not given"),
        ((*TOTALS, "--policy", "best"), "unknown policy 'best'"),
        ((*TOTALS, "--system", "redis"), "unknown system 'redis'"),
        ((*TOTALS, "--system", "quiver", "--policy", "greedy"), "greedy is a policy of SiloD"),
        (("--cache", "2TB", "--remote-io", "1.6Gbps"), "not in bits"),
        (("--cache", "2TB", "--remote-io", "nan"), "--remote-io of nan"),
    ],
)
def test_bad_options(dlcmd: Dlcmd, table: Path, options: tuple[str, ...], what: str) -> None:
    found = dlcmd("alloc", "plan", table, *options)
    assert found.code == 2
    assert what in found.err
    assert not found.out


def test_a_bad_line_allocates_nothing(dlcmd: Dlcmd, table: Path) -> None:
    table.write_text(TABLE_6 + "bert,other,0,8MB/s,4,1,0,yes\n")
    found = dlcmd("alloc", "plan", table, *TOTALS, "--json")
    assert (found.code, found.out) == (2, b"")
    assert "jobs.csv, line 7: dataset_bytes of 0: it must be more than 0" in found.err
    assert dlcmd("alloc", "plan", table.parent / "absent.csv", *TOTALS).code != 0
