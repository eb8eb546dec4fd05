"""What a mount says of itself is not believed blindly: it may be anybody's."""

import json
import os
from pathlib import Path

import pytest

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
