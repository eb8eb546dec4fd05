"""Listings of an S3 store that cannot be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import misbehaving_s3
from tests.faults.case import Measured, fault_case
from tests.faults.on_s3 import S3Place
from tests.faults.reading import content
from tests.services.faulty_http import Fault, FaultyProxy

FILES = {f"f{number:02}": content(str(number), 3000) for number in range(20)}
WRONG: dict[str, Fault] = {
    "looping": misbehaving_s3.looping,
    "unsorted": misbehaving_s3.unsorted,
    "doubled": misbehaving_s3.doubled,
}


@pytest.fixture
def place(proxied_s3_url: str, s3_proxy: FaultyProxy, tmp_path: Path) -> S3Place:
    place = S3Place(proxied_s3_url, s3_proxy, tmp_path)
    place.put(FILES).check_returncode()
    return place


@fault_case(
    "a store whose listings come in a loop, in no order, or with a key twice; each command that lists",
    promise="the command ends with the exit code 7 and names the store; nothing hangs, nothing is deleted",
    bound_s=30,
    check="chunkstore.stores.cloud:ListingCheck.check=none",
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
