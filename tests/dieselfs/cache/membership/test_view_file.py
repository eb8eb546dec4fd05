from __future__ import annotations

import errno
import logging
import os
import pickle
import random
import threading
from pathlib import Path

import msgpack
import pytest

from dieselfs.cache.membership import view_file
from dieselfs.cache.membership.view_file import ViewFile
from dieselfs.cache.ports.members import Member, View
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.errors import LocalFileError
from tests.eventually import PATIENCE_S

ME = Member("a", PeerAddress("10.0.0.1", 7000), 4096, "host a")
OTHER = Member("b", PeerAddress("fe80::2", 65535), 0)
VIEW = View(ME, (ME, OTHER), {"b": 17.25}, frozenset({"b"}))
SECRET = TaskSecret(b"0123456789abcdef")


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def master(tmp_path: Path, clock: Clock) -> ViewFile:
    return ViewFile(tmp_path, clock)


@pytest.fixture
def reader(tmp_path: Path, clock: Clock) -> ViewFile:
    return ViewFile(tmp_path, clock)


def test_what_is_published_is_seen(master: ViewFile, reader: ViewFile, clock: Clock) -> None:
    assert reader.current() is None
    master.publish(VIEW)
    assert master.current() == VIEW
    assert reader.current() is None  # it has just looked
    clock.now += 0.1
    seen = reader.current()
    assert seen == VIEW
    clock.now += 1
    assert reader.current() is seen  # not decoded again
    alone = View(ME, (ME,))
    master.publish(alone)
    clock.now += 0.1
    assert reader.current() == alone


def test_a_withdrawn_view_is_none_and_the_secret_goes(
    master: ViewFile, reader: ViewFile, clock: Clock, tmp_path: Path
) -> None:
    master.write_secret(SECRET)
    master.publish(VIEW)
    assert reader.current() == VIEW
    master.withdraw()
    master.withdraw()
    clock.now += 0.1
    assert reader.current() is None
    assert reader.read_secret() is None
    assert os.listdir(tmp_path / "peers") == []


def test_a_master_that_ends_late_leaves_the_files_of_the_next(
    master: ViewFile, reader: ViewFile, clock: Clock, tmp_path: Path
) -> None:
    following = ViewFile(tmp_path, clock)
    for leader in (master, following):
        leader.write_secret(SECRET)
        leader.publish(VIEW)
    alone = View(ME, (ME,))
    following.publish(alone)  # the file system may have given it the inode of the first view
    master.withdraw()
    assert reader.current() == alone
    assert reader.read_secret() == SECRET
    following.withdraw()
    assert os.listdir(tmp_path / "peers") == []


def test_a_view_is_withdrawn_also_if_a_later_one_could_not_be_published(
    master: ViewFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*paths: str) -> None:
        raise OSError(errno.ENOSPC, "full")

    master.publish(VIEW)
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="full"):
        master.publish(VIEW)
    master.withdraw()
    assert os.listdir(tmp_path / "peers") == []


def test_a_master_that_does_not_publish_has_no_view(
    master: ViewFile, reader: ViewFile, clock: Clock
) -> None:
    master.publish(VIEW)
    clock.now += 10
    assert reader.current() == VIEW
    clock.now += 0.2
    assert reader.current() is None
    master.publish(VIEW)
    clock.now += 0.1
    assert reader.current() == VIEW


