"""The file of a snapshot is damaged in place while a mount or a client uses it: bytes change, or
the file is truncated.

DIESELFS_LONG_FAULTS makes the random cases many.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.client import Client
from dieselfs.fuse.mounts.mount_table import entry_at
from metadata.errors import SnapshotRefused
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.snapshot import Snapshot
from metadata.snapshot_format import header_bytes
from tests.eventually import eventually
from tests.faults.case import Measured, fault_case
from tests.faults.served import NAME, Place, Served
from tests.faults.walking import content_of, name_of, walked
from tests.mount.mounting import is_alive

LONG = bool(os.environ.get("DIESELFS_LONG_FAULTS"))
MOUNTS = 300 if LONG else 8
CLIENTS = 300 if LONG else 27
"""Each section of the file is damaged at least once."""
COUNT = 120
FILES = {name_of(number): content_of(number) for number in range(COUNT)}
AMOUNTS = (1, 100, 3_000)
MONOTONIC_COARSE = 6
"""The clock of `metadata._mapped_file`, which `time` does not name."""
BOUND_S = 20.0


@dataclass(frozen=True, slots=True)
class Bench:
    place: Place
    file: Path
    whole: bytes
    sections: list[tuple[int, int]]
    """Where the sections start and end; and all behind the header."""

    def restore(self) -> None:
        """Put a whole file in the place of the damaged one, of which a map may be left."""
        self.file.unlink(missing_ok=True)
        self.file.write_bytes(self.whole)

    def change(self, section: int, amount: int, rng: random.Random) -> None:
        start, end = self.sections[section % len(self.sections)]
        places = [rng.randrange(start, end) for _ in range(amount)]
        with open(self.file, "r+b", buffering=0) as file:
            for at in places:
                file.seek(at)
                file.write(rng.randbytes(1))
            file.seek(places[0])
            file.write(bytes([self.whole[places[0]] ^ 1 << rng.randrange(8)]))
        wait_for_the_next_tick()

    def truncate(self, length: int) -> None:
        os.truncate(self.file, length)
        wait_for_the_next_tick()


def wait_for_the_next_tick() -> None:
    """Wait until who has the file open asks for changes again."""
    now = time.clock_gettime_ns(MONOTONIC_COARSE)
    eventually(lambda: time.clock_gettime_ns(MONOTONIC_COARSE) > now, "the next tick")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    place = Place(tmp_path_factory.mktemp("damaged") / "place")
    with place.make(FILES) as snapshot:
        file, whole = snapshot.path, snapshot.path.read_bytes()
        sections = [(start, start + size) for start, size in snapshot.header.sections.values()]
    sections.append((header_bytes(NAME), len(whole)))
    return Bench(place, file, whole, sections)


def check_mount(
    bench: Bench, measured: Measured, mountpoint: Path, damage: Callable[[Served], object], *options: str
) -> int:  # fmt: skip
    """Mount, damage the file, and read all; how many calls were refused. The daemon lives on until
    `dlcmd umount`."""
    bench.restore()
    mount = bench.place.mount(mountpoint, "--prefill", "0", *options)
    try:
        servers = mount.servers()
        damage(mount)
        with measured.felt():
            found = walked(mountpoint, COUNT, 6 * BOUND_S)
        assert found.wrong == []
        assert mount.servers() == servers, mount.log
        with measured.felt():
            done = bench.place.dlcmd("umount", mountpoint)
        assert done.returncode == 0, done.stderr
        with measured.felt():
            eventually(lambda: not is_alive(mount.pid), "the end of the daemon")
        assert entry_at(mountpoint) is None
    finally:
        mount.end()
    assert found.refused
    return found.refused


@pytest.mark.timeout(60 + 5 * MOUNTS)
@fault_case(
    "1, 100 or 3,000 bytes of a snapshot's file change at random while it is mounted",
    promise="the right bytes under the right names, or EIO; no reader hangs, no daemon dies, and "
    "`dlcmd umount` ends it",
    bound_s=BOUND_S,
    check="metadata.snapshot:Snapshot.check_unchanged=none",
)
def test_changed_in_place(bench: Bench, measured: Measured, tmp_path: Path) -> None:
    rng = random.Random(40)
    refused = 0
    for number in range(MOUNTS):
        section = number if LONG else rng.randrange(len(bench.sections))
        amount = AMOUNTS[number % len(AMOUNTS)]
        front = ("fuse", "erofs")[number % 4 == 3]

        def damage(
            mount: Served,
            section: int = section,
            amount: int = amount,
            has_read: bool = bool(rng.randrange(2)),
        ) -> None:
            if has_read:  # a chunk is in memory, and names are in the kernel
                assert (mount.path / name_of(0)).read_bytes() == content_of(0)
            bench.change(section, amount, rng)

        try:
            refused += check_mount(
                bench, measured, tmp_path / f"mnt{number}", damage, "--front", front
            )
        except BaseException as error:
            error.add_note(f"mount {number}: {amount} bytes of section {section}, front {front}")
            raise
    measured.note(f"{MOUNTS} mounts: {refused} calls EIO, no wrong byte, no hang, no signal")


@fault_case(
    "a snapshot's file is truncated while it is mounted: to nothing, its header, the half, one byte less",
    promise="the right bytes under the right names, or EIO; the daemon gets no SIGBUS, and `dlcmd "
    "umount` ends it",
    bound_s=BOUND_S,
    check="metadata.snapshot:Snapshot.check_unchanged=none",
)
def test_truncated(bench: Bench, measured: Measured, tmp_path: Path) -> None:
    lengths = [0, 4096, len(bench.whole) // 2, len(bench.whole) - 1]
    for length in lengths:
        check_mount(
            *(bench, measured, tmp_path / f"mnt{length}"),
            lambda mount, length=length: bench.truncate(length),
            *("--front", "fuse"),
        )
    measured.note(f"{len(lengths)} lengths: EIO, no signal")


@fault_case(
    "the mode and the times of a mounted snapshot's file change, and it gets another name; then it is deleted",
    promise="every file is read",
    bound_s=BOUND_S,
    check="metadata.snapshot_verification:has_file_hash=false",
)
def test_other_changes(bench: Bench, measured: Measured, tmp_path: Path) -> None:
    bench.restore()
    with bench.place.mounted(tmp_path / "mnt", "--prefill", "0", "--front", "fuse") as mount:
        bench.file.chmod(0o400)
        os.utime(bench.file)
        os.link(bench.file, tmp_path / "another")
        bench.file.unlink()
        with measured.felt():
            found = walked(mount.path, COUNT, 6 * BOUND_S)
    assert (found.wrong, found.refused, found.right) == ([], 0, 2 * COUNT)


@fault_case(
    "a snapshot's file is damaged, and then it is mounted again",
    promise="refused, naming the file",
    bound_s=BOUND_S,
    check="metadata.snapshot:Snapshot.check_hash=none",
)
def test_mounted_again(bench: Bench, measured: Measured, tmp_path: Path) -> None:
    bench.restore()
    bench.change(-1, 1, random.Random(1))
    with measured.felt():
        done = bench.place.refused(tmp_path / "mnt", "--no-index")
    assert done.returncode == 7, done.stderr
    assert bench.file.name in done.stderr
    bench.restore()
    with bench.place.mounted(tmp_path / "mnt") as mount:
        assert (mount.path / name_of(1)).read_bytes() == content_of(1)


@pytest.mark.timeout(60 + CLIENTS)
@fault_case(
    "1, 100 or 3,000 bytes of a snapshot's file change at random, or it is truncated, while a Python client reads through it",
    promise="`get`, `get_many`, `stat`, `ls` and `walk` give what is right, or raise `SnapshotRefused`",
    bound_s=BOUND_S,
    check="metadata.snapshot:Snapshot.check_unchanged=none",
)
@pytest.mark.parametrize("source", ["store", "node memory"])
def test_client(
    bench: Bench, measured: Measured, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingers = functools.partial(NodeMemory.open, linger_s=0.1)
    monkeypatch.setattr(NodeMemory, "open", lingers)
    rng = random.Random(41)
    index = LmdbFileStore(bench.place.folder / "index")
    refused = 0
    try:
        for number in range(CLIENTS):
            bench.restore()
            with Client.connect(
                NAME, store=bench.place.objects, index=index, snapshot_folder=bench.file.parent
            ) as client:
                client.load_meta(bench.file)
                if source == "node memory":
                    client.open_memory(16 << 20)
                    inodes = list(map(client.inode, FILES))
                    assert list(map(client.samples.read, inodes)) == list(FILES.values())
                assert client.get(name_of(0)) == content_of(0)
                if number % 9 == 8:
                    bench.truncate(rng.randrange(len(bench.whole)))
                else:
                    bench.change(number, AMOUNTS[number % len(AMOUNTS)], rng)
                with measured.felt():
                    refused += check_client(client)
                if source == "node memory":
                    for inode in inodes:
                        with pytest.raises(SnapshotRefused):
                            client.samples.read(inode)
    finally:
        index.close()
    measured.note(f"{source}, {CLIENTS} damaged files: {refused} calls refused, no wrong answer")


def check_client(client: Client) -> int:
    """Ask everything; how many calls were refused."""
    refused = 0

    def check(ask: Callable[[], Any], right: object) -> None:
        nonlocal refused
        try:
            found = ask()
        except SnapshotRefused:
            refused += 1
        else:
            assert found == right

    for name, data in FILES.items():
        check(lambda name=name: client.get(name), data)
        check(lambda name=name: client.stat(name).size, len(data))
        check(lambda name=name: client.exists(name), True)
    check(lambda: client.get_many(list(FILES)), list(FILES.values()))
    check(lambda: {file.path for file in client.walk() if file.kind == "file"}, set(FILES))
    for number in range(COUNT // 20):
        listed = {
            name.split("/")[1] for name in FILES if name.startswith(f"c{number}/")
        }  # with `sub`
        check(lambda n=number: {f.path.split("/")[1] for f in client.ls(f"c{n}")}, listed)
    return refused


def test_a_snapshot_that_was_damaged_stays_refused(bench: Bench) -> None:
    bench.restore()
    with Snapshot.open(bench.file) as snapshot:
        bench.change(0, 1, random.Random(2))
        for _ in range(2):
            with pytest.raises(SnapshotRefused, match="damaged"):
                snapshot.check_unchanged()
        bench.file.write_bytes(bench.whole)
        with pytest.raises(SnapshotRefused, match="damaged"):  # caches may hold what was damaged
            snapshot.check_unchanged()
