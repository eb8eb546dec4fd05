"""The control directory: what is mounted, how it fares, and shuffled lists, exact also while
polled."""

import errno
import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chunkstore.chunk_id import print_id
from dieselfs.shuffle.order import parse_parameters, shuffle_order
from metadata.snapshot import Snapshot
from tests.fork_server import FORK_SERVER
from tests.mount.mounting import Mount, both_fronts, mounted, names_in
from tests.mount.packing import PackedDataset, pack, write_file
from tests.mount.reading_processes import poll_control_files

pytestmark = both_fronts


def control(mount: Mount) -> Path:
    return mount.path / ".dieselfs"


def expected_list(packed: PackedDataset, text: str) -> bytes:
    parameters = parse_parameters(text)
    with Snapshot.open(packed.snapshot) as snapshot:
        order = shuffle_order(
            snapshot.chunk_first_inode,
            parameters.seed,
            parameters.epoch,
            parameters.group_size,
            parameters.rank,
            parameters.world_size,
        )
        return snapshot.paths_text(order.inodes)


def test_the_root_does_not_list_it(kind: str, sample_mount: Mount) -> None:
    """EROFS does: see test_listing."""
    assert (".dieselfs" in os.listdir(sample_mount.path)) == (kind != "fuse")


def test_it_lists_its_files(sample_mount: Mount) -> None:
    assert os.listdir(control(sample_mount)) == [
        *("dataset.json", "refresh.json", "snapshot", "stats.json"),
        *("shuffle", "plan", "why"),
    ]
    for folder in ("shuffle", "plan", "why"):
        assert os.listdir(control(sample_mount) / folder) == ["README"]
    assert b"seed=1,epoch=0" in (control(sample_mount) / "shuffle" / "README").read_bytes()


def test_its_entries_have_their_types(sample_mount: Mount) -> None:
    types = {entry.name: entry.is_dir() for entry in os.scandir(control(sample_mount))}
    names = ["dataset.json", "refresh.json", "snapshot", "stats.json"]
    documents = dict.fromkeys(names, False)
    assert types == {**documents, "shuffle": True, "plan": True, "why": True}
    assert stat.S_IMODE((control(sample_mount) / "stats.json").stat().st_mode) == 0o444


def test_dataset_json_says_what_is_mounted(
    kind: str, sample: PackedDataset, sample_mount: Mount
) -> None:
    found = json.loads((control(sample_mount) / "dataset.json").read_text())
    with Snapshot.open(sample.snapshot) as snapshot:
        assert found["dataset"] == "sample"
        assert found["dataset_id"] == print_id(snapshot.dataset.id)
        assert found["snapshot"] == snapshot.id
        assert found["generation"] == snapshot.generation
        assert (found["files"], found["bytes"]) == (snapshot.file_count, snapshot.total_bytes)
        assert found["chunks"] == snapshot.chunk_count
    assert found["pid"] == sample_mount.pid
    assert found["server_pid"] in sample_mount.servers()
    assert found["front"]["kind"] == kind
    assert found["front"]["reason"]
    assert found["options"]["mountpoint"] == str(sample_mount.path)
    age = datetime.now(UTC) - datetime.fromisoformat(found["mounted"])
    assert 0 <= age.total_seconds() < 3600


def test_dataset_json_holds_no_secret(sample: PackedDataset, sample_mount: Mount) -> None:
    text = (control(sample_mount) / "dataset.json").read_text()
    assert "secret" not in text
    assert json.loads(text)["store"] == f"file://host{sample.store}"


def test_statistics_count_requests_and_bytes(kind: str, small_mount: Mount) -> None:
    before = small_mount.statistics()
    (small_mount.path / "large").read_bytes()
    after = small_mount.statistics()
    more = after["bytes_read"] - before["bytes_read"] - 3_000_000
    assert more == 0 if kind == "fuse" else 0 <= more < 2 << 20, (
        "of the files beside it in the blob"
    )
    assert after["requests"]["read"] > before["requests"].get("read", 0)
    assert after["cache"]["misses"] > before["cache"]["misses"]
    assert after["uptime_s"] > before["uptime_s"]


def test_each_look_up_gives_a_document_a_new_inode_and_time(sample_mount: Mount) -> None:
    path = control(sample_mount) / "stats.json"
    first, second = path.stat(), path.stat()
    assert first.st_ino != second.st_ino
    assert first.st_mtime_ns < second.st_mtime_ns


