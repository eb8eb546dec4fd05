"""JOBS.csv: units, and each thing that can be wrong, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dieselfs.allocation.job_table import COLUMNS, byte_rate, parse_job_table, read_job_table
from dieselfs.allocation.jobs import Job
from dieselfs.errors import LocalFileError, UsageError

HEADER = ",".join(COLUMNS)
GOOD = "a,imagenet,143GiB,114MB/s,2,13,0,yes"


def table(*lines: str) -> str:
    return "\n".join((HEADER, *lines)) + "\n"


def test_units_spaces_and_empty_lines() -> None:
    jobs = parse_job_table(table(GOOD, "", " b , web, 1.5e12, 8e6, 4, 0.07, 60, false"))
    assert jobs == [
        Job("a", "imagenet", 143 << 30, 114.0 * (1 << 20), 2, 13.0),
        Job("b", "web", 1_500_000_000_000, 8e6, 4, 0.07, 60.0, regular=False),
    ]


def test_columns_in_any_order_and_jobs_that_repeat_items() -> None:
    header = "repeats_items," + ",".join(reversed(COLUMNS))
    (job,) = parse_job_table(f"{header}\ntrue,no,5,1,1,10MB/s,1GB,data,a\n")
    assert (job.name, job.submitted_s, job.regular, job.repeats_items) == ("a", 5.0, False, True)


def test_what_the_cache_knows_of_an_order() -> None:
    header, line = ",".join((*COLUMNS, "order")), "1GB,10MB/s,1,5,0,yes"
    told, drawn, nothing = parse_job_table(
        f"{header}\na,data,{line},told\nb,data,{line},Draws\nc,data,{line},\n"
    )
    assert (told.order, drawn.order, nothing.order) == ("told", "draws", "random")
    assert (told.repeats_items, drawn.repeats_items) == (False, True)
    with pytest.raises(UsageError, match="line 2: order of sorted: it must be one of random, told"):
        parse_job_table(f"{header}\na,data,{line},sorted\n")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("b,d,0,114MB/s,1,1,0,yes", "dataset_bytes of 0"),
        ("b,d,-5GB,114MB/s,1,1,0,yes", "dataset_bytes of -5GB"),
        ("b,d,-5,114MB/s,1,1,0,yes", "dataset_bytes of -5"),
        ("b,d,nan,114MB/s,1,1,0,yes", "dataset_bytes of nan"),
        ("b,d,1e30,114MB/s,1,1,0,yes", "mistake of units"),
        ("b,d,2EB,114MB/s,1,1,0,yes", "mistake of units"),
        (f"b,d,{'9' * 400}TB,114MB/s,1,1,0,yes", "not a size"),
        ("b,d,1GB,1e20,1,1,0,yes", "mistake of units"),
        ("b,d,1GB,inf,1,1,0,yes", "speed_bytes_per_s of inf"),
        (f"b,d,1GB,{'9' * 400}MB/s,1,1,0,yes", "not a rate"),
        ("b,d,1GB,-1MB/s,1,1,0,yes", "speed_bytes_per_s of -1MB/s"),
        ("b,d,1GB,1MB/s,-1,1,0,yes", "gpus of -1"),
        ("b,d,1GB,1MB/s,1000000,1,0,yes", "mistake of units"),
        ("b,d,1GB,1MB/s,1,nan,0,yes", "passes of nan"),
        ("b,d,1GB,1MB/s,1,1,nan,yes", "submitted_s of nan"),
        ("b,,1GB,1MB/s,1,1,0,yes", "dataset is empty"),
        ("b,d,1GB,nan,1,1,0,yes", "speed_bytes_per_s of nan"),
        ("b,d,1GB,-1,1,1,0,yes", "speed_bytes_per_s of -1"),
        ("b,d,1GB,0,1,1,0,yes", "speed_bytes_per_s of 0"),
        ("b,d,1GB,fast,1,1,0,yes", "not a rate"),
        ("b,d,1GB,912Mbit/s,1,1,0,yes", "not in bits"),
        ("b,d,1GB,1.6Gbps,1,1,0,yes", "not in bits"),
        ("b,d,1GB,912 Mb/s,1,1,0,yes", "not in bits"),
        ("b,d,1GB,1MB/s,0,1,0,yes", "gpus of 0"),
        ("b,d,1GB,1MB/s,1.5,1,0,yes", "whole number"),
        ("b,d,1GB,1MB/s,1,inf,0,yes", "passes of inf"),
        ("b,d,1GB,1MB/s,1,0,0,yes", "passes of 0"),
        ("b,d,1GB,1MB/s,1,1,-1,yes", "submitted_s of -1"),
        ("b,d,1GB,1MB/s,1,1,0,perhaps", "regular of perhaps"),
        ("b,d,1GB,1MB/s,1,1,0", "regular is empty"),
        ("b,d,1GB,1MB/s,1,1,0,yes,more", "more values than columns"),
        (",d,1GB,1MB/s,1,1,0,yes", "job is empty"),
        ("a,d,1GB,1MB/s,1,1,0,yes", "job a is there twice, first in line 2"),
        ("b,imagenet,1GB,1MB/s,1,1,0,yes", "dataset imagenet has 1073741824 bytes here"),
        ('b,"d,1GB,1MB/s,1,1,0,yes', "unexpected end of data"),
    ],
)
def test_a_bad_line_is_named(line: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as error:
        parse_job_table(table(GOOD, line), "jobs.csv")
    assert "jobs.csv, line 3" in str(error.value)
    assert "nothing is allocated" in str(error.value.hint)


def test_all_bad_lines_are_named_at_once() -> None:
    lines = [f"b{number},d,0,1,1,1,0,yes" for number in range(20)]
    with pytest.raises(UsageError) as error:
        parse_job_table(table(*lines))
    assert str(error.value).splitlines()[0].startswith("the table, line 2: ")
    assert str(error.value).splitlines()[-1] == "and 10 more lines"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "missing column job"),
        (HEADER.replace(",passes", "") + "\n", "line 1: missing column passes"),
        (HEADER + ",colour\n", "line 1: unknown column colour"),
        (HEADER + ",job\n", "twice"),
        (HEADER + "\n", "has no jobs"),
    ],
)
def test_a_bad_head(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        parse_job_table(text)


def test_files(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("\ufeff" + table(GOOD), encoding="utf-8")
    assert len(read_job_table(tmp_path / "jobs.csv")) == 1
    (tmp_path / "jobs.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not text"):
        read_job_table(tmp_path / "jobs.csv")
    with pytest.raises(LocalFileError):
        read_job_table(tmp_path / "absent.csv")


def test_rates_of_options() -> None:
    assert byte_rate("--remote-io", "200MB/s") == 200 << 20
    assert byte_rate("--remote-io", "1e9") == 1e9
    with pytest.raises(UsageError, match="rates are in bytes"):
        byte_rate("--remote-io", "1.6Gbps")
