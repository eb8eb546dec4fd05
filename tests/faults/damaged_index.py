"""A dataset with an index in LMDB whose file is damaged again and again, and what commands then
say: right answers, or an error that says what to do."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dieselfs.assembly import open_index, open_store
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.client import Client
from tests.faults.forked_dlcmd import Ended, start_dlcmd
from tests.faults.kept_dataset import Places
from tests.faults.repeated_put import folder_in_memory

PAGE = 4096
FILES = {b"%d/name-%04d" % (i % 7, i): b"file %d " % i * 10 for i in range(300)}
_META = struct.Struct("<IIQQ" + 2 * "IHHQQQQQ" + "QQ")


@dataclass(frozen=True, slots=True)
class DamagedIndex:
    """A dataset of FILES; `data` is its LMDB file, and `whole` what that was."""

    folder: Path
    places: Places
    data: Path
    whole: bytes

    def dlcmd(self, *arguments: str) -> Ended:
        return start_dlcmd(self.folder, [*arguments, *self.places.flags]).end()

    def restore(self) -> None:
        shutil.rmtree(self.data.parent)
        self.data.parent.mkdir()
        self.data.write_bytes(self.whole)

    def overwrite(self, at: int, data: bytes) -> None:
        with open(self.data, "r+b") as file:
            file.seek(at)
            file.write(data)

    def root_page(self) -> int:
        """The number of the page at the root of the records of the newest commit."""
        metas = [_META.unpack_from(self.whole, page * PAGE + 16) for page in (0, 1)]
        return int(max(metas, key=lambda meta: meta[-1])[19])

    def check_listing(self, ended: Ended, top: bytes = b"") -> bool:
        """Whether the command listed what it should; if not, it must have been refused."""
        if ended.code:
            check_refused(ended)
            return False
        listed = {line.encode() for line in ended.errors.splitlines() if not line.endswith("/")}
        assert listed == {path.removeprefix(top) for path in FILES if path.startswith(top)}
        return True


def check_refused(ended: Ended) -> None:
    """The command ended by itself, and its last line says what to do."""
    assert ended.code == ExitCode.INTEGRITY, ended
    last = ended.errors.splitlines()[-1]
    assert last.startswith("dlcmd: "), ended
    assert "dlcmd recover" in last, ended


@contextmanager
def damaged_index() -> Iterator[DamagedIndex]:
    with folder_in_memory() as folder:
        (folder / "store").mkdir()
        places = Places(f"file://{folder}/store", f"lmdb://{folder}/index")
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
        data = folder / "index/data.mdb"
        yield DamagedIndex(folder, places, data, data.read_bytes())


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
