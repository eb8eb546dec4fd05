"""`metadata` and `chunkstore` are general names: another package of such a name is named."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder whose packages are imported before those of the checkout."""
    return tmp_path


def dlcmd(elsewhere: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    places = [elsewhere, CHECKOUT, sysconfig.get_path("platlib")]
    return subprocess.run(
        [sys.executable, "-S", "-P", "-m", "dieselfs", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_module_in_place_of_ours_is_named(elsewhere: Path) -> None:
    assert dlcmd(elsewhere, "--help").returncode == 0
    (elsewhere / "metadata.py").write_text("")
    shown = dlcmd(elsewhere, "--help")
    assert shown.returncode == 1
    assert shown.stderr == (
        f"dlcmd: {elsewhere}/metadata.py is imported as metadata in place of {CHECKOUT}/metadata; "
        "remove or rename it\n"
    )


def test_another_distribution_with_our_package_is_named(elsewhere: Path) -> None:
    (elsewhere / "metadata").mkdir()
    (elsewhere / "metadata/__init__.py").write_text("")
    described = elsewhere / "photo_metadata-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: photo-metadata\nVersion: 1.0\n"
    )
    (described / "top_level.txt").write_text("metadata\n")
    shown = dlcmd(elsewhere, "ls")
    assert shown.returncode == 1
    assert "the package metadata of DieselFS is also one of photo-metadata; " in shown.stderr


def test_another_error_of_an_import_stays_what_it_is(elsewhere: Path) -> None:
    (elsewhere / "click.py").write_text("raise ImportError('no click')")
    assert "ImportError: no click" in dlcmd(elsewhere, "ls").stderr
