"""Files and images as samples: the same as Python's own open and torchvision's default loader."""

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from PIL import Image

from dieselfs.integrations.image_files import load_image, read_file


@pytest.mark.parametrize("size", [0, 1, 4096, 3_000_000])
def test_a_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    assert read_file(path) == read_file(str(path)) == path.read_bytes()


def test_files_whose_size_says_nothing(tmp_path: Path) -> None:
    """As those of /proc, and a pipe, which gives its bytes in parts."""
    assert b"Name:" in read_file("/proc/self/status")
    os.mkfifo(tmp_path / "pipe")
    content = os.urandom(300_000)
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,))
    writer.start()
    assert read_file(tmp_path / "pipe") == content
    writer.join()


def test_errors_name_the_file(tmp_path: Path) -> None:
    for path, error in [(tmp_path / "none", FileNotFoundError), (tmp_path, IsADirectoryError)]:
        with pytest.raises(error) as raised:
            read_file(path)
        assert raised.value.filename in (path, str(path))


def test_images_are_those_of_torchvision(tmp_path: Path) -> None:
    for name, mode in [("grey.png", "L"), ("colour.jpg", "RGB"), ("palette.gif", "P")]:
        (tmp_path / "class").mkdir(exist_ok=True)
        Image.new(mode, (5, 7), 9).save(tmp_path / "class" / name)
    from torchvision.datasets import ImageFolder  # 1 s of each worker's collection

    stock = ImageFolder(str(tmp_path))
    ours = ImageFolder(str(tmp_path), loader=pickle.loads(pickle.dumps(load_image)))
    for (one, _), (other, _) in zip(stock, ours, strict=True):
        assert (one.mode, one.size, one.tobytes()) == (other.mode, other.size, other.tobytes())


def test_pillow_is_imported_where_it_decodes() -> None:
    code = "import sys, dieselfs.integrations.image_files as f; assert 'PIL' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
