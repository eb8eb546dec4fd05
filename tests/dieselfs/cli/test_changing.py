"""rm, dataset, snapshot: what they change, and what they refuse to."""

import time
from pathlib import Path

import pytest

from chunkstore.errors import StoreFull
from chunkstore.leases import Lease, new_lease_id, write_lease
from dieselfs.assembly import open_index, open_store
from dieselfs.client import Client
from metadata.kernel_image_name import image_name_parts
from tests.dieselfs.cli.conftest import Dlcmd

pytestmark = pytest.mark.usefixtures("pets")


def test_rm_wants_a_confirmation_where_nobody_can_be_asked(dlcmd: Dlcmd) -> None:
    result = dlcmd("rm", "pets:readme.txt")
    assert result.code == 2
    assert "--yes" in result.err
    assert dlcmd("cat", "pets:readme.txt").code == 0


def test_rm_deletes_files_and_with_r_directories(dlcmd: Dlcmd) -> None:
    assert dlcmd("rm", "-y", "pets:cat").code == 2
    assert dlcmd("rm", "-y", "-r", "pets:cat", "pets:readme.txt").code == 0
    assert dlcmd("ls", "pets").lines == ["dog/", "odd/"]


def published(dlcmd: Dlcmd) -> list[int]:
    found = dlcmd("--json", "snapshot", "ls", "pets").records
    return [record["generation"] for record in found if record["published"]]


