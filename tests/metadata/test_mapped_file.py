"""A map whose file changes: it is seen, and what is gone becomes zeros instead of a signal."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from metadata.mapped_file import MappedFile, StatedFile, extension, guarded
from tests.eventually import eventually
from tests.open_descriptors import open_descriptors

PAGE = mmap.PAGESIZE
KINDS = [StatedFile, extension.MappedFile]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3 * PAGE)
    os.utime(path, ns=(0, 0))  # so that the next change is in another step of the clock
    return path


def open_map(path: Path, kind: Callable[[mmap.mmap, int], MappedFile]) -> tuple[mmap.mmap, MappedFile]:  # fmt: skip
    with open(path, "rb") as opened:
        content = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        return content, kind(content, opened.fileno())


def overwrite(path: Path) -> None:
    with open(path, "r+b") as opened:
        opened.write(b"y")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte": overwrite,
    "longer": lambda path: os.truncate(path, 4 * PAGE),
    "shorter": lambda path: os.truncate(path, PAGE),
    "time of modification": lambda path: os.utime(path, ns=(0, 0)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_seen(file: Path, kind: type[StatedFile], change: str) -> None:
    _, mapped = open_map(file, kind)
    assert mapped.is_unchanged()
    CHANGES[change](file)
    eventually(lambda: not mapped.is_unchanged(), "the next tick")
    assert mapped.renew() == (file.stat().st_size == 3 * PAGE)
    assert mapped.is_unchanged()
    mapped.refuse()
    assert not mapped.is_unchanged()


@pytest.mark.parametrize("kind", KINDS)
def test_a_replaced_file_is_unchanged_for_its_map_once_renewed(
    file: Path, kind: type[StatedFile]
) -> None:
    content, mapped = open_map(file, kind)
    file.unlink()
    file.write_bytes(b"another")
    assert not mapped.is_unchanged()  # its number of links changed
    assert mapped.renew()
    assert mapped.is_unchanged()
    assert content[:] == b"x" * 3 * PAGE


@pytest.mark.parametrize("kind", KINDS)
def test_descriptors_are_closed(file: Path, kind: type[StatedFile]) -> None:
    before = open_descriptors()
    content, mapped = open_map(file, kind)
    del mapped
    content.close()
    assert open_descriptors() <= before


def test_pages_that_are_gone_are_zeros(file: Path) -> None:
    content, mapped = open_map(file, guarded)
    os.truncate(file, PAGE)
    assert content[2 * PAGE] == 0
    assert content[0] == 0  # all of the map, so that nobody takes half of it for whole
    os.truncate(file, 3 * PAGE)
    assert not mapped.is_unchanged()
    assert not mapped.renew()
    assert not mapped.is_unchanged()


def test_a_map_may_follow_a_lost_one(file: Path) -> None:
    for _ in range(3):
        file.write_bytes(b"z" * 3 * PAGE)
        content, mapped = open_map(file, guarded)
        assert mapped.is_unchanged()
        os.truncate(file, 0)
        assert content[PAGE] == 0
        assert not mapped.is_unchanged()
        del mapped
        content.close()


OTHER_MAP = """
import mmap, os, sys
from metadata.mapped_file import {kind}
from metadata.kv.crash_report import install
{first}
opened = open(sys.argv[1], "rb")
content = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
other = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
mapped = {kind}(content, opened.fileno())
{then}
os.truncate(sys.argv[1], 0)
print(content[0], flush=True)
other[0]
"""


@pytest.mark.parametrize(("first", "then"), [("", ""), ("install()", ""), ("", "install()")])
def test_other_maps_end_the_process_as_before(file: Path, first: str, then: str) -> None:
    """Also beside the handler of `metadata._crash_report`, whichever came first."""
    code = OTHER_MAP.format(kind="guarded", first=first, then=then)
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"0\n", -signal.SIGBUS)


def test_without_the_extension_the_process_ends(file: Path) -> None:
    code = OTHER_MAP.format(kind="StatedFile", first="", then="")
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"", -signal.SIGBUS)


def test_a_forked_child_is_guarded_too(file: Path) -> None:
    content, mapped = open_map(file, guarded)
    child = os.fork()
    if not child:
        os.truncate(file, 0)
        os._exit(content[0] or mapped.is_unchanged())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not mapped.is_unchanged()
