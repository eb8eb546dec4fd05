"""The mount service and ordinary users, honest and not: a real service, real mounts, two users."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.front_choice import mounts_files, probe
from dieselfs.fuse.mounts.mount_syscalls import detach
from dieselfs.fuse.mounts.mount_table import mount_entries
from dieselfs.fuse.mounts.service_client import SERVICE_VARIABLE
from tests.forked_programs import ForkedProgram, Forker
from tests.mount.mounting import KIND
from tests.mount.packing import PackedDataset, pack, write_file

ALICE, BOB = 61001, 61002
ROOT_OF_CHECKOUT = Path(__file__).parents[2]
UNIT = ROOT_OF_CHECKOUT / "contrib" / "dieselfs-mountd.service"
SHORT = {"patience_s": 1.0, "build_s": 30.0, "mount_s": 1.5}

FACTS = probe()
pytestmark = pytest.mark.skipif(
    not (FACTS.may_mount and FACTS.has_erofs and mounts_files(FACTS.kernel)),
    reason="needs root and EROFS over files",
)


USERS = Forker("tests.mount.as_user_of_service")


@pytest.fixture(scope="module", autouse=True)
def users() -> Iterator[None]:
    yield
    USERS.close()


@dataclass(frozen=True)
class Service:
    folder: Path
    socket: Path
    packed: PackedDataset
    snapshot: Path
    process: subprocess.Popen[str]

    def user(self, uid: int, scenario: str, **variables: str) -> ForkedProgram:
        home = self.folder / f"home{uid}"
        home.mkdir(exist_ok=True)
        os.chown(home, uid, uid)
        command = [sys.executable, "-m", "tests.mount.as_user_of_service", str(uid), scenario]
        return USERS.start_piped(
            [*command, str(self.socket), str(self.snapshot), str(home / scenario)],
            cwd=ROOT_OF_CHECKOUT,
            env={**os.environ, **variables},
        )

    def check(self, uid: int, scenario: str, **variables: str) -> None:
        with self.user(uid, scenario, **variables) as process:
            out, err = process.communicate()
        assert (process.returncode, out) == (0, f"passed {scenario}\n".encode()), err.decode()
        assert self.process.poll() is None


def with_the_units_capabilities(command: list[str]) -> list[str]:
    """The service has no more of root's than the systemd unit leaves it."""
    if not shutil.which("setpriv"):
        return command
    found = re.search(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert found is not None
    left = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in found[1].split())
    return ["setpriv", f"--bounding-set=-all,{left}", "--no-new-privs", *command]


