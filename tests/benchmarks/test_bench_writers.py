"""The writers of Figure 9 write what they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bench_writers import Datasets, DirectoryWriter, Packer

SIZE_BYTES = 100


def test_packers_write_into_one_dataset_all_that_is_counted(tmp_path: Path) -> None:
    folder, index = tmp_path / "ours", f"lmdb://{tmp_path}/index"
    datasets = Datasets(folder, index)
    datasets.make("some")
    for rank in range(2):
        assert Packer(folder, index).run("some", rank, 5, SIZE_BYTES) > 0
    with pytest.raises(RuntimeError, match="10 of 11 files"):
        datasets.remove("some", 11)


def test_a_directory_has_the_files_of_all_writers(tmp_path: Path) -> None:
    for rank in range(2):
        assert DirectoryWriter(tmp_path).run("some", rank, 5, SIZE_BYTES) > 0
    found = [path.stat().st_size for path in (tmp_path / "some").rglob("*.jpg")]
    assert found == [SIZE_BYTES] * 10
