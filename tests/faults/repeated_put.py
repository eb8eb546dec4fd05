"""One put on top of an older dataset, again and again from the same beginning, for tests that
disturb it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.forked_dlcmd import Ended, Running, start_dlcmd
from tests.faults.kept_dataset import Places, check_kept, files_of
from tests.faults.killed_calls import KillPoint

GROUP_BYTES = 12_000
"""A commit is two chunks or three."""
OLD = {b"%c/%d" % (97 + i % 3, i): b"old %d " % i * 30 for i in range(12)}
NEW = {b"%c/%d" % (97 + i % 4, i): b"new %d " % i * 90 for i in range(6, 60)}
"""Some of the old names, and others."""


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """What is killed is a process, not the machine: no disk need be waited for."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


class RepeatedPut:
    """Of NEW, on top of OLD. The index is a folder beside the store, or a server, which is filled
    from the store."""

    def __init__(
        self,
        folder: Path,
        index: str | None = None,
        empty_index: Callable[[], object] = lambda: None,
    ) -> None:
        self._folder = folder
        self._empty_index = empty_index
        self._template = Places(
            f"file://{folder}/template/store", index or f"lmdb://{folder}/template/index"
        )
        self.places = Places(
            f"file://{folder}/tried/store", index or f"lmdb://{folder}/tried/index"
        )
        for name, files in (("old", OLD), ("new", NEW)):
            for path, data in files.items():
                file = folder / name / os.fsdecode(path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        (folder / "template/store").mkdir(parents=True)
        ended = self._start("old", self._template).end()
        assert ended.code == 0, ended.errors
        self._begin_again()

    def start(self, point: KillPoint | None = None, patience_s: float | None = None) -> Running:
        """From the beginning: a store that holds OLD alone."""
        self._begin_again()
        return self._start("new", self.places, point, patience_s)

    def again(self) -> Ended:
        """The same command, on what there is."""
        return self._start("new", self.places).end()

    def check_kept(self, ended: Ended) -> None:
        """What the command left, as the next one finds it."""
        with self.places.opened() as dataset:
            check_kept(dataset, OLD, NEW, ended.acknowledged, self._folder / "snapshots")

    def check_whole(self) -> None:
        """It has done all that it should."""
        with self.places.opened() as dataset:
            check_kept(dataset, OLD, NEW, len(NEW), self._folder / "snapshots")
            assert files_of(dataset) == {**OLD, **NEW}

    def _begin_again(self) -> None:
        shutil.rmtree(self._folder / "tried", ignore_errors=True)
        self._empty_index()  # or it would be ahead of the store
        shutil.copytree(self._folder / "template", self._folder / "tried")

    def _start(
        self,
        source: str,
        places: Places,
        point: KillPoint | None = None,
        patience_s: float | None = None,
    ) -> Running:
        arguments = ["put", *places.flags, "-j", "2", "--chunk-size", "4KiB", "--no-progress"]
        arguments += [f"{self._folder}/{source}/", places.name]
        return start_dlcmd(self._folder, arguments, point, GROUP_BYTES, patience_s)
