"""`dieselfs.mount`: a real mount for the time of a `with` block."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dieselfs
from dieselfs.errors import AddressError, DieselFSError, PlanTooLarge, UsageError
from dieselfs.fuse.mounts.mount_table import entry_at
from metadata.errors import DatasetNotFound
from tests.contracts.key_value_store_contract import fork


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE", "INDEX", "PROFILE", "SNAPSHOTS", "SSD", "CACHE_CLUSTER"):
        monkeypatch.delenv(f"DIESELFS_{name}", raising=False)
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("DIESELFS_TASK", f"test-{os.getpid()}-{tmp_path.name}")


@pytest.fixture
def pets() -> str:
    with dieselfs.connect("pets", create=True) as client:
        for number in range(20):
            client.put(bytes([number]) * 1000, f"cat/{number}")
    return "pets"


def test_files_are_there_for_the_block_and_for_other_programs(pets: str, tmp_path: Path) -> None:
    mounting = dieselfs.mount(pets, tmp_path / "made" / "mnt", memory="32MiB")
    with mounting as root:
        assert root == tmp_path / "made" / "mnt"
        assert (root / "cat" / "3").read_bytes() == b"\3" * 1000
        listed = [
            sys.executable,
            "-c",
            f"import os; print(len(os.listdir({str(root)!r} + '/cat')))",
        ]
        assert subprocess.check_output(listed, text=True).strip() == "20"
        assert os.waitpid(fork(lambda: mounting.__exit__(None, None, None)), 0)[1] == 0
        assert entry_at(root) is not None  # the block of a forked child is over
        left_open = (root / "cat" / "7").open("rb")
    assert entry_at(root) is None
    assert left_open.read() == b"\7" * 1000
    left_open.close()


def test_a_version_an_order_and_an_ssd_are_taken(pets: str, tmp_path: Path) -> None:
    with dieselfs.connect(pets) as client:
        generation = client.dataset.namespace.state().generation
        client.save_meta()
        client.put(b"new", "cat/3")
        client.save_meta()
    settings = {"memory": "64MiB", "ssd": tmp_path / "ssd", "ssd_size": "64MiB"}
    with dieselfs.mount(
        f"{pets}@{generation}", tmp_path / "mnt", shuffle="seed=1,group=2", **settings
    ) as root:
        assert (root / "cat" / "3").read_bytes() == b"\3" * 1000
        assert '"ssd"' in (root / ".dieselfs" / "stats.json").read_text()
    assert (tmp_path / "ssd" / "budget").exists()


def test_the_mount_ends_when_the_block_fails_and_may_be_ended_before(
    pets: str, tmp_path: Path
) -> None:
    with pytest.raises(ZeroDivisionError), dieselfs.mount(pets, tmp_path / "mnt"):
        1 / 0  # noqa: B018
    assert entry_at(tmp_path / "mnt") is None
    with dieselfs.mount(pets, tmp_path / "mnt") as root:
        subprocess.run(["umount", "-R", root], check=True)
    assert entry_at(root) is None


def test_bad_requests_are_refused_and_leave_nothing(pets: str, tmp_path: Path) -> None:
    refused: list[tuple[str, dict[str, str], type[Exception]]] = [
        ("nothing", {}, DatasetNotFound),
        ("pets:cat", {}, AddressError),
        (pets, {"shuffle": "sead=1"}, UsageError),
        (pets, {"memory": "much"}, UsageError),
        (pets, {"memory": "4KiB", "shuffle": "seed=1,group=100"}, PlanTooLarge),
    ]
    for address, options, error in refused:
        with pytest.raises(error), dieselfs.mount(address, tmp_path / "mnt", **options):  # type: ignore[arg-type]
            pass
        assert entry_at(tmp_path / "mnt") is None
    (tmp_path / "mnt" / "file").write_text("mine")
    with pytest.raises(DieselFSError, match="not empty"), dieselfs.mount(pets, tmp_path / "mnt"):
        pass