@contextmanager
def service_of(
    packed: PackedDataset, allow_other: bool = False, **limits: float
) -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="dieselfs-service-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        snapshot = folder / packed.snapshot.name
        snapshot.write_bytes(packed.snapshot.read_bytes())
        socket = folder / "mountd.sock"
        command = [sys.executable, "-m", "tests.mount.service_daemon", str(socket)]
        arguments = [str(folder / "images"), str(allow_other), json.dumps({**SHORT, **limits})]
        log = (folder / "log").open("w+")
        with (
            log,
            subprocess.Popen(
                [*command, *arguments],
                cwd=ROOT_OF_CHECKOUT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process,
        ):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            try:
                yield Service(folder, socket, packed, snapshot, process)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(20)
                left = [
                    entry for entry in mount_entries() if entry.mountpoint.is_relative_to(folder)
                ]
                for entry in reversed(left):
                    detach(entry.mountpoint)
                text = (folder / "log").read_text()
        assert process.returncode == 0, text
        assert "Traceback" not in text, text
        assert not left


@pytest.fixture(scope="module")
def service(small: PackedDataset) -> Iterator[Service]:
    with service_of(small) as running:
        yield running


@pytest.mark.parametrize(
    "scenario",
    [
        "mounts_reads_and_unmounts",
        "detaches_a_mount_in_use",
        "replaces_a_mount_under_readers",
        "may_not_give_bytes_of_his_own",
        "may_not_show_mounts_to_others",
        "speaks_nonsense",
        "is_not_kept_waiting_by_idle_connections",
        "hangs_the_service_in_vain",
        "leads_the_service_astray_in_vain",
        "reads_nothing_but_his_own_bytes",
        "may_not_mount_from_another_namespace",
        "dies_and_leaves_a_mount",
    ],
)
def test_a_user(service: Service, scenario: str) -> None:
    service.check(ALICE, scenario)


def test_a_user_mounts_at_directories_of_his_own_only(service: Service) -> None:
    home = service.folder / "home-of-bob"
    (home / "of-alice").mkdir(parents=True)
    os.chown(home, BOB, BOB)
    os.chown(home / "of-alice", ALICE, ALICE)
    service.check(
        ALICE,
        "may_not_mount_elsewhere",
        BUILT_BY_ANOTHER=str(home / "of-alice"),
        OWNED_BY_ANOTHER=str(home),
    )


def test_a_user_does_not_touch_mounts_of_others(service: Service) -> None:
    with service.user(BOB, "keeps_a_mount") as bob:
        assert bob.stdout.readline() == b"ready\n", bob.communicate()[1]
        theirs = service.folder / f"home{BOB}" / "keeps_a_mount" / "mnt"
        service.check(ALICE, "may_not_touch_mounts_of_others", OTHERS_MOUNT=str(theirs))
        out, err = bob.communicate()
    assert (bob.returncode, out) == (0, b"passed keeps_a_mount\n"), err


def test_a_hanging_user_does_not_hang_others(service: Service) -> None:
    with service.user(ALICE, "hangs_the_service_in_vain") as alice:
        for _ in range(3):
            service.check(BOB, "mounts_reads_and_unmounts")
        out, err = alice.communicate()
    assert out == b"passed hangs_the_service_in_vain\n", err


def test_a_user_has_a_share_of_mounts(small: PackedDataset) -> None:
    with service_of(small, mounts=3) as service:
        service.check(ALICE, "has_no_more_than_his_share")


def test_a_user_has_a_share_of_space(small: PackedDataset, tmp_path: Path) -> None:
    write_file(tmp_path / "source" / "file", b"content")
    other = pack(tmp_path / "source", tmp_path, "other").snapshot
    with service_of(small, image_bytes=20 << 10) as service:
        readable = service.folder / other.name
        readable.write_bytes(other.read_bytes())
        service.check(ALICE, "has_no_more_space_than_his_share", OTHER_SNAPSHOT=str(readable))


def test_an_administrator_may_allow_mounts_for_others(small: PackedDataset) -> None:
    with service_of(small, allow_other=True) as service:
        service.check(ALICE, "shows_mounts_to_others_if_allowed")
        service.check(ALICE, "hangs_the_service_by_his_mountpoint_in_vain")


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_a_mount_of_an_ordinary_user_takes_the_service(service: Service) -> None:
    store, home, memory = (service.folder / name for name in ("store", "home", "memory"))
    shutil.copytree(service.packed.store, store)
    for folder in (home, memory):
        folder.mkdir()
    for path in (home, memory, store, *store.rglob("*")):
        os.chown(path, ALICE, ALICE)
    # The capability lets him read Python where it lies in root's home, and mount nothing.
    become = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups"]
    only = "-all,+dac_read_search"
    done = subprocess.run(
        [
            *(*become, f"--inh-caps={only}", f"--ambient-caps={only}", sys.executable),
            *("-m", "tests.mount.as_user_of_daemon"),
            *map(str, (service.snapshot, store, home)),
        ],
        cwd=ROOT_OF_CHECKOUT,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            KIND: "erofs",
            SERVICE_VARIABLE: str(service.socket),
            "HOME": str(home),
            "DIESELFS_MEMORY_FOLDER": str(memory),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == 2
