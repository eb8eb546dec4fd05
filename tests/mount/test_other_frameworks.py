"""The programs of docs/other-frameworks.md, as they stand there: each takes the order of an epoch
from the mount and reads in it, and the mount fetches what comes next.

TensorFlow and DALI are in an environment of their own: `make test-frameworks` makes it. Where they
are installed beside pytest, their programs are tested there.
"""

import io
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.eventually import eventually
from tests.mount.mounting import Mount, both_fronts, mounted
from tests.mount.packing import PackedDataset, pack, write_file

PAGE = Path(__file__).parents[2] / "docs/other-frameworks.md"
FOLDER = "DIESELFS_FRAMEWORKS"
CLASSES = ("cat", "dog", "owl")
IMAGES = 240
MEMORY = 2_000_000
"""For some 3 MB."""
EPOCHS = 2

pytestmark = both_fronts


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    image = pytest.importorskip("PIL.Image")
    dice = random.Random(1)
    folder = tmp_path_factory.mktemp("images")
    for number in range(IMAGES):
        buffer = io.BytesIO()
        picture = image.frombytes("RGB", (64, 64), dice.randbytes(64 * 64 * 3))
        picture.save(buffer, "JPEG", quality=95)
        name = f"{number:03}.jpg"
        write_file(folder / "source" / CLASSES[number % 3] / name, buffer.getvalue())
    return pack(folder / "source", folder, target_bytes=64 << 10)


@pytest.fixture
def mount(images: PackedDataset, tmp_path: Path) -> Iterator[Mount]:
    with mounted(images, tmp_path, "--cache-bytes", str(MEMORY)) as mount:
        yield mount


def program(name: str, mount: Mount) -> str:
    """A program of the page, over this mount, with groups that its memory has room for."""
    [block] = [block for block in blocks_of(PAGE) if block.file == f"~/{name}"]
    assert "/mnt/imagenet" in block.text
    assert "group=100" in block.text
    return block.text.replace("/mnt/imagenet", str(mount.path)).replace("group=100", "group=4")


def printed_by(*command: str | Path) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_reader_in_cpp(mount: Mount, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    source = tmp_path / "reader.cc"
    source.write_text(program("read_epochs.cc", mount))
    reader = tmp_path / "reader"
    printed_by("g++", "-std=c++17", "-O2", "-Wall", "-Werror", "-o", reader, source)
    said = printed_by(reader)
    size = sum(path.stat().st_size for path in mount.path.glob("*/*.jpg"))
    assert said == [f"epoch {epoch}: {IMAGES} files, {size} bytes" for epoch in range(EPOCHS)]
    was_followed(mount)


@pytest.mark.parametrize("framework", ["tensorflow", "nvidia.dali"])
def test_a_framework(mount: Mount, tmp_path: Path, framework: str) -> None:
    name = framework.rpartition(".")[2]
    source = tmp_path / "train.py"
    source.write_text(program(f"train_{name}.py", mount))
    said = printed_by(interpreter_with(framework), source)
    batches = [line.split()[0] for line in said]
    assert batches == [str(epoch) for epoch in range(EPOCHS) for _ in range(-(-IMAGES // 64))]
    was_followed(mount)


def interpreter_with(framework: str) -> Path:
    """The Python that has a framework: of the environment that is named, or this one."""
    if folder := os.environ.get(FOLDER):
        return Path(folder).absolute() / "bin/python"
    if find_spec(framework.partition(".")[0]) is None:
        pytest.skip(f"{framework} is not installed; make test-frameworks tests it")
    return Path(sys.executable)


def was_followed(mount: Mount) -> None:
    """Check that the mount took the order, and fetches along it within its memory.

    A reader of so few files may be as quick as the fetches.
    """
    chunks = mount.control("dataset.json")["chunks"]
    assert chunks > 16
    eventually(lambda: mount.statistics()["plan"]["fetched"] > chunks // 2, "chunks of the plan")
    found = mount.statistics()
    assert found["plan"]["files"] == IMAGES
    assert found["plan"]["skipped"] == 0
    assert found["cache"]["node"]["cached_bytes"] <= MEMORY
    assert "Traceback" not in mount.log