def test_an_open_document_keeps_its_content(sample_mount: Mount) -> None:
    with open(control(sample_mount) / "stats.json", "rb") as reading:
        first = reading.read()
        (sample_mount.path / "nanoseconds").read_bytes()
        sample_mount.statistics()
        reading.seek(0)
        assert reading.read() == first
        assert os.fstat(reading.fileno()).st_size == len(first)


def test_polled_by_four_processes_every_answer_is_whole(small_mount: Mount) -> None:
    pollers = [
        FORK_SERVER.Process(target=poll_control_files, args=(small_mount.path, 150))
        for _ in range(4)
    ]
    for poller in pollers:
        poller.start()
    for poller in pollers:
        poller.join()
    assert [poller.exitcode for poller in pollers] == [0] * 4


@pytest.mark.parametrize(
    "text",
    [
        "seed=1,epoch=0,group=100,rank=0,world=1",
        "seed=1,epoch=1,group=2,rank=1,world=3",
        "epoch=3",
        "world=2,rank=1,seed=9",
    ],
)
def test_a_list_is_the_shuffled_order(
    sample_no_newline: PackedDataset, list_mount: Mount, text: str
) -> None:
    path = control(list_mount) / "shuffle" / text
    expected = expected_list(sample_no_newline, text)
    assert path.stat().st_size == len(expected)
    assert path.read_bytes() == expected


def test_the_paths_of_a_list_can_be_opened(list_mount: Mount) -> None:
    text = (control(list_mount) / "shuffle" / "seed=3").read_bytes()
    paths = text.splitlines()
    assert len(paths) == 70
    for path in paths:
        with open(os.path.join(os.fsencode(list_mount.path), path), "rb") as reading:
            assert reading.read() == b"content of " + path


def test_a_list_keeps_its_inode_while_it_is_known(list_mount: Mount) -> None:
    path = control(list_mount) / "shuffle" / "seed=4,epoch=0"
    with open(path, "rb"):
        other_spelling = control(list_mount) / "shuffle" / "epoch=0,seed=4"
        assert path.stat().st_ino == path.stat().st_ino == other_spelling.stat().st_ino


def test_an_empty_dataset_has_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with mounted(pack(tmp_path / "source", tmp_path), tmp_path) as mount:
        assert names_in(mount.path) == []
        assert (control(mount) / "shuffle" / "seed=1").read_bytes() == b""


@pytest.mark.parametrize(
    "name", ["seed=x", "seed=1,rank=2,world=2", "other=1", "seed=1,,", "=", "seed=\udcff"]
)
def test_wrong_parameters_are_invalid(sample_mount: Mount, name: str) -> None:
    with pytest.raises(OSError) as raised:
        os.stat(control(sample_mount) / "shuffle" / name)
    assert raised.value.errno == errno.EINVAL
    assert "cannot make the shuffled list" in sample_mount.log


@pytest.mark.parametrize("name", ["nothing", "shuffle/nothing", "shuffle/.git", "stats.json2"])
def test_other_names_do_not_exist(sample_mount: Mount, name: str) -> None:
    assert not (control(sample_mount) / name).exists()


def test_a_list_that_lines_cannot_hold_is_refused(sample_mount: Mount) -> None:
    with pytest.raises(OSError) as raised:
        os.stat(control(sample_mount) / "shuffle" / "seed=1")
    assert raised.value.errno == errno.ENOTSUP, "a name in this dataset holds a newline"


def test_it_hides_a_directory_of_its_name_in_the_dataset(tmp_path: Path) -> None:
    write_file(tmp_path / "source" / ".dieselfs" / "own", b"hidden")
    write_file(tmp_path / "source" / "file", b"shown")
    with mounted(pack(tmp_path / "source", tmp_path), tmp_path) as mount:
        assert names_in(mount.path) == ["file"]
        assert (mount.path / "file").read_bytes() == b"shown"
        assert not (control(mount) / "own").exists()
        assert (control(mount) / "stats.json").exists()
        assert "is hidden by the control directory" in mount.log


@pytest.fixture(scope="module")
def sample_no_newline(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    folder = tmp_path_factory.mktemp("lists")
    for n in range(70):
        name = f"c{n % 7}/{n:03}"
        write_file(folder / "source" / name, b"content of " + name.encode())
    return pack(folder / "source", folder)


@pytest.fixture(scope="module")
def list_mount(
    kind: str, sample_no_newline: PackedDataset, tmp_path_factory: pytest.TempPathFactory
):
    with mounted(sample_no_newline, tmp_path_factory.mktemp("list-mount")) as mount:
        yield mount
