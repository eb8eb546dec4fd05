"""Records as files that their processes hold."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.cache.node import held_files
from dieselfs.cache.node.held_files import HeldFiles


def files_of(folder: Path) -> HeldFiles:
    return HeldFiles(folder, ".record", max_files=8, max_bytes=64)


def test_a_record_that_a_late_look_has_deleted_is_there_again_when_it_is_written_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look found the record before it dead, which had the same name."""
    folder, is_held = tmp_path / "records", held_files._is_held
    with closing(files_of(folder)) as own, closing(files_of(folder)) as other:
        own.put("name", b"first")

        def is_held_and_late(fd: int) -> bool:
            own.remove("name")
            found = is_held(fd)
            own.put("name", b"second")
            return found

        with monkeypatch.context() as patched:
            patched.setattr(held_files, "_is_held", is_held_and_late)
            assert other.contents() == ([], True)
        own.put("name", b"third")
        assert other.contents() == ([b"third"], False)
        own.put("name", b"fourth")
        assert other.contents() == ([b"fourth"], False)
