"""docs/getting-started.md does what it says: its blocks run in their order and print what it shows.

The shell blocks run in one shell and the Python blocks in one interactive Python, as a reader's do.
In the page's output a number stands for any number, and `…` for any text without a space.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.mount_table import entry_at
from dieselfs.fuse.mounts.mountpoint import unmount
from dieselfs.fuse.supervision.daemonize import default_log_file
from tests.mount.mounting import needs_fuse

CHECKOUT = Path(__file__).parents[1]
PAGE = CHECKOUT / "docs/getting-started.md"
IMAGES = {"cat": 120, "dog": 100, "owl": 80}
END = "-- end of block --"

# The environment of the tests is what `make setup` and `make torch` make.
SHELL = """
set -eo pipefail
make() { grep -q "^$1:" Makefile; }
"""

# The import lets torchvision load beside a torch that was built without CUDA.
PYTHON = f"""
import code, json, sys
import tests.dieselfs.integrations.imagefolder

class Console(code.InteractiveConsole):
    def showtraceback(self): raise
    def showsyntaxerror(self, *args, **options): raise

console = Console()
for line in sys.stdin:
    for source in [*json.loads(line).splitlines(), ""]:
        incomplete = console.push(source)
    assert not incomplete
    print({END!r}, flush=True)
"""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text()
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


class Session:
    """A program that reads blocks from its standard input and marks the end of their output."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=CHECKOUT,
            text=True,
        )

    def run(self, source: str) -> list[str]:
        """Run a block and return the lines that it prints."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{source}\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line.rstrip("\n") == END:
                return lines
            lines.append(line.rstrip("\n"))
        pytest.fail(f"it failed with code {self._process.wait()}:\n{source}\n" + "\n".join(lines))

    def end(self) -> int:
        """Close the program's input, so that it ends, and return its exit code."""
        assert self._process.stdin
        self._process.stdin.close()
        return self._process.wait()

    def kill(self) -> None:
        with self._process:  # which closes its pipes and waits for it
            self._process.kill()


def pattern_of(line: str) -> re.Pattern[str]:
    """Return the pattern of the lines for which a line of the page stands."""
    if line.startswith("front: "):
        return re.compile("front: .*")  # the machine's
    pattern = ""
    for part in re.findall(r"[\w-]*…|\d[\d.,]*| +|.", line):
        if part.endswith("…"):
            pattern += r"\S*"
        elif part[0].isdigit():
            pattern += r"\d[\d.,]*"
        else:
            pattern += " +" if part[0] == " " else re.escape(part)
    return re.compile(pattern)


def check_output(shown: Block, printed: list[str]) -> None:
    """Check that the lines of the page were printed, in this order, perhaps among others."""
    rest = iter(printed)
    for line in shown.text.splitlines():
        pattern = pattern_of(line)
        assert any(pattern.fullmatch(found.rstrip()) for found in rest), (
            f"{PAGE.name}:{shown.line}: no line {line!r} in\n" + "\n".join(printed)
        )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The reader's home with a folder of images; no mount stays in it."""
    home = tmp_path / "home"
    make_images(home / "images")
    for name in [name for name in os.environ if name.startswith("DIESELFS_")]:
        if name not in ("DIESELFS_TEST_RUN", "DIESELFS_MEMORY_FOLDER"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / ".local/share"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local/state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    yield home
    mountpoint = home / "mnt"
    while entry_at(mountpoint) is not None:
        unmount(mountpoint, lazy=True)
    default_log_file(mountpoint).unlink(missing_ok=True)


def make_images(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow comes with torch")
    numbers = random.Random(1)
    for name, count in IMAGES.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            picture = image.frombytes("RGB", (48, 48), numbers.randbytes(48 * 48 * 3))
            picture.save(folder / name / f"{number:03}.jpg")


@needs_fuse
@pytest.mark.timeout(300)  # 15 s of computing, which a busy machine stretches
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_page_runs(home: Path) -> None:
    blocks = blocks_of(PAGE)
    of_python = [block for block in blocks if block.language == "python"]
    shell, python = Session("bash"), Session(sys.executable, "-c", PYTHON)
    printed: list[str] = []
    try:
        shell.run(f"{SHELL}echo {END}")
        for block in blocks:
            if block.language == "sh":
                printed = shell.run(f"{{\n{block.text}}} </dev/null\necho {END}")
            elif block.language == "python":
                printed = python.run(json.dumps(block.text))
                if block is of_python[-1]:
                    assert python.end() == 0
            else:
                assert block.language == "text"
                check_output(block, printed)
        assert shell.end() == 0
    finally:
        shell.kill()
        python.kill()
    assert entry_at(home / "mnt") is None
    left = sorted(path.name for path in home.iterdir())
    assert left == [".local", "images", "mnt"]
    stored = home / ".local/share/dieselfs/store"
    assert [path for path in stored.rglob("*") if path.is_file()] == []


def test_the_pages_output_is_compared() -> None:
    shown = Block("text", "put 3 files, 1.7 MiB\nmounted pets@2-6c99… at …/mnt\n", 1)
    check_output(shown, ["put 1,270 files, 12 MiB", "a warning", "mounted pets@12-8d at /a/b/mnt"])
    with pytest.raises(AssertionError, match="no line 'mounted"):
        check_output(shown, ["mounted pets@12-8d at /mnt", "put 3 files, 1 MiB"])
