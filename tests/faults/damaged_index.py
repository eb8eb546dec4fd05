"""A dataset whose index is damaged, and what commands then say: what is right, or what to do."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dieselfs.assembly import open_index, open_store
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.client import Client
from tests.faults.forked_dlcmd import Ended, Running, start_dlcmd
from tests.faults.kept_dataset import Places, files_of, index_differences
from tests.faults.killed_calls import KillPoint
from tests.faults.repeated_put import folder_in_memory

PAGE = 4096
FILES = {b"%d/name-%04d" % (i % 7, i): b"file %d " % i * 10 for i in range(300)}
_NAME = re.compile(r"(\d/)?name-\d+")
_META = struct.Struct("<IIQQ" + 2 * "IHHQQQQQ" + "QQ")
_LEAF = 2
_ROOT, _LAST_PAGE = 19, 20


@dataclass(frozen=True, slots=True)
class IndexedDataset:
    """A dataset of FILES, with an index of any kind."""

    folder: Path
    places: Places

    def start(self, *arguments: str, point: KillPoint | None = None) -> Running:
        return start_dlcmd(self.folder, [*arguments, *self.places.flags], point)

    def dlcmd(self, *arguments: str) -> Ended:
        return self.start(*arguments).end()

    def check_listing(self, ended: Ended, top: bytes = b"") -> bool:
        """Whether the command listed what it should; if not, it must have been refused."""
        if ended.code:
            check_refused(ended)
            return False
        listed = {line.encode() for line in ended.errors.splitlines() if _NAME.fullmatch(line)}
        assert listed == {path.removeprefix(top) for path in FILES if path.startswith(top)}
        return True

    def check_whole(self) -> None:
        assert self.check_listing(self.dlcmd("ls", "-r", "dl://d"))
        with self.places.opened() as dataset:
            assert files_of(dataset) == FILES
            assert index_differences(dataset) == []


@dataclass(frozen=True, slots=True)
class DamagedIndex(IndexedDataset):
    """An index in LMDB: `data` is its file, and `whole` what that was."""

    data: Path
    whole: bytes

    def restore(self) -> None:
        shutil.rmtree(self.data.parent)
        self.data.parent.mkdir()
        self.data.write_bytes(self.whole)

    def overwrite(self, at: int, data: bytes) -> None:
        with open(self.data, "r+b") as file:
            file.seek(at)
            file.write(data)

    def lose_a_record(self, prefix: bytes) -> bool:
        """Let each leaf page whose last record has this prefix forget it; whether there is one."""
        found = False
        for start in range(2 * PAGE, len(self.whole), PAGE):
            page = self.whole[start : start + PAGE]
            flags, lower = struct.unpack_from("<HH", page, 10)
            if flags != _LEAF or not 18 < lower < PAGE:
                continue
            [last] = struct.unpack_from("<H", page, lower - 2)
            if page[last + 8 :].startswith(prefix):
                self.overwrite(start + 12, struct.pack("<H", lower - 2))
                found = True
        return found

    def damage_root(self, offset: int, value: int) -> None:
        """Overwrite two bytes of the page at the root of the records, which is made the last one.

        So what lies behind it is outside the file.
        """
        metas = [list(_META.unpack_from(self.whole, page * PAGE + 16)) for page in (0, 1)]
        root, last = max(metas, key=lambda meta: meta[-1])[_ROOT], len(self.whole) // PAGE
        page = bytearray(self.whole[root * PAGE :][:PAGE])
        struct.pack_into("<Q", page, 0, last)
        struct.pack_into("<H", page, offset, value)
        self.overwrite(last * PAGE, page)
        for number, meta in enumerate(metas):
            meta[_ROOT], meta[_LAST_PAGE] = last, last
            self.overwrite(number * PAGE + 16, _META.pack(*meta))


def check_refused(ended: Ended) -> None:
    """The command ended by itself, and its last line says what to do."""
    assert ended.code == ExitCode.INTEGRITY, ended
    last = ended.errors.splitlines()[-1]
    assert last.startswith("dlcmd: "), ended
    assert "dlcmd recover" in last, ended


@contextmanager
def indexed_dataset(index_url: str | None = None) -> Iterator[IndexedDataset]:
    """A dataset of FILES in two commits; without a URL its index is in LMDB."""
    with folder_in_memory() as folder:
        (folder / "store").mkdir()
        places = Places(f"file://{folder}/store", index_url or f"lmdb://{folder}/index")
        index = open_index(places.index)
        client = Client.connect(
            "d", store=open_store(places.store), index=index, snapshot_folder=folder, create=True
        )
        for number, (path, content) in enumerate(FILES.items()):
            client.put(content, path)
            if number == len(FILES) // 2:
                client.flush()
        client.close()
        index.close()
        yield IndexedDataset(folder, places)


@contextmanager
def damaged_index() -> Iterator[DamagedIndex]:
    with indexed_dataset() as found:
        data = found.folder / "index/data.mdb"
        yield DamagedIndex(found.folder, found.places, data, data.read_bytes())


def damage_at_random(index: DamagedIndex, rng: random.Random) -> str:
    """Damage the file as disks, kernels and careless programs do; say how."""
    pages = len(index.whole) // PAGE
    kind = rng.choice(["bit", "bit", "bit", "bytes", "random page", "zero page", "swap", "cut"])
    match kind:
        case "bit":
            at = rng.randrange(len(index.whole))
            index.overwrite(at, bytes([index.whole[at] ^ 1 << rng.randrange(8)]))
        case "bytes":
            for _ in range(rng.randrange(2, 300)):
                index.overwrite(rng.randrange(len(index.whole)), rng.randbytes(1))
        case "random page":
            index.overwrite(PAGE * rng.randrange(pages), rng.randbytes(PAGE))
        case "zero page":
            index.overwrite(PAGE * rng.randrange(pages), bytes(PAGE))
        case "swap":
            one, other = rng.sample(range(2, pages), 2)
            index.overwrite(PAGE * one, index.whole[PAGE * other :][:PAGE])
        case "cut":
            os.truncate(index.data, rng.randrange(len(index.whole)))
    return kind
