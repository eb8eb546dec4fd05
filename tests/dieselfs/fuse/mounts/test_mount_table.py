"""What a mount says of itself is not believed blindly: it may be anybody's."""

import gc
import json
import os
from pathlib import Path

import pytest

from dieselfs.fuse.mounts import mount_table
from dieselfs.fuse.mounts.mount_table import FUSE_TYPE, MountEntry, MountState, ask

SOUND = {"dataset": "pets", "generation": 3, "snapshot": "3-ab", "mounted": "now", "pid": 7}


def answer(mountpoint: Path, document: bytes) -> MountState:
    (mountpoint / ".dieselfs").mkdir()
    (mountpoint / ".dieselfs/dataset.json").write_bytes(document)
    [info] = ask([MountEntry(mountpoint, FUSE_TYPE, "dieselfs:pets@3-ab")], 10.0)
    return info.state


def test_a_sound_document_is_taken(tmp_path: Path) -> None:
    assert answer(tmp_path, json.dumps(SOUND).encode()) is MountState.SERVING


def test_a_mount_that_hangs_takes_no_time_from_the_others(tmp_path: Path) -> None:
    (tmp_path / "sound").mkdir()
    (tmp_path / "hanging" / ".dieselfs").mkdir(parents=True)
    os.mkfifo(tmp_path / "hanging" / ".dieselfs" / "dataset.json")
    assert answer(tmp_path / "sound", json.dumps(SOUND).encode()) is MountState.SERVING
    entries = [
        MountEntry(tmp_path / name, FUSE_TYPE, "dieselfs:x") for name in ("hanging", "sound")
    ]
    found = [info.state for info in ask(entries, 0.5)]
    assert found == [MountState.HUNG, MountState.SERVING]


def test_a_reader_that_dies_late_is_waited_for_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python warns of processes that nobody waits for, and a warning fails a test."""
    monkeypatch.setattr(mount_table, "_KILLED_S", 0.0)
    (tmp_path / ".dieselfs").mkdir()
    os.mkfifo(tmp_path / ".dieselfs" / "dataset.json")
    [info] = ask([MountEntry(tmp_path, FUSE_TYPE, "dieselfs:x")], 0.1)
    assert info.state is MountState.HUNG
    gc.collect()


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"no json",
        b"\xff\xfe\xff",
        b"[1]",
        b"null",
        b"[" * 60_000,
        json.dumps(SOUND | {"pid": "7"}).encode(),
        json.dumps(SOUND | {"dataset": ["x"]}).encode(),
        json.dumps(SOUND | {"more": "x" * (64 << 10)}).encode(),
    ],
)
def test_an_odd_document_counts_as_no_answer(tmp_path: Path, document: bytes) -> None:
    assert answer(tmp_path, document) is MountState.HUNG
