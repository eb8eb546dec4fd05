"""scrub: every flip found and laid to the right file; resumed, sampled, limited, interrupted."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkstore.errors import Unavailable
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.object_store import ObjectStore
from dieselfs.checking import ChunkSample, FindingKind, ScrubReport, Verdict, scrub
from dieselfs.checking.scrub_progress import ScrubFile
from dieselfs.errors import Conflict
from dieselfs.snapshots import lifecycle
from metadata.kv.memory import MemoryStore
from tests.chunkstore.packed import StoreWrapper
from tests.dieselfs.checking.made_dataset import NAME, MadeDataset, flipped, retire, some_files
from tests.eventually import eventually

FLIPS = int(os.environ.get("DIESELFS_PAYLOAD_FLIPS", "300"))
"""`DIESELFS_PAYLOAD_FLIPS=2000` for the number in the reliability report."""


@pytest.fixture
def made() -> MadeDataset:
    made = MadeDataset()
    made.put(some_files())
    return made


class Reads(StoreWrapper):
    """Counts the chunks that were read, and stops at one if told to."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.chunks: list[str] = []
        self.stop_at: int | None = None
        self.error: BaseException = Unavailable("the store is out")

    def before(self, call: str, key: str) -> None:
        if call == "get_range" and "/chunks/" in key:
            if len(self.chunks) == self.stop_at:
                raise self.error
            self.chunks.append(key)


def run(made: MadeDataset, store: ObjectStore | None = None, **options: object) -> ScrubReport:
    return scrub(store or made.store, made.index, NAME, **options)  # type: ignore[arg-type]


def test_a_sound_dataset_is_clean(made: MadeDataset) -> None:
    advanced: list[tuple[int, int]] = []
    expected: list[tuple[int, int]] = []

    class Shown:
        def advance(self, files: int, size_bytes: int) -> None:
            advanced.append((files, size_bytes))

        def expect(self, files: int, size_bytes: int) -> None:
            expected.append((files, size_bytes))

    report = run(made, progress=Shown())
    assert (report.verdict, report.findings) == (Verdict.CLEAN, ())
    assert (report.files, report.chunks) == (40, len(made.objects()))
    total = sum(len(made.store.get(key)) for key in made.objects())
    assert expected == [(0, total)]
    assert tuple(map(sum, zip(*advanced, strict=True))) == (40, total) == (40, report.size_bytes)


def test_random_flips_in_payloads_are_all_found_and_the_file_hit_is_named() -> None:
    made = MadeDataset()
    made.put(some_files(12))
    chosen = random.Random(7)
    found = 0
    for _ in range(FLIPS):
        key = chosen.choice(made.objects())
        at = chosen.randrange(made.head_bytes(key), len(made.store.get(key)))
        sound, path = made.store.get(key), made.file_at(key, at)
        made.flip(key, at, chosen.randrange(8))
        [finding] = run(made, jobs=1).findings
        assert (finding.kind, finding.object, finding.files) == (
            FindingKind.CHUNK_PAYLOAD,
            key,
            (path,),
        )
        made.replace(key, sound)
        found += 1
    assert found == FLIPS
    assert run(made).verdict is Verdict.CLEAN


