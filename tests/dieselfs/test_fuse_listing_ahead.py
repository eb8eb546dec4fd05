"""Which directories come next: only for readers that go from one to the next, a bounded number, none twice."""

from pathlib import Path

import pytest

from dieselfs.fuse import listing_ahead
from dieselfs.fuse.listing_ahead import ListingAhead
from metadata.snapshot import ROOT, Snapshot
from metadata.snapshot_format import DIRECTORY_BASE
from tests.mount.versions import pack_versions

CLASSES = 200
FILES = 3


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    files = {f"c{n:03}/{m}": b"" for n in range(CLASSES) for m in range(FILES)}
    folder = tmp_path_factory.mktemp("listing-ahead")
    return Snapshot.open(pack_versions({"other": b""}, files, folder).after.snapshot)


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_ahead, "BATCH_NAMES", 1)


def directory(number: int) -> int:
    return DIRECTORY_BASE + 1 + number


def begin(plan: ListingAhead, *numbers: int) -> None:
    for number in numbers:
        plan.begun(directory(number))


def taken(plan: ListingAhead) -> list[int]:
    """All that is planned, batch by batch."""
    numbers = []
    while paths := plan.take():
        numbers += [int(path.removeprefix(b"c")) for path in paths]
    return numbers


def test_directories_here_and_there_are_followed_by_none(snapshot: Snapshot) -> None:
    plan = ListingAhead(snapshot)
    plan.begun(ROOT)
    assert not plan.take()
    for number in (0, 50, 20, 22, 18, 199):
        begin(plan, number)
        assert not plan.take()


def test_the_further_a_reader_has_come_the_more_is_listed_ahead(snapshot: Snapshot) -> None:
    plan = ListingAhead(snapshot)
    begin(plan, 10, 11)
    assert taken(plan) == [12]
    begin(plan, 13)  # 12 was listed already, and made no request
    assert taken(plan) == [14, 15, 16]
    begin(plan, 17)
    assert taken(plan) == list(range(18, 25))


def test_no_directory_is_listed_twice(snapshot: Snapshot) -> None:
    plan = ListingAhead(snapshot)
    begin(plan, 14, 10, 11)
    assert taken(plan) == [12]
    begin(plan, 13)
    assert taken(plan) == [15, 16]  # 14 was listed by a reader
    begin(plan, 13)
    assert taken(plan) == []


def test_it_ends_with_the_last_directory(snapshot: Snapshot) -> None:
    plan = ListingAhead(snapshot)
    begin(plan, *range(190, 198))
    assert taken(plan) == [198, 199]
    begin(plan, 199)
    assert taken(plan) == []


def test_the_number_of_directories_is_bounded(snapshot: Snapshot) -> None:
    plan = ListingAhead(snapshot)
    begin(plan, *range(100))
    assert taken(plan) == list(range(100, 100 + listing_ahead.MAX_DIRECTORIES))


def test_the_number_of_names_is_bounded(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ListingAhead(snapshot)
    monkeypatch.setattr(listing_ahead, "MAX_NAMES", 4 * FILES)
    begin(plan, *range(100))
    assert taken(plan) == [100, 101, 102, 103]
    monkeypatch.setattr(listing_ahead, "MAX_NAMES", FILES - 1)
    begin(plan, 104)
    assert taken(plan) == []


def test_the_lister_gets_a_few_names_at_a_time(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_ahead, "BATCH_NAMES", 2 * FILES)
    plan = ListingAhead(snapshot)
    begin(plan, 0, 1, 2, 3)
    assert plan.take() == [b"c004", b"c005"]
    assert plan.take() == [b"c006"]
    assert not plan.take()


@pytest.mark.usefixtures("one_at_a_time")
def test_a_lister_that_was_overtaken_leaves_one_to_the_reader(snapshot: Snapshot) -> None:
    plan = ListingAhead(snapshot)
    begin(plan, 0, 1, 2, 3)
    assert plan.take() == [b"c004"]
    begin(plan, 4)  # it is under way
    assert plan.take() == [b"c006"]
    begin(plan, 5)
    assert plan.take() == [b"c007"]


@pytest.mark.usefixtures("one_at_a_time")
def test_what_a_reader_passed_is_given_up(snapshot: Snapshot) -> None:
    plan = ListingAhead(snapshot)
    begin(plan, *range(10))
    assert plan.take() == [b"c010"]
    begin(plan, 11, 12)
    assert plan.take() == [b"c013"]


def test_a_deeper_level_goes_on_at_the_next_parent(tmp_path: Path) -> None:
    files = {f"{parent}/{child}/file": b"" for parent in "ab" for child in "xyz"}
    snapshot = Snapshot.open(pack_versions({"other": b""}, files, tmp_path).after.snapshot)
    plan = ListingAhead(snapshot)
    for path in ("a", "b", "a/x", "a/y", "a/z"):
        found = snapshot.resolve(path)
        assert found is not None
        plan.begun(found)
    assert plan.take() == [b"b/x", b"b/y", b"b/z"]
