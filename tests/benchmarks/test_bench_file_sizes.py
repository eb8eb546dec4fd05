"""The epoch of Table 2 through the client reads every byte of the dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import mount_contenders
from benchmarks.bench_file_sizes import ColdEpochs
from benchmarks.mount_contenders import Dataset, Reader
from dieselfs.client import connect

FILES, SIZE_BYTES = 20, 1000


def test_it_reads_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for what in ("drop_all_caches", "drop_page_cache"):
        monkeypatch.setattr(mount_contenders, what, lambda folder: None)
    (tmp_path / "store").mkdir()
    (tmp_path / "source").mkdir()
    store, index = f"file://{tmp_path}/store", f"lmdb://{tmp_path}/index"
    with connect("bench", store=store, index=index, create=True) as client:
        for number in range(FILES):
            client.put(bytes(SIZE_BYTES), f"class/{number}")
    data = Dataset(tmp_path, FILES, SIZE_BYTES, 1, FILES * SIZE_BYTES)
    reader = Reader(tmp_path / "none")
    assert ColdEpochs(data, reader).api() > 0
    with pytest.raises(RuntimeError, match="20000 bytes instead of 20001"):
        ColdEpochs(replace(data, payload_bytes=20_001), reader).api()
