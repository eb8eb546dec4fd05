"""A laptop packs into a bucket: the commands that need no mount work with the Python of a Mac.

`as_macos` says how far this machine can show that.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user who has packed nothing yet, with three files to pack."""
    for name in [*os.environ]:
        if name.startswith(("DIESELFS_STORE", "DIESELFS_INDEX", "DIESELFS_PROFILE", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.delenv("DIESELFS_MEMORY_FOLDER", raising=False)
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    for name, content in {
        "cat/1.jpg": b"1" * 3_000_000,
        "cat/2.jpg": b"2",
        "dog/3.jpg": b"",
    }.items():
        file = tmp_path / "pets" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return tmp_path


def run(*command: str, exit_code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout + done.stderr


def on_macos(*arguments: str, exit_code: int = 0) -> str:
    return run("tests.dieselfs.cli.as_macos", *arguments, exit_code=exit_code)


def content_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_every_command_shows_its_help(home: Path) -> None:
    assert "put" in on_macos("--help")
    assert on_macos("every", "help") == ""


def test_packs_into_a_bucket_and_reads_from_it(home: Path, s3_url: str) -> None:
    places = ("--store", s3_url)
    assert "put 3 files" in on_macos("put", *places, "-j", "2", f"{home}/pets/", "pets")
    assert "cat/\ndog/\n" in on_macos("ls", *places, "pets")
    on_macos("get", *places, "pets", f"{home}/copied")
    assert content_of(home / "copied") == content_of(home / "pets")


def test_packs_into_a_folder(home: Path) -> None:
    on_macos("put", "-j", "1", f"{home}/pets/", "pets")
    on_macos("snapshot", "create", "pets")
    on_macos("get", "pets@2", f"{home}/copied")
    assert content_of(home / "copied") == content_of(home / "pets")
    assert "3 files" in on_macos("ls", "-r", "--count-only", "pets")
    on_macos("fsck", "pets")


def test_a_program_packs(home: Path) -> None:
    program = (
        "from tests.dieselfs.cli.as_macos import become_macos; become_macos(); import dieselfs\n"
        "with dieselfs.connect('pets', create=True) as client:\n"
        "    client.put(b'1', 'cat/1.jpg'); client.flush()\n"
        "    assert client.get('cat/1.jpg') == b'1'\n"
        "    try: client.shuffle(seed=1, epoch=0, memory_bytes=1 << 25)\n"
        "    except dieselfs.DieselFSError as error: assert 'needs Linux' in str(error), error\n"
        "    else: raise AssertionError\n"
        "try: import dieselfs.cache.ssd.settings\n"
        "except ImportError as error: assert 'needs Linux' in str(error), error\n"
        "else: raise AssertionError\n"
        "import os; os.environ['DIESELFS_SSD'] = 'ssd'\n"
        "with dieselfs.connect('pets') as client:\n"
        "    try: client.get('cat/1.jpg')\n"
        "    except dieselfs.DieselFSError as error: assert 'needs Linux' in str(error), error\n"
        "    else: raise AssertionError\n"
        "try: dieselfs.mount\n"
        "except AttributeError as error: assert 'needs Linux' in str(error), error\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=True)


@pytest.mark.parametrize("command", ["mount pets /mnt", "umount /mnt", "mounts", "mountd"])
def test_a_mount_needs_linux(home: Path, command: str) -> None:
    shown = on_macos(*command.split(), exit_code=1)
    assert "needs Linux" in shown
    assert "internal error" not in shown
