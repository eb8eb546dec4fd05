"""An S3 server, or a proxy in front of it, that acknowledges what it has not stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.faults.case import Measured, fault_case
from tests.faults.misbehaving_s3 import ERROR, PAGE, put_answered, put_changed
from tests.faults.on_s3 import S3Place
from tests.faults.reading import content
from tests.services.faulty_http import Fault, FaultyProxy, Reply

Files = Mapping[str, bytes]
OLD = {f"f{number:02}": content(str(number), 3000) for number in range(20)}
NEW = {f"g{number:02}": content(f"g{number}", 3000) for number in range(40)}
LARGE = {f"h{number:02}": content(f"h{number}", 100_000) for number in range(12)}
"""Files whose chunks are not read back: one listing checks them before they are committed."""
ETAG = (("ETag", '"0123456789abcdef0123456789abcdef"'),)
LIES: dict[str, Callable[[], Fault]] = {
    "page": lambda: put_answered(Reply(200, body=PAGE), "/chunks/", first=3),
    "error": lambda: put_answered(Reply(200, body=ERROR), "/chunks/", first=3),
    "page with an ETag": lambda: put_answered(Reply(200, ETAG, PAGE), "/chunks/", first=3),
    "short": lambda: put_changed(lambda data: data[: len(data) // 2], "/chunks/"),
    "commit": lambda: put_answered(Reply(200, ETAG), "/commits/", first=1),
}


@pytest.fixture
def place(proxied_s3_url: str, s3_proxy: FaultyProxy, tmp_path: Path) -> S3Place:
    place = S3Place(proxied_s3_url, s3_proxy, tmp_path)
    place.put(OLD, source="old").check_returncode()
    return place


def check_only_whole_files(place: S3Place, new: Files = NEW) -> None:
    """The same put goes on when the server is sound, and no wrong byte is seen before."""
    place.proxy.fault = None
    found = place.files()
    assert found.items() >= OLD.items()
    assert found.items() <= (OLD | new).items()
    place.put(new).check_returncode()
    assert place.files() == OLD | new


@fault_case(
    "a server that answers uploads of chunks, or of a commit, with 200 and a page, an error or an ETag, and stores nothing or half",
    promise="the put ends with the exit code 7, the store's name and what it answered; nothing of it is committed; the same put goes on later",
    bound_s=60,
    check="chunkstore.stores.cloud:CloudStore._check_stored=none",
)
@pytest.mark.parametrize("files", [NEW, LARGE], ids=["small chunks", "large chunks"])
@pytest.mark.parametrize("lie", LIES)
def test_lying_puts(lie: str, files: Files, measured: Measured, place: S3Place) -> None:
    place.proxy.fault = LIES[lie]()
    with measured.felt():
        done = place.put(files)
    assert done.returncode == 7, done.stderr
    assert place.proxy.endpoint in done.stderr
    assert "answered the upload of datasets/d/" in done.stderr
    check_only_whole_files(place, files)
    measured.note(f"{lie}: refused")


@fault_case(
    "a server that acknowledges the chunks into which `dlcmd purge` moves files, and stores half "
    "of each",
    promise="the purge ends with the exit code 7; no chunk is retired, so all files are there; a "
    "later purge does its work",
    bound_s=60,
    check="chunkstore.commit_log:CommitLog._check_created=none",
)
def test_lying_purges(measured: Measured, place: S3Place) -> None:
    kept = dict(list(LARGE.items())[::2])
    place.put(LARGE, "--chunk-size", "250KB").check_returncode()
    place.dlcmd(
        "rm", "--yes", *(f"dl://d/{path}" for path in LARGE.keys() - kept)
    ).check_returncode()
    place.proxy.fault = put_changed(
        lambda data: data[: len(data) // 2] if len(data) > 100_000 else data, "/chunks/"
    )
    with measured.felt():
        done = place.dlcmd("purge", "d")
    assert done.returncode == 7, done.stderr
    assert "answered the upload of datasets/d/" in done.stderr
    place.proxy.fault = None
    assert place.files() == OLD | kept
    place.dlcmd("purge", "d").check_returncode()
    assert place.files() == OLD | kept
    measured.note("refused")


@fault_case(
    "a server that stores other bytes than `dlcmd put --paranoid` sent, of the same size",
    promise="the put ends with the exit code 7; nothing of it is committed (without --paranoid readers notice, and fsck)",
    bound_s=60,
    check="chunkstore.stores.read_back:ReadBackStore._digest=none",
)
def test_changed_puts(measured: Measured, place: S3Place) -> None:
    place.proxy.fault = put_changed(lambda data: data[:-1] + bytes([data[-1] ^ 1]), "/chunks/")
    with measured.felt():
        done = place.put({"big": content("big", 100_000)}, "--paranoid", source="large")
    assert done.returncode == 7, done.stderr
    assert "returns other bytes" in done.stderr
    check_only_whole_files(place)
    place.put({"big": content("big", 100_000)}, "--paranoid", source="large").check_returncode()
    assert place.files() == OLD | NEW | {"big": content("big", 100_000)}
    measured.note("refused")
