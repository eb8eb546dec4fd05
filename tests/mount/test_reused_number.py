"""The kernel gives the number of a file system that has gone to the next one. A server that has not
noticed the end of its mount leaves the mount of that next one alone."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.erofs_mounts import new_fuse_mount, share
from dieselfs.fuse.mounts.mount_syscalls import attach, detach
from dieselfs.fuse.mounts.mount_table import MountEntry, entry_at
from tests.eventually import eventually
from tests.mount.idle_servers import stop_idle
from tests.mount.mounting import both_fronts, end, start
from tests.mount.packing import PackedDataset, pack, write_file

pytestmark = [
    both_fronts,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root"),
]


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    folder = tmp_path_factory.mktemp("reused")
    write_file(folder / "source" / "file", b"content")
    return pack(folder / "source", folder)


def the_entry(place: Path) -> MountEntry:
    found = entry_at(place)
    assert found is not None
    return found


def detach_if_shown(place: Path) -> None:
    if entry_at(place) is not None:
        detach(place)


@contextmanager
def another_mount(device: tuple[int, int], folder: Path) -> Iterator[Path]:
    """Show a mount that nobody serves, looks like one of ours, and has this device number."""
    folder.mkdir()
    with ExitStack() as opened:

        def shown() -> Path | None:
            place = folder / str(len(list(folder.iterdir())))
            place.mkdir()
            made = new_fuse_mount("dieselfs:another@1")
            opened.callback(os.close, made.connection)
            attach(made.mount, place)
            os.close(made.mount)
            opened.callback(detach_if_shown, place)
            return place if the_entry(place).device == device else None

        place = eventually(shown, "a mount with this number")
        assert place is not None
        yield place


@pytest.mark.parametrize("stopped_by", ["supervisor", "itself"])
def test_the_next_mount_of_a_device_number_stays(
    dataset: PackedDataset, tmp_path: Path, stopped_by: str
) -> None:
    first = start(dataset, tmp_path)
    server = first.server_pid
    try:
        device = the_entry(first.path).device
        stop_idle(server, device)
        detach(first.path)
        with another_mount(device, tmp_path / "others") as place:
            os.kill(first.pid if stopped_by == "supervisor" else server, signal.SIGTERM)
            if stopped_by == "itself":
                os.kill(server, signal.SIGCONT)
            first.wait_until_ended()
            assert entry_at(place) is not None
    finally:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGCONT)
        end(first)


def test_a_signal_unmounts_all_places(dataset: PackedDataset, tmp_path: Path) -> None:
    mount = start(dataset, tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    try:
        share(mount.path, other)
        assert (other / "file").read_bytes() == b"content"
        os.kill(mount.pid, signal.SIGTERM)
        mount.wait_until_ended()
        assert (entry_at(mount.path), entry_at(other)) == (None, None)
    finally:
        detach_if_shown(other)
        end(mount)
