"""Listings of an S3 store that cannot be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import misbehaving_s3
from tests.faults.case import Measured, fault_case
from tests.faults.on_s3 import S3Place
from tests.faults.reading import content
from tests.services.faulty_http import Fault, FaultyProxy

FILES = {f"f{number:02}": content(str(number), 3000) for number in range(20)}
WRONG: dict[str, Fault] = {
    "looping": misbehaving_s3.looping(),
    "unsorted": misbehaving_s3.unsorted,
    "doubled": misbehaving_s3.doubled,
}
IS_SOUND = "chunkstore.stores.cloud:ListingCheck.check=none"
EXISTS = "chunkstore.complete_listings:exists=false"


@pytest.fixture
def place(proxied_s3_url: str, s3_proxy: FaultyProxy, tmp_path: Path) -> S3Place:
    place = S3Place(proxied_s3_url, s3_proxy, tmp_path)
    place.put(FILES).check_returncode()
    return place


@fault_case(
    "a store whose listings come in a loop, in no order, or with a key twice; each command that lists",
    promise="the command ends with the exit code 7 and names the store; nothing hangs, nothing is deleted",
    bound_s=30,
    check=IS_SOUND,
)
@pytest.mark.parametrize("wrong", WRONG)
def test_listings_that_are_wrong(wrong: str, measured: Measured, place: S3Place) -> None:
    place.proxy.fault = WRONG[wrong]
    for command in (
        ["fsck", "d"],
        ["gc", "--delete", "--yes", "d"],
        ["recover", "d"],
        ["purge", "d"],
    ):
        with measured.felt():
            done = place.dlcmd(*command)
        assert done.returncode == 7, (command, done.stderr)
        assert place.proxy.endpoint in done.stderr
    place.proxy.fault = None
    assert place.files() == FILES
    measured.note(f"{wrong}: refused")


LACKING: dict[str, Callable[[], Fault]] = {
    "half of all": lambda: misbehaving_s3.half(""),
    "half of the chunks": lambda: misbehaving_s3.half("/chunks/"),
    "half of the commits": lambda: misbehaving_s3.half("/commits/"),
    "snapshots": lambda: misbehaving_s3.lacking(lambda key: "/snapshots/" in key),
    "chunks, but another dataset's": lambda: misbehaving_s3.foreign(b"/d/chunks/", b"/e/chunks/"),
    "what is new": misbehaving_s3.stale,
}
DELETING = {
    "purge": ["purge", "--grace", "0s", "d"],
    "gc": ["gc", "--delete", "--yes", "--grace", "0s", "d"],
    "snapshot prune": ["snapshot", "prune", "--keep-last", "1", "--yes", "d"],
    "dataset rm": ["dataset", "rm", "--yes", "d"],
}
NOTICED = {
    "half of all": set(DELETING),
    "half of the chunks": {"purge", "gc"},
    "half of the commits": set(DELETING),
    "snapshots": {"purge", "gc", "snapshot prune"},
    "chunks, but another dataset's": {"purge", "gc"},
    "what is new": set(DELETING),
}


@fault_case(
    "a store whose listings lack keys and call themselves whole: half of all, of the chunks or of the commits, all snapshots, all that is new, or another dataset's chunks instead; then purge, gc, snapshot prune and dataset rm without a grace period",
    promise="the command ends with the exit code 7 where it would go by what is lacking; all files, tags and snapshots stay",
    bound_s=30,
    check={
        lacking: EXISTS if "another" not in lacking else f"{EXISTS} + {IS_SOUND}"
        for lacking in LACKING
    },
)
@pytest.mark.parametrize("lacking", LACKING)
def test_listings_that_lack_keys(lacking: str, measured: Measured, place: S3Place) -> None:
    place.dlcmd("snapshot", "create", "d").check_returncode()
    place.dlcmd("snapshot", "tag", "d", "kept").check_returncode()
    before = place.files("kept")
    fault = LACKING[lacking]()
    place.proxy.fault = fault
    place.dlcmd("gc", "d")  # what is stale begins here
    place.proxy.fault = None
    for change in range(3):
        newer = {name: content(f"{name} {change}", 3000) for name in list(FILES)[change::3]}
        place.put(newer).check_returncode()
    place.dlcmd("rm", "-r", "--yes", "dl://d/f00").check_returncode()
    now = place.files()
    for name, command in DELETING.items():
        place.proxy.fault = fault
        with measured.felt():
            done = place.dlcmd(*command)
        place.proxy.fault = None
        if name in NOTICED[lacking]:
            assert done.returncode == 7, (name, done.stdout, done.stderr)
        else:
            assert done.returncode in (0, 1, 9, 10), (name, done.stderr)
        assert place.files() == now, name
        assert place.files("kept") == before, name
    measured.note(f"{lacking}: refused by {', '.join(sorted(NOTICED[lacking]))}")