DAMAGE: dict[str, tuple[FindingKind, Callable[[MadeDataset, str, str], bytes | None]]] = {
    "missing": (FindingKind.CHUNK_MISSING, lambda made, key, other: None),
    "empty": (FindingKind.CHUNK_LENGTH, lambda made, key, other: b""),
    "another valid chunk": (
        FindingKind.CHUNK_FOREIGN,
        lambda made, key, other: made.store.get(other),
    ),
    "its header flipped": (
        FindingKind.CHUNK_HEAD,
        lambda made, key, other: flipped(made.store.get(key), 70),
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_chunk_damaged_as_a_whole_hits_all_its_files(made: MadeDataset, case: str) -> None:
    kind, damaged = DAMAGE[case]
    key, other = made.objects()[:2]
    paths = made.paths(key)
    made.replace(key, damaged(made, key, other))
    [finding] = run(made).findings
    assert (finding.kind, finding.object, finding.files) == (kind, key, paths)


def test_damage_in_a_deleted_file_hits_nobody_now_but_a_kept_snapshot(
    made: MadeDataset, tmp_path: Path
) -> None:
    key = made.objects()[0]
    at = made.head_bytes(key)
    path = made.file_at(key, at)
    kept = lifecycle.create(made.open(), tmp_path)
    made.put({path.decode(): b"newer"})
    made.flip(key, at)
    [finding] = run(made).findings
    assert finding.files == ()
    [hit] = finding.snapshots
    assert (f"{NAME}-{hit.snapshot_id}", hit.files) == (kept.stem, 1)


def test_a_retired_chunk_is_read_for_the_snapshot_that_needs_it(
    made: MadeDataset, tmp_path: Path
) -> None:
    key = made.objects()[0]
    kept = lifecycle.create(made.open(), tmp_path)
    retire(made, key)
    made.flip(key, made.head_bytes(key))
    [finding] = run(made).findings
    assert (finding.object, finding.files) == (key, ())
    assert [hit.files for hit in finding.snapshots] == [1]
    made.replace(f"datasets/{NAME}/snapshots/{kept.stem.removeprefix(f'{NAME}-')}", None)
    assert run(made).findings == ()  # nobody needs it any more


def test_a_retired_chunk_that_is_gone_is_missed_by_nobody(made: MadeDataset) -> None:
    key = made.objects()[0]
    retire(made, key)
    made.replace(key, None)
    assert run(made).findings == ()


def test_without_an_index_the_heads_name_the_files(made: MadeDataset) -> None:
    key = made.objects()[0]
    at = made.head_bytes(key)
    path = made.file_at(key, at)
    made.flip(key, at)
    made.index = MemoryStore()
    [finding] = run(made).findings
    assert finding.files == (path,)


def test_a_sample_is_chosen_by_its_seed(made: MadeDataset) -> None:
    made.put(some_files(200, "more/"))
    there = len(made.objects())
    chosen = []
    for seed in (1, 1, 2, 3):
        reads = Reads(made.store)
        report = run(made, reads, sample=ChunkSample(0.2, seed))
        assert (report.chunks, report.chunks_there, report.seed) == (-(-there // 5), there, seed)
        chosen.append(tuple(sorted(set(reads.chunks))))
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) == 3
    assert len({run(made, sample=ChunkSample(0.2)).seed for _ in range(4)}) > 1


def test_it_goes_on_where_it_was_stopped_and_reports_what_was_found_before(
    made: MadeDataset, tmp_path: Path
) -> None:
    made.put(some_files(200, "more/"))
    keys = made.objects()
    paths = made.paths(keys[0])
    made.replace(keys[0], None)
    reads = Reads(made.store)
    reads.stop_at = len(keys) // 2
    with pytest.raises(Unavailable):
        run(made, reads, progress_folder=tmp_path, jobs=1)
    first = set(reads.chunks)
    reads = Reads(made.store)
    report = run(made, reads, progress_folder=tmp_path, jobs=1)
    assert report.resumed
    assert (report.chunks, [finding.files for finding in report.findings]) == (len(keys), [paths])
    # What was under way when the other one stopped is read again, and nothing else.
    assert len(first & set(reads.chunks)) <= 2
    assert first | set(reads.chunks) == set(keys[1:])
    assert not run(made, progress_folder=tmp_path).resumed


def test_restart_and_another_sample_begin_anew(made: MadeDataset, tmp_path: Path) -> None:
    for options in ({"restart": True}, {"sample": ChunkSample(1.0, 5)}):
        reads = Reads(made.store)
        reads.stop_at = 2
        with pytest.raises(Unavailable):
            run(made, reads, progress_folder=tmp_path, jobs=1)
        report = run(made, progress_folder=tmp_path, **options)
        assert (report.resumed, report.chunks) == (False, len(made.objects()))


def test_a_sample_is_resumed_with_its_seed(made: MadeDataset, tmp_path: Path) -> None:
    made.put(some_files(200, "more/"))
    reads = Reads(made.store)
    reads.stop_at = 4
    with pytest.raises(Unavailable):
        run(made, reads, progress_folder=tmp_path, jobs=1, sample=ChunkSample(0.5, 77))
    report = run(made, progress_folder=tmp_path, sample=ChunkSample(0.5))
    assert (report.resumed, report.seed) == (True, 77)


def test_what_is_committed_meanwhile_is_left_to_the_next(made: MadeDataset, tmp_path: Path) -> None:
    before = len(made.objects())
    reads = Reads(made.store)
    reads.stop_at = 2
    with pytest.raises(Unavailable):
        run(made, reads, progress_folder=tmp_path, jobs=1)
    made.put({"later.jpg": b"later"})
    report = run(made, progress_folder=tmp_path)
    assert (report.generation, report.chunks) == (2, before)
    report = run(made, progress_folder=tmp_path)
    assert (report.generation, report.chunks) == (3, before + 1)


def test_the_file_of_another_place_is_another(made: MadeDataset, tmp_path: Path) -> None:
    reads = Reads(made.store)
    reads.stop_at = 2
    with pytest.raises(Unavailable):
        run(made, reads, progress_folder=tmp_path, place="here", jobs=1)
    assert not run(made, progress_folder=tmp_path, place="there").resumed
    assert run(made, progress_folder=tmp_path, place="here").resumed


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"version": 2}',
        b'{"version": 1, "generation": "x"}',
        b"\xff",
    ],
)
def test_a_progress_file_that_makes_no_sense_is_no_obstacle(
    made: MadeDataset, tmp_path: Path, content: bytes
) -> None:
    file = ScrubFile(tmp_path, made.open().ref.id, "")
    file.path.write_bytes(content)
    report = run(made, progress_folder=tmp_path)
    assert (report.verdict, report.resumed) == (Verdict.CLEAN, False)


