"""The trace recorder: what is written when, limits, and disks that fail."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.object_keys import chunk_key
from chunkstore.ssd.policies.segment_buckets import key_of
from chunkstore.ssd.reader_tags import ReaderTags, decided_segment
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.cache.advice import recorder as recorder_module
from dieselfs.cache.advice.recorder import MIN_TRACE_BYTES, Recorder, TraceSettings
from dieselfs.cache.advice.recording_store import RecordingStore
from dieselfs.cache.advice.trace_file import read_trace
from dieselfs.cache.trace_options import TraceOptions, trace_settings, typed_options
from dieselfs.config import load_config
from dieselfs.errors import LocalFileError, UsageError
from tests.dieselfs.cache.advice.made_events import request, specification
from tests.eventually import PATIENCE_S


@pytest.fixture(autouse=True)
def _flushed_by_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder's thread writes nothing by itself before the end."""
    monkeypatch.setattr(recorder_module, "FLUSH_S", 3600.0)


def keys_of(path: Path) -> Sequence[int]:
    found: list[int] = read_trace(path).records["key"].tolist()
    return found


def test_what_is_flushed_outlives_the_process(tmp_path: Path) -> None:
    recorder = Recorder(TraceSettings(tmp_path / "trace"))
    recorder(request(1))
    recorder.flush()
    recorder(request(2))
    assert keys_of(tmp_path / "trace") == [1]
    recorder.close(PATIENCE_S)
    recorder(request(3))
    recorder.close(PATIENCE_S)
    assert keys_of(tmp_path / "trace") == [1, 2]


def test_a_second_recorder_overwrites_nothing(tmp_path: Path) -> None:
    for key in (1, 2, 3):
        recorder = Recorder(TraceSettings(tmp_path / "trace"))
        recorder(request(key))
        recorder.close(PATIENCE_S)
    assert [keys_of(path) for path in sorted(tmp_path.iterdir())] == [[1], [2], [3]]
    assert (tmp_path / "trace.3").exists()


def test_the_size_is_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    recorder = Recorder(TraceSettings(tmp_path / "trace", MIN_TRACE_BYTES))
    for _ in range(3):
        for key in range(1000):
            recorder(request(key))
        recorder.flush()
    assert not recorder.is_recording
    recorder.close(PATIENCE_S)
    assert (tmp_path / "trace").stat().st_size <= MIN_TRACE_BYTES
    assert len(keys_of(tmp_path / "trace")) == 2000
    assert sum("has reached its size" in line for line in caplog.messages) == 1


def test_a_disk_that_fails_ends_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(TraceSettings(tmp_path / "trace"))
    recorder(request(1))
    recorder.flush()

    def full(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    recorder(request(2))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        recorder.flush()
    recorder(request(3))
    recorder.close(PATIENCE_S)
    assert keys_of(tmp_path / "trace") == [1]
    assert [line for line in caplog.messages if "No space left" in line]


def test_an_event_that_cannot_be_encoded_ends_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(TraceSettings(tmp_path / "trace"))
    recorder(request(-1))
    recorder.flush()
    recorder.close(PATIENCE_S)
    assert len(caplog.messages) == 1
    assert keys_of(tmp_path / "trace") == []


def test_a_folder_that_has_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(TraceSettings(tmp_path / "absent/trace"))
    recorder(request(1))
    recorder.close(PATIENCE_S)
    assert "no trace is recorded" in caplog.text


def test_a_forked_child_does_not_record(tmp_path: Path) -> None:
    recorder = Recorder(TraceSettings(tmp_path / "trace"))
    recorder(request(1))
    recorder.renew()  # as a forked child does
    recorder(request(2))
    recorder.flush()
    recorder.close(PATIENCE_S)
    assert keys_of(tmp_path / "trace") == []


def test_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_RECORD_TRACE", str(tmp_path / "variable"))
    monkeypatch.setenv("DIESELFS_RECORD_TRACE_SIZE", "1MiB")
    config = load_config()
    found = trace_settings(TraceOptions(), config)
    assert found == TraceSettings(tmp_path / "variable", 1 << 20)
    monkeypatch.chdir(tmp_path)
    found = trace_settings(typed_options("typed", None), config)
    assert found == TraceSettings(tmp_path / "typed", 1 << 20)
    monkeypatch.delenv("DIESELFS_RECORD_TRACE")
    config = load_config()
    assert trace_settings(TraceOptions(), config) is None
    with pytest.raises(UsageError, match="without a file"):
        trace_settings(TraceOptions(None, 1 << 20), config)
    with pytest.raises(UsageError, match="of 0 bytes"):
        trace_settings(TraceOptions("/tmp/trace", 0), config)
    with pytest.raises(UsageError, match="absolute path"):
        trace_settings(TraceOptions("trace", None), config)
    with pytest.raises(LocalFileError, match="there is no folder"):
        trace_settings(TraceOptions(str(tmp_path / "absent/trace"), None), config)
    with pytest.raises(LocalFileError, match="no file can be created"):
        trace_settings(TraceOptions(str(tmp_path), None), config)


def test_reads_without_an_ssd_tier_are_recorded(tmp_path: Path) -> None:
    dataset, store = DatasetRef("pets", bytes(16)), MemoryObjectStore()
    chunks = [ChunkId(bytes([number]) * 16) for number in range(2)]
    for chunk in chunks:
        store.create(chunk_key("pets", chunk), [bytes(100)])
    recorder = Recorder(TraceSettings(tmp_path / "trace"))
    tags = ReaderTags(lambda chunk: request(0).bucket, "job", 7)
    recording = RecordingStore(store, dataset, recorder, {chunks[0]: 100}.get, tags)
    for start in (0, 50):
        assert len(recording.get_range(chunk_key("pets", chunks[0]), start, 50)) == 50
    recording.get(chunk_key("pets", chunks[1]))
    tags.may_keep = False
    recording.get(chunk_key("pets", chunks[1]))
    recording.publish(specification())
    assert not recording.forget(chunk_key("pets", chunks[0]))
    recorder.close(PATIENCE_S)
    found = read_trace(tmp_path / "trace")
    assert found.records["key"].tolist() == [
        key_of(decided_segment(chunk.value, 0)) for chunk in chunks
    ]
    assert found.records["length"].tolist() == [100, 4 << 20]
    assert found.records["epoch"].tolist() == [7, 7]
    assert [each.specification.job for each in found.publications] == ["job"]
