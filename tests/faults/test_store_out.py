"""A store that does not answer under a mount: reads wait it out, memory is read meanwhile, and
everybody goes on when it is back.

`DIESELFS_LONG_FAULTS=1` (`make faults`) lets it be out for 60 s, as the promise says, instead of 4.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chunkstore.object_keys import chunk_key, leases_prefix
from dieselfs.fuse.mounts.mount_table import entry_at
from dieselfs.fuse.mounts.mountpoint import unmount
from metadata.snapshot import Snapshot
from tests.eventually import PATIENCE_S, eventually, scaled_by_load
from tests.faults.case import Measured, fault_case
from tests.faults.flapping_store import calls, set_mode
from tests.faults.reading import content, is_reading, readers
from tests.faults.served import NAME, Place, Served, errno_of, paths_in_chunk
from tests.mount.mounting import is_alive

OUT_S = 60.0 if os.environ.get("DIESELFS_LONG_FAULTS") else 4.0
READERS = 8
RESUME_S = 20.0
"""After the store is back: the longest pause is 5 s, and a request that hung is abandoned after 20
s."""
FILES = [f"d{number // 8:02}/f{number:03}" for number in range(8 * 64)]
REPEATED = "chunkstore.stores.retrying:RetryingStore._gives_up=true"
PAUSE_S = 1.0
"""For which a fault lasts that need not be long."""


@dataclass(slots=True)
class Bench:
    place: Place
    snapshot: Snapshot
    mount: Served
    used: int = 0

    def cold(self, chunks: int) -> tuple[list[str], set[str]]:
        """Files of chunks that nobody has read, and the keys of these."""
        numbers = range(self.used, self.used + chunks)
        self.used += chunks
        keys = {chunk_key(NAME, self.snapshot.chunk(number).id) for number in numbers}
        return [path for n in numbers for path in paths_in_chunk(self.snapshot, n)], keys

    def flap(self, mode: str) -> None:
        set_mode(self.place.folder, mode)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("out") / "place")


@pytest.fixture(scope="module")
def snapshot(place: Place) -> Iterator[Snapshot]:
    with place.make({path: content(path) for path in FILES}, target_bytes=64_000) as snapshot:
        yield snapshot


@pytest.fixture(scope="module")
def shared(place: Place, snapshot: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:  # fmt: skip
    mountpoint = tmp_path_factory.mktemp("mount") / "mnt"
    # Before EROFS the kernel reads ahead into the neighbours in the blob: which reads wait is not
    # known then.
    with place.mounted(mountpoint, "--prefill", "0", "--front", "fuse") as mount:
        yield Bench(place, snapshot, mount)


@pytest.fixture
def bench(shared: Bench) -> Iterator[Bench]:
    yield shared
    shared.flap("ok")


@pytest.fixture
def impatient(place: Place, snapshot: Snapshot, tmp_path: Path) -> Iterator[Bench]:
    """A mount that waits for 2 s, with a node memory of its own."""
    options = ("--patience", "4", "--task", f"impatient-{os.getpid()}", "--prefill", "0")
    before = leases(place)
    with place.mounted(tmp_path / "mnt", *options) as mount:
        # Else it is given up when the store is out, and counted.
        eventually(lambda: leases(place) - before, "the lease of this mount")
        yield Bench(place, snapshot, mount)
        set_mode(place.folder, "ok")


def leases(place: Place) -> set[str]:
    return {info.key for info in place.objects.list(leases_prefix(NAME))}


@fault_case(
    f"the store out for {OUT_S:g} s under {READERS} readers, half of what they read being in memory",
    promise="memory is read meanwhile; all resume within seconds; each chunk is fetched once; no thread or descriptor stays",
    bound_s=OUT_S + RESUME_S,
    check="chunkstore.stores.retrying:RetryPolicy.patient=none",
)
def test_out_under_readers(bench: Bench, measured: Measured, tmp_path: Path) -> None:
    warm, warm_keys = bench.cold(8)
    cold, keys = bench.cold(8)
    mount = bench.mount
    with readers(mount.path, tmp_path / "warming", READERS, warm) as warming:
        assert [reader.end(PATIENCE_S) for reader in warming] == [""] * READERS
    before, said = mount.resources(), len(mount.log)
    bench.flap("out")
    with measured.felt():
        began = time.monotonic()
        with readers(mount.path, tmp_path / "readers", READERS, [*warm, *cold]) as reading:
            eventually(
                lambda: all(reader.beats >= len(warm) for reader in reading), "reads of memory"
            )
            time.sleep(max(0.0, OUT_S - (time.monotonic() - began)))
            assert all(reader.beats == len(warm) for reader in reading)
            bench.flap("ok")
            back = time.monotonic()
            assert [reader.end(PATIENCE_S) for reader in reading] == [""] * READERS
    measured.note(f"all {READERS} resumed {time.monotonic() - back:.1f} s after it was back")
    got = calls(bench.place.folder, "got")
    assert {got[key] for key in keys | warm_keys} == {1}
    measured.note(f"{len(keys)} chunks, fetched once each")
    told = mount.log[said:]
    assert told.count("the store does not answer") == 1
    assert told.count("the store answers again") == 1

    def nothing_stayed() -> bool:
        descriptors, threads = mount.resources()
        return descriptors <= before[0] and threads <= before[1]

    eventually(nothing_stayed, f"descriptors and threads as before: {before}")
    measured.note("no descriptor and no thread more than before")


@pytest.mark.parametrize("mode", ["hung", "resetting", "errors", "slow"])
@fault_case(
    f"a store that hangs, resets connections half way, answers 5xx, or is slow, for {PAUSE_S:g} s",
    promise="readers wait, and go on",
    bound_s=PAUSE_S + RESUME_S,
    check=dict.fromkeys(("hung", "resetting", "errors"), REPEATED),
    why="calls are repeated; of a store that is only slow, none has to be",
)
def test_flapping(bench: Bench, measured: Measured, tmp_path: Path, mode: str) -> None:
    cold, keys = bench.cold(2)
    bench.flap(mode)
    with measured.felt(), readers(bench.mount.path, tmp_path / "readers", 2, cold) as reading:
        eventually(
            lambda: calls(bench.place.folder, "try").keys() & keys, "a read that meets the fault"
        )
        time.sleep(PAUSE_S)
        bench.flap("ok")
        assert [reader.end(PATIENCE_S) for reader in reading] == ["", ""]
    got = calls(bench.place.folder, "got")
    if mode != "slow":  # there a hedge may be answered too
        assert {got[key] for key in keys} == {1}


@pytest.mark.parametrize("mode", ["short", "wrong"])
@fault_case(
    "a store that answers with too few bytes, or with wrong ones",
    promise="EIO at once, never these bytes; served when it answers well",
    bound_s=10.0,
    check={
        "short": "chunkstore.chunk_reader:_check_range=none"
        " + chunkstore.chunk_reader:verified_file=first"
        " + dieselfs.fuse.requests.file_reader:_require_all=none",
        "wrong": "chunkstore.chunk_reader:verified_file=first",
    },
)
def test_bad_answers(bench: Bench, measured: Measured, mode: str) -> None:
    cold, _ = bench.cold(1)
    bench.flap(mode)
    for path in cold:
        found = measured.call((bench.mount.path / path).read_bytes)
        assert found == content(path) or (
            isinstance(found, OSError) and found.errno == errno.EIO
        ), path
    assert isinstance(measured.call((bench.mount.path / cold[-1]).read_bytes), OSError)
    bench.flap("ok")
    for path in cold:  # what is known to be damaged is read again after a second
        with measured.felt():
            eventually(lambda path=path: errno_of(bench.mount.path / path) is None, path)
        assert (bench.mount.path / path).read_bytes() == content(path)


@fault_case(
    "the folder of a file:// store gone, and back",
    promise="readers wait, and go on",
    bound_s=PAUSE_S + RESUME_S,
    check="chunkstore.stores.local_directory:LocalDirectory._check_root=none",
)
def test_folder_away(bench: Bench, measured: Measured, tmp_path: Path) -> None:
    cold, keys = bench.cold(2)
    store = bench.place.folder / "store"
    with measured.felt():
        store.rename(store.with_name("away"))
        try:
            with readers(bench.mount.path, tmp_path / "readers", 2, cold) as reading:
                eventually(
                    lambda: calls(bench.place.folder, "try").keys() & keys, "a read that fails"
                )
                time.sleep(PAUSE_S)
                store.with_name("away").rename(store)
                assert [reader.end(PATIENCE_S) for reader in reading] == ["", ""]
        finally:
            if not store.exists():
                store.with_name("away").rename(store)


@fault_case(
    "a store that stays out for longer than the mount's patience (--patience 4)",
    promise="EIO when it is over, once, and not after another wait; the next read tries anew",
    bound_s=4.0 + 8.0,
    check="dieselfs.fuse.requests.file_reader:FileReader._check_failed=none",
)
def test_out_for_too_long(impatient: Bench, measured: Measured) -> None:
    cold, _ = impatient.cold(1)
    path = impatient.mount.path / cold[0]
    impatient.flap("out")
    before = impatient.mount.statistics()["store"]["retry"]["given_up"]
    with measured.felt(), pytest.raises(OSError) as raised:
        path.read_bytes()
    assert raised.value.errno == errno.EIO
    measured.note(f"EIO after {measured.longest_s:.1f} s")
    # A wait of less than 1 s would not be remembered: the patience is well above that.
    # A busy machine gives the mount's look for newer commits the time to be given up as well.
    given_up = impatient.mount.statistics()["store"]["retry"]["given_up"] - before
    assert 1 <= given_up <= 2
    impatient.flap("ok")
    eventually(lambda: try_read(path) == content(cold[0]), "bytes", scaled_by_load(10))


def try_read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


@pytest.mark.parametrize("mode", ["out", "hung"])
@fault_case(
    "SIGKILL of a reader that waits for a store that is out, or hangs",
    promise="it ends at once",
    bound_s=10.0,
    why="the kernel lets go of a page that is waited for",
)
def test_a_waiting_reader_is_killed(bench: Bench, measured: Measured, tmp_path: Path, mode: str) -> None:  # fmt: skip
    cold, keys = bench.cold(1)
    bench.flap(mode)
    with readers(bench.mount.path, tmp_path / "readers", 1, cold) as [reader]:
        eventually(lambda: calls(bench.place.folder, "try").keys() & keys, "a read that waits")
        with measured.felt():
            reader.process.kill()
            assert reader.process.wait(PATIENCE_S) == -signal.SIGKILL


@fault_case(
    "40 readers that wait for a store that is out",
    promise="all others read what is in memory, and the mount tells of itself",
    bound_s=10.0,
    why="the kernel lets more READs wait at a time than there are threads for them, and memory is read without a thread",
)
def test_many_wait_and_memory_is_read(bench: Bench, measured: Measured, tmp_path: Path) -> None:
    warm, _ = bench.cold(1)
    cold, keys = bench.cold(5)
    assert (bench.mount.path / warm[0]).read_bytes() == content(warm[0])  # its chunk is in memory
    bench.flap("out")
    waiting = [
        subprocess.Popen([sys.executable, "-S", "-c", READ_ONE, bench.mount.path / path])
        for path in cold
    ]
    try:
        eventually(lambda: calls(bench.place.folder, "try").keys() & keys, "a read that waits")
        eventually(
            lambda: all(is_reading(process.pid, bench.mount.path) for process in waiting),
            "40 that wait",
        )
        for path in warm[1:]:
            found: list[object] = []
            reader = threading.Thread(
                target=lambda path=path, found=found: found.append(
                    (bench.mount.path / path).read_bytes()
                ),
                daemon=True,
            )
            with measured.felt():
                reader.start()
                reader.join(scaled_by_load(10))
                assert found == [content(path)]
        with measured.felt():  # a thread counts a retry after the call that readers have seen fail
            eventually(lambda: bench.mount.statistics()["store"]["retry"]["retries"], "a retry")
        assert all(process.poll() is None for process in waiting)
        threads = bench.mount.resources()[1]
        assert threads < 200
        measured.note(f"{len(waiting)} wait, {threads} threads in the daemon")
        bench.flap("ok")
        assert [process.wait(PATIENCE_S) for process in waiting] == [0] * len(waiting)
    finally:
        bench.flap("ok")
        for process in waiting:
            process.kill()
            process.wait()


READ_ONE = "import sys; open(sys.argv[1], 'rb').read()"


@pytest.mark.parametrize("mode", ["out", "hung"])
@fault_case(
    "unmounting while readers wait for a store that is out, or hangs, and a plan fetches ahead",
    promise="the mount is gone, readers get an error",
    bound_s=5.0 + 1.0,
    check="dieselfs.fuse.mount:_Server._end=none",
)
def test_unmount_in_an_outage(place: Place, snapshot: Snapshot, measured: Measured, tmp_path: Path, mode: str) -> None:  # fmt: skip
    options = (
        "--task",
        f"ends-{mode}-{os.getpid()}",
        "--shuffle",
        "seed=1,group=2",
        "--memory",
        "1MiB",
    )
    with place.mounted(tmp_path / "mnt", *options) as mount:
        set_mode(place.folder, mode)
        try:
            with readers(mount.path, tmp_path / "readers", 4, FILES[::-1]) as reading:
                eventually(
                    lambda: (
                        mount.statistics()["store"]["limit"]["in_flight"]
                        + mount.statistics()["store"]["retry"]["retries"]
                    ),
                    "reads that wait",
                )
                with measured.felt():
                    os.kill(mount.pid, signal.SIGTERM)
                    eventually(lambda: not is_alive(mount.pid), "the end of the daemon")
                assert entry_at(mount.path) is None
                assert all(reader.end(PATIENCE_S) for reader in reading)
        finally:
            set_mode(place.folder, "ok")


@pytest.mark.parametrize("front", ["erofs", "erofs-loop", "fuse"])
@fault_case(
    "umount while the store is out, of a mount whose readers were killed as they waited for it",
    promise="the mount is gone at once, and the daemon with all that it holds soon after",
    bound_s=5.0 + 1.0,
    check={"erofs": "dieselfs.fuse.serving.blob_server:BlobServer._release=none"},
    why="with the front `fuse`, the kernel ends the connection itself",
)
def test_umount_after_readers_that_waited(place: Place, snapshot: Snapshot, measured: Measured, tmp_path: Path, front: str) -> None:  # fmt: skip
    task = f"left-{os.getpid()}-{front}"
    with place.mounted(tmp_path / "mnt", "--task", task, "--front", front) as mount:
        set_mode(place.folder, "out")
        try:
            with readers(mount.path, tmp_path / "readers", 2, FILES):
                eventually(
                    lambda: mount.statistics()["store"]["retry"]["retries"], "reads that wait"
                )
            with measured.felt():
                unmount(mount.path)
                eventually(lambda: not is_alive(mount.pid), "the end of the daemon")
        finally:
            set_mode(place.folder, "ok")
