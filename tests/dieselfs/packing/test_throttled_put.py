"""Puts, purges and clients against a store that throttles: slower, whole, and without an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.throttling_server import CREDENTIALS, Throttling, throttling_server
from chunkstore.stores.resilient import ResilientStore
from dieselfs.assembly import open_store
from dieselfs.dataset.dataset import open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.housekeeping.purge.purge import purge
from dieselfs.housekeeping.purge.purge_request import PurgeRequest
from dieselfs.packing.pack import pack
from dieselfs.packing.put_request import PackProgress, PackRequest
from dieselfs.packing.source_tree import SourceTree
from metadata.kv.lmdb_file import LmdbFileStore
from tests.dieselfs.dataset_content import content_of, tree_of

FILES, FILE_BYTES = 240, 2000
THROTTLED = Throttling(200, 0.002, 0.0, 1.0, keeps_chunks=True)
"""For a second from the first upload on: 20 uploads a second, 503 above that, 20 ms each."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with throttling_server(THROTTLED) as url:
        yield url


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(FILES):
        (folder / str(number)).write_bytes(number.to_bytes(2, "big") * (FILE_BYTES // 2))
    return folder


def test_a_put_of_several_processes_has_every_file(url: str, source: Path, tmp_path: Path) -> None:
    progress = PackProgress()
    request = PackRequest(
        [SourceTree(os.fsencode(source), b"")], jobs=2, target_bytes=8192, open_chunks=4
    )
    pack(
        *("d", request, lambda: open_store(url), lambda: LmdbFileStore(tmp_path / "index")),
        progress,
    )
    assert not progress.failed
    assert progress.files_committed == FILES
    assert progress.uploads.failures > 0
    assert 2 <= progress.uploads.least < 16
    index = LmdbFileStore(tmp_path / "index")
    try:
        found = content_of(open_dataset(open_store(url), index, "d"))
    finally:
        index.close()
    assert dict(found) == tree_of(source)


def test_a_writer_and_a_purge_back_off_too(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    assert isinstance(store, ResilientStore)
    index = LmdbFileStore(tmp_path / "index")
    try:
        dataset = open_dataset(store, index, "d", create=True)
        with DatasetWriter(dataset, target_bytes=8192, open_chunks=2) as writer:
            for number in range(FILES):
                writer.put(b"%d" % number, number.to_bytes(2, "big") * (FILE_BYTES // 2))
        after_put = store.statistics().uploads
        assert after_put.failures > 0
        with DatasetWriter(dataset, target_bytes=8192, open_chunks=2) as writer:
            for number in range(0, FILES, 2):
                writer.put(b"%d" % number, b"new")
        report = purge(dataset, PurgeRequest(grace_s=0, target_bytes=8192))
        assert report.chunks_retired > 0
        assert not report.damaged
        found = dict(content_of(dataset))
    finally:
        index.close()
    assert found[b"2"].data == b"new"
    assert found[b"3"].data == b"\0\3" * (FILE_BYTES // 2)