def test_the_progress_is_the_users_alone(made: MadeDataset, tmp_path: Path) -> None:
    folder = tmp_path / "cache/scrub"
    reads = Reads(made.store)
    reads.stop_at = 2
    with pytest.raises(Unavailable):
        run(made, reads, progress_folder=folder, jobs=1)
    file = ScrubFile(folder, made.open().ref.id, "")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_one_scrub_at_a_time(made: MadeDataset, tmp_path: Path) -> None:
    with ScrubFile(tmp_path, made.open().ref.id, "").locked(), pytest.raises(Conflict):
        run(made, progress_folder=tmp_path)


def test_ctrl_c_keeps_what_was_done(made: MadeDataset, tmp_path: Path) -> None:
    made.put(some_files(200, "more/"))
    reads = Reads(made.store)
    reads.stop_at, reads.error = 3, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(made, reads, progress_folder=tmp_path, jobs=1)
    kept = ScrubFile(tmp_path, made.open().ref.id, "").read()
    assert kept is not None
    assert kept.chunks == 3


SCRUB_SLOWLY = """
import sys
from pathlib import Path
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.checking import scrub
from metadata.kv.memory import MemoryStore
scrub(LocalDirectory(Path(sys.argv[1])), MemoryStore(), "pets", rate_bytes_per_s=4000, jobs=1,
      progress_folder=Path(sys.argv[2]))
"""


def test_a_killed_scrub_goes_on_from_what_it_last_saved(
    made: MadeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.put(some_files(200, "more/"))
    store, folder = LocalDirectory(tmp_path / "store"), tmp_path / "cache"
    for info in made.store.list(""):
        store.create(info.key, [made.store.get(info.key)])
    file = ScrubFile(folder, made.open().ref.id, "")
    process = subprocess.Popen(
        [sys.executable, "-c", SCRUB_SLOWLY, str(store.root), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        eventually(
            lambda: file.path.exists() or process.poll() is not None, "the progress is saved"
        )
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = file.read()
    assert kept is not None
    assert 0 < kept.chunks < len(made.objects())
    reads = Reads(store)
    report = run(made, reads, progress_folder=folder)
    assert (report.resumed, report.chunks) == (True, len(made.objects()))
    assert len(set(reads.chunks)) == len(made.objects()) - kept.chunks


def test_many_jobs_find_the_same(made: MadeDataset) -> None:
    made.put(some_files(300, "more/"))
    expected = {}
    for key in made.objects()[::3]:
        at = made.head_bytes(key)
        expected[key] = (made.file_at(key, at),)
        made.flip(key, at)
    report = run(made, jobs=8)
    assert {finding.object: finding.files for finding in report.findings} == expected
