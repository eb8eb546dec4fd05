"""The folder of a test that passed is emptied, that of a failed one stays."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent
TESTS = """
import pytest

@pytest.fixture
def ends_badly():
    yield
    raise OSError

@pytest.mark.parametrize("repeated", range(2))
def test_passes(tmp_path, repeated):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()

def test_removes(tmp_path):
    tmp_path.rmdir()

def test_fails(tmp_path):
    (tmp_path / "kept").touch()
    raise OSError

def test_fails_late(ends_badly, tmp_path):
    (tmp_path / "kept").touch()
"""


def test_the_folder_of_a_test_that_passed_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "test_inner.py").write_text(TESTS)
    base = tmp_path / "base"
    options = ["-p", "tests.emptied_folders", "-p", "no:cacheprovider", "-c", "/dev/null"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--basetemp", base, tmp_path / "test_inner.py"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 4 passed, 1 error" in result.stdout
    folders = [folder for folder in base.iterdir() if not folder.is_symlink()]
    left = {folder.name: [path.name for path in folder.iterdir()] for folder in folders}
    assert left == {
        "test_passes_0_0": [],
        "test_passes_1_0": [],
        "test_removes0": [],
        "test_fails0": ["kept"],
        "test_fails_late0": ["kept"],
    }, result.stdout