def test_it_is_this_users_alone(master: ViewFile, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        master.publish(VIEW)
        master.write_secret(SECRET)
    finally:
        os.umask(before)
    modes = [
        os.stat(tmp_path / name).st_mode & 0o777 for name in ("peers", "peers/view", "peers/secret")
    ]
    assert modes == [0o700, 0o600, 0o600]
    assert SECRET.value not in (tmp_path / "peers" / "view").read_bytes()


def test_the_secret_is_handed_on(master: ViewFile, reader: ViewFile, tmp_path: Path) -> None:
    assert reader.read_secret() is None
    master.write_secret(SECRET)
    assert reader.read_secret() == SECRET
    os.chmod(tmp_path / "peers" / "secret", 0o640)
    with pytest.raises(LocalFileError, match="others may read"):
        reader.read_secret()


def test_a_secret_is_no_link(master: ViewFile, reader: ViewFile, tmp_path: Path) -> None:
    master.write_secret(SECRET)
    os.rename(tmp_path / "peers" / "secret", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", tmp_path / "peers" / "secret")
    with pytest.raises(LocalFileError):
        reader.read_secret()


def test_a_damaged_view_is_none(
    master: ViewFile, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master.publish(VIEW)
    path = tmp_path / "peers" / "view"
    whole, chance = path.read_bytes(), random.Random(5)
    damaged = [whole[:length] for length in range(len(whole))]
    for _ in range(300):
        bad = bytearray(whole)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(bad))
    for data in damaged:
        path.write_bytes(data)
        assert ViewFile(tmp_path, clock).current() is None
    assert len(caplog.records) == len(damaged)
    path.write_bytes(whole)
    assert ViewFile(tmp_path, clock).current() == VIEW


def test_what_is_well_formed_but_no_view_is_none(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    me: list[object] = ["a", "h", 1, 1, ""]
    good = [1, 50.0, me, [me], {"b": 1.0}, ["b"]]
    bad: list[list[object]] = [
        [2, *good[1:]],
        good[:-1],
        [1, "50", *good[2:]],
        [1, 50.0, ["a b", "h", 1, 1, ""], *good[3:]],
        [1, 50.0, me, [["a", "h", 0, 1, ""]], *good[4:]],
        [1, 50.0, me, [["a", "h", 1, -1, ""]], *good[4:]],
        [1, 50.0, me, [me], {"b": "x"}, ["b"]],
        [1, 50.0, me, [me], {"b": 1.0}, [7]],
    ]
    (tmp_path / "peers").mkdir()
    for fields, expected in [(good, True), *((fields, False) for fields in bad)]:
        body = msgpack.packb(fields)
        checksum = view_file.xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
        (tmp_path / "peers" / "view").write_bytes(checksum + body)
        assert (ViewFile(tmp_path, clock).current() is not None) is expected, fields
    assert all(record.levelno == logging.WARNING for record in caplog.records)


@pytest.fixture
def stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view is not too old by the real clock, if this process pauses after it has published."""
    monkeypatch.setattr(view_file, "OLDEST_S", PATIENCE_S)


@pytest.mark.usefixtures("stays")
def test_readers_see_one_whole_view_or_another(tmp_path: Path) -> None:
    views = [View(ME, (ME,), {str(peer): 1.0 for peer in range(size)}) for size in (0, 300)]
    ViewFile(tmp_path).publish(views[0])
    done, seen, wrong = threading.Event(), list[int](), list[object]()

    def read() -> None:
        while not done.is_set():
            found = ViewFile(tmp_path).current()
            if found in views:
                seen.append(len(found.answered))
            else:
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    master = ViewFile(tmp_path)
    while len(set(seen)) < 2 or len(seen) < 200:
        for view in views:
            master.publish(view)
        assert not wrong
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert os.listdir(tmp_path / "peers") == ["view"]


@pytest.mark.usefixtures("stays")
def test_it_is_pickled_by_its_path_and_lives_on_in_a_child(tmp_path: Path) -> None:
    board = ViewFile(tmp_path)
    board.publish(VIEW)
    copy = pickle.loads(pickle.dumps(board))
    assert copy.current() == VIEW
    child = os.fork()
    if not child:
        os._exit(0 if board.current() == VIEW else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_as_many_members_as_there_may_be(master: ViewFile) -> None:
    many = tuple(
        Member(f"{number:064}", PeerAddress("h" * 255, 9), 1 << 40, "n" * 255)
        for number in range(1024)
    )
    view = View(many[0], many, {one.id: 1.0 for one in many}, frozenset(one.id for one in many))
    master.publish(view)
    assert master.current() == view