def test_rm_publishes_one_snapshot_as_put_does(
    dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = published(dlcmd)
    assert dlcmd("rm", "-y", "--no-publish", "pets:readme.txt").code == 0
    assert published(dlcmd) == before
    records = dlcmd("--json", "rm", "-y", "pets:cat/1.jpg", "pets:cat/2.jpg").records
    assert [record.get("path") for record in records] == ["cat/1.jpg", "cat/2.jpg", None]
    [shown] = set(published(dlcmd)) - set(before)
    assert records[-1]["snapshot"].startswith(f"{shown}-")
    assert dlcmd("rm", "-y", "pets:nothing").code == 4
    assert dlcmd("rm", "-n", "-r", "pets:dog").code == 0
    assert published(dlcmd) == [*before, shown]

    def full(*_: object) -> None:
        raise StoreFull("no space left")

    monkeypatch.setattr("dieselfs.snapshots.put_snapshots.publish_once", full)
    result = dlcmd("rm", "-y", "-r", "pets:dog")
    assert (result.code, "no space left; mounts without" in result.err) == (0, True)


@pytest.mark.parametrize("flag", ["-n", "--dry-run", "--dryrun", "--dry"])
def test_a_dry_run_changes_nothing(dlcmd: Dlcmd, flag: str) -> None:
    result = dlcmd("del", flag, "-r", "pets:cat")
    assert result.lines == ["would delete dl://pets/cat/1.jpg", "would delete dl://pets/cat/2.jpg"]
    assert len(dlcmd("ls", "pets:cat").lines) == 2


def test_max_delete_is_a_limit(dlcmd: Dlcmd) -> None:
    result = dlcmd("rm", "-y", "-r", "--max-delete", "1", "pets:cat")
    assert (result.code, "nothing was deleted" in result.err) == (1, True)
    assert dlcmd("rm", "-y", "-r", "--max-delete", "2", "pets:cat").code == 0


def test_max_delete_is_a_limit_for_all_addresses_together(dlcmd: Dlcmd) -> None:
    both = ("pets:cat/1.jpg", "pets:cat/2.jpg")
    result = dlcmd("rm", "-y", "--max-delete", "1", *both)
    assert (result.code, "the 2 addresses hold 2 files" in result.err) == (1, True)
    assert len(dlcmd("ls", "pets:cat").lines) == 2
    assert dlcmd("rm", "-y", "--max-delete", "2", "pets:nothing", *both).code == 6
    assert dlcmd("ls", "pets:cat").lines == []


def test_rm_of_several_tells_that_some_failed(dlcmd: Dlcmd) -> None:
    assert dlcmd("rm", "-y", "pets:nothing", "pets:readme.txt").code == 6
    assert dlcmd("rm", "-y", "pets:nothing").code == 4


@pytest.mark.parametrize("address", ["pets", "pets@2:cat/1.jpg"])
def test_rm_refuses_datasets_and_snapshots(dlcmd: Dlcmd, address: str) -> None:
    assert dlcmd("rm", "-y", "-r", address).code == 2


def test_dataset_info(dlcmd: Dlcmd) -> None:
    dlcmd("rm", "-y", "pets:readme.txt")
    [record] = dlcmd("dataset", "info", "pets", "--json").records
    assert {
        "name",
        "id",
        "generation",
        "files",
        "bytes",
        "directories",
        "chunks",
        "updated",
    } <= set(record)
    assert (record["name"], record["files"], record["directories"]) == ("pets", 5, 4)
    assert record["holes"]["bytes"] == 6
    assert dlcmd("dataset", "info", "pets").lines[0].split() == ["name:", "pets"]


def test_dataset_rm(dlcmd: Dlcmd) -> None:
    assert dlcmd("dataset", "rm", "pets").code == 2
    assert dlcmd("dataset", "rm", "pets", "-y").code == 0
    assert dlcmd("dataset", "ls").lines == []
    assert dlcmd("dataset", "rm", "pets", "-y").code == 3


def test_dataset_rm_leaves_no_snapshot_on_this_machine(
    dlcmd: Dlcmd, url: str, snapshots: Path
) -> None:
    with Client.connect(
        "others",
        store=open_store(url),
        index=open_index(url),
        create=True,
        snapshot_folder=snapshots,
    ) as others:
        others.put(b"x", "x")
        kept = others.save_meta()
    [made] = dlcmd("snapshot", "create", "pets", "--json").records
    image = Path(made["file"]).with_name(f"{Path(made['file']).stem}-u0-g0-w3-{'0' * 32}.erofs")
    image.touch()
    assert image_name_parts(image.name) is not None
    [record] = dlcmd("dataset", "rm", "pets", "-y", "--json").records
    assert (record["removed"], record["local_files"]) == (True, 1)
    assert list(snapshots.iterdir()) == [kept]


def test_dataset_rm_names_whom_it_hits(dlcmd: Dlcmd, url: str, pets: Client) -> None:
    store = open_store(url)
    lease = Lease(new_lease_id(), 1, pets.dataset.ref.id, (2,), "node-1", 7, time.time_ns())
    write_lease(store, "pets", lease)
    assert dlcmd("snapshot", "create", "pets").code == 0
    assert dlcmd("snapshot", "tag", "pets", "v1").code == 0
    before = sorted(info.key for info in store.list(""))
    refused = dlcmd("dataset", "rm", "pets", "--yes")
    assert refused.code == 1
    for part in (
        "in use by a mount on node-1 (process 7) and tag v1",
        "snapshot untag pets v1`",
        "--force",
    ):
        assert part in refused.err
    assert sorted(info.key for info in store.list("")) == before
    assert dlcmd("dataset", "rm", "pets", "--force").code == 2  # nobody to ask
    removed = dlcmd("dataset", "rm", "pets", "--yes", "--force", "--json")
    [record] = removed.records
    assert record["mounts"] == [{"host": "node-1", "pid": 7, "generations": [2]}]
    assert record["tags"] == ["v1"]
    assert dlcmd("dataset", "rm", "pets", "-y").code == 3


def test_dataset_rm_with_force_tells_people_whom_it_hit(dlcmd: Dlcmd) -> None:
    assert dlcmd("snapshot", "create", "pets").code == 0
    assert dlcmd("snapshot", "tag", "pets", "v1").code == 0
    removed = dlcmd("dataset", "rm", "pets", "--yes", "--force")
    assert (removed.code, "removed dataset pets; used by tag v1" in removed.err) == (0, True)


def test_a_snapshot_is_made_listed_shown_pulled_and_verified(dlcmd: Dlcmd, snapshots: Path) -> None:
    [record] = dlcmd("snapshot", "create", "pets", "--json").records
    assert (record["dataset"], record["generation"], record["files"], record["published"]) == (
        "pets",
        2,
        6,
        True,
    )
    assert dlcmd("snapshot", "ls", "pets").lines[1].split()[-2:] == ["local,", "store"]
    file = Path(record["file"])
    assert (file.parent, snapshots.stat().st_mode & 0o777) == (snapshots, 0o700)
    file.unlink()
    assert dlcmd("snapshot", "pull", "pets").lines == [str(file)]
    assert dlcmd("snapshot", "verify", f"pets@{record['id']}").code == 0
    shown = dlcmd("snapshot", "show", str(file), "--json").records
    assert [shown[0][key] for key in ("id", "files")] == [record["id"], 6]
    assert dlcmd("snapshot", "show", "pets").lines[0].split() == ["dataset:", "pets"]


def test_a_damaged_snapshot_is_refused(dlcmd: Dlcmd, tmp_path: Path) -> None:
    [record] = dlcmd("snapshot", "create", "pets", "--json", "--no-publish").records
    content = bytearray(Path(record["file"]).read_bytes())
    content[-100] ^= 1
    damaged = tmp_path / "damaged.snapshot"
    damaged.write_bytes(content)
    assert dlcmd("snapshot", "verify", damaged).code == 7
    damaged.write_bytes(content[:10])
    assert dlcmd("snapshot", "verify", damaged).code == 7


def test_a_snapshot_that_is_not_there(dlcmd: Dlcmd) -> None:
    assert dlcmd("snapshot", "pull", "pets").code == 4
    assert dlcmd("snapshot", "show", "pets@12").code == 4
    assert dlcmd("snapshot", "verify", "./nothing.snapshot").code == 1
    assert dlcmd("snapshot", "create", "cows").code == 3
    assert dlcmd("snapshot", "ls", "pets").lines == []


def test_snapshots_are_not_kept_where_others_may_write(dlcmd: Dlcmd, snapshots: Path) -> None:
    snapshots.mkdir(parents=True)
    snapshots.chmod(0o777)
    result = dlcmd("snapshot", "create", "pets")
    assert (result.code, "chmod 700" in result.err) == (2, True)
