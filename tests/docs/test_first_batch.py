"""From a clean clone and an empty environment to the first batch, with README's commands alone.

The machine has the Debian packages already, and what pip downloads is not cached. Time is that of
the processors and the clock; the bound holds for the processors, since a network and other programs
are not ours.
"""

import os
import random
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of
from tests.docs.machine import build, why_there_is_none
from tests.docs.test_pages import ALL, CHECKOUT

MOST_S = 120.0
TRAIN_ON = """
def train_on(images, labels):
    print("first batch:", tuple(images.shape))
    raise SystemExit
"""


def story() -> tuple[Block, Block]:
    """The two blocks of README that install, pack and mount, and that train."""
    blocks = [block for block in blocks_of(CHECKOUT / "README.md") if block.is_command]
    first = next(
        number for number, block in enumerate(blocks) if block.text.startswith("make torch")
    )
    shell, python = blocks[first : first + 2]
    assert (shell.language, python.language) == ("sh", "python")
    return shell, python


def images_at(folder: Path) -> None:
    """Make the images that a reader of README has at hand."""
    from PIL import Image

    numbers = random.Random(1)
    for name in ("cat", "dog", "owl"):
        (folder / name).mkdir(parents=True)
        for number in range(100):
            picture = Image.frombytes("RGB", (64, 64), numbers.randbytes(64 * 64 * 3))
            picture.save(folder / name / f"{number}.jpg")


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.timeout(1800)
def test_a_clone_trains_within_two_minutes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not os.environ.get(ALL):
        pytest.skip("make test-docs runs it")
    if why := why_there_is_none():
        pytest.skip(why)
    clone, disk = tmp_path / "clone", tmp_path / "disk"
    images_at(disk / "home/reader/imagenet/train")
    shell, python = story()
    typed = f"{shell.text}\npython -u - <<'END_OF_BLOCK'\n{TRAIN_ON}\n{python.text}\nEND_OF_BLOCK\n"
    began, used = time.monotonic(), cpu_s()
    try:
        subprocess.run(["git", "clone", "--quiet", CHECKOUT, clone], check=True)
        build(clone, Path("/src/dieselfs"), disk, ["bash", "-ec", typed])
    finally:
        shutil.rmtree(clone)  # a gigabyte
    took, used = time.monotonic() - began, cpu_s() - used
    assert "first batch: (256, 3, 224, 224)" in capfd.readouterr().out
    with capfd.disabled():
        print(
            f"\nclean clone to first batch: {used:.0f} s of processors, {took:.0f} s by the clock"
        )
    assert used <= MOST_S
