"""`dlcmd shuffle --report` on datasets packed in both orders."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.dieselfs.cli.conftest import Dlcmd

CLASSES = 12
IN_CLASS = 96


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for number in range(CLASSES):
        folder = root / f"train/c{number:02d}"
        folder.mkdir(parents=True)
        for image in range(IN_CLASS):
            (folder / f"{image}.raw").write_bytes(bytes([number]) * 400)
    (root / "readme.txt").write_bytes(b"hello")
    return root


@pytest.fixture
def packed(dlcmd: Dlcmd, folders: Path) -> None:
    for order in ("path", "scatter"):
        put = ("put", "-j", "1", "--order", order, "--chunk-size", "8KiB", f"{folders}/", order)
        assert dlcmd(*put).code == 0


@pytest.mark.usefixtures("packed")
def test_class_sorted_packing_is_warned_of_with_what_to_do(dlcmd: Dlcmd) -> None:
    result = dlcmd("shuffle", "path", "--report", "--under", "train")
    text = result.out.decode()
    assert result.code == 0
    assert "warning: packed sorted by class: a chunk holds 1." in text
    assert "dlcmd put SOURCE/ dl://path-mixed" in text
    good = dlcmd("shuffle", "scatter", "--report", "--under", "train").out.decode()
    assert "warning" not in good
    assert "as good as a full shuffle: groups of" in good


@pytest.mark.usefixtures("packed")
def test_the_table_lists_references_and_groups(dlcmd: Dlcmd) -> None:
    lines = dlcmd("shuffle", "path", "--report", "--group", "2", "--group", "9").lines
    assert f"{CLASSES * IN_CLASS + 1:,} files of {CLASSES + 1} classes" in lines[0]
    names = [line[:16].strip() for line in lines[2 : lines.index("", 2)]]
    assert (names[0], names[1], names[-1]) == ("ORDER", "full shuffle", "directory order")
    assert {"group 9", "group 2"} <= set(names[2:-1])


@pytest.mark.usefixtures("packed")
def test_json_is_one_object_with_everything(dlcmd: Dlcmd) -> None:
    options = ("--report", "--under", "train", "--batch", "64", "--group", "1", "--group", "20")
    (bad,) = dlcmd("shuffle", "path", *options, "--json").records
    (good,) = dlcmd("shuffle", "scatter", *options, "--json").records
    assert (bad["files"], bad["classes"], bad["batch"]) == (CLASSES * IN_CLASS, CLASSES, 64)
    assert bad["chunk_classes"]["sorted_by_class"]
    assert not good["chunk_classes"]["sorted_by_class"]
    assert [group["group_size"] for group in bad["groups"]] == [1, 20]
    assert (
        bad["groups"][0]["order"]["classes_per_batch"]["mean"]
        < 6
        < 11
        < good["groups"][0]["order"]["classes_per_batch"]["mean"]
    )
    assert not bad["groups"][0]["close_to_full_shuffle"]
    assert bad["recommended"]["close_to_full_shuffle"]
    assert bad["recommended"]["group_size"] > good["recommended"]["group_size"]
    assert bad["full"]["classes_per_batch"]["effective_batch"] > 40


@pytest.mark.usefixtures("packed")
def test_the_group_that_fits_the_memory_is_named(dlcmd: Dlcmd) -> None:
    assert (
        "in 64.0 KiB fit groups of 6 chunks"
        in dlcmd("shuffle", "path", "--report", "--memory", "64KiB").out.decode()
    )
    assert (
        "in 9.0 KiB no group fits"
        in dlcmd("shuffle", "path", "--report", "--memory", "9KiB").out.decode()
    )


@pytest.mark.usefixtures("packed")
def test_the_plot_is_svg_that_parses(dlcmd: Dlcmd, tmp_path: Path) -> None:
    plot = tmp_path / "classes.svg"
    assert dlcmd("shuffle", "path", "--report", "--plot", plot).code == 0
    root = ET.parse(plot).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Classes in 256 samples", "full shuffle", "directory order"} <= texts


def test_one_class_is_said_to_tell_nothing(dlcmd: Dlcmd, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number in range(3):
        (flat / f"{number}.raw").write_bytes(b"x")
    assert dlcmd("put", f"{flat}/", "flat").code == 0
    result = dlcmd("shuffle", "flat", "--report", "--plot", tmp_path / "flat.svg")
    assert result.code == 0
    assert "all files are of one class" in result.out.decode()
    assert ET.parse(tmp_path / "flat.svg").getroot() is not None


def test_a_dataset_without_files_has_no_report(dlcmd: Dlcmd, tmp_path: Path) -> None:
    (tmp_path / "none/empty").mkdir(parents=True)
    assert dlcmd("put", f"{tmp_path}/none/", "none").code == 0
    result = dlcmd("shuffle", "none", "--report")
    assert result.code == 2
    assert "no file to measure" in result.err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--plot", "a.svg"], "add --report"),
        (["--memory", "1GiB"], "add --report"),
        (["--group", "1", "--group", "2"], "an order has one --group"),
        (["--report", "-0"], "leave out --rank"),
        (["--report", "--world", "2"], "leave out --rank"),
        (["--report", "--plot", "a.png"], "write a.svg"),
        (["--report", "--under", "test"], "no such directory in pets: see `dlcmd ls pets`"),
        (["--report", "--group", "0"], "--group"),
    ],
)
@pytest.mark.usefixtures("pets")
def test_wrong_usage_is_told(dlcmd: Dlcmd, options: list[str], reason: str) -> None:
    result = dlcmd("shuffle", "pets", *options)
    assert result.code == 2
    assert reason in result.err


def test_packing_by_path_names_the_report(dlcmd: Dlcmd, folders: Path) -> None:
    by_path = dlcmd("put", "--order", "path", f"{folders}/", "a")
    assert "dlcmd shuffle a --report" in by_path.err
    assert "--report" not in dlcmd("put", f"{folders}/", "b").err
