"""Where a task's secret may come from, and what is no secret."""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import re
import socket
from pathlib import Path

import pytest

from dieselfs.cache.ports.secret import (
    FILE_VARIABLE,
    MAX_BYTES,
    MIN_BYTES,
    VARIABLE,
    TaskSecret,
    make_secret_file,
    read_secret_file,
)
from dieselfs.errors import Conflict, LocalFileError, UsageError
from tests.open_descriptors import open_descriptors

WORDS = "sixteen letters!"


def written(path: Path, content: bytes = WORDS.encode(), mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_proof_is_an_hmac_of_role_and_transcript() -> None:
    made = hmac.new(b"k" * 16, b"client\0all that was said", hashlib.sha256).digest()
    assert TaskSecret(b"k" * 16).proof(b"client", b"all that was said") == made


def test_without_any_there_is_none() -> None:
    assert TaskSecret.load({}, None) is None
    assert TaskSecret.load({VARIABLE: "", FILE_VARIABLE: ""}, None) is None


def test_of_the_environment() -> None:
    assert TaskSecret.load({VARIABLE: f"  {WORDS}\n"}, None) == TaskSecret(WORDS.encode())


def test_hexadecimal_digits_are_text_like_any() -> None:
    digits = "00ff" * 8
    assert TaskSecret.load({VARIABLE: digits}, None) == TaskSecret(digits.encode())


def test_the_same_text_is_the_same_secret_wherever_it_is(tmp_path: Path) -> None:
    text = f"{WORDS} äöü"
    path = written(tmp_path / "secret", f"{text}\n".encode())
    here = TaskSecret.load({VARIABLE: text}, None)
    assert here == TaskSecret.load({FILE_VARIABLE: str(path)}, None) == read_secret_file(path)


def test_what_is_said_last_counts(tmp_path: Path) -> None:
    """A file that is named over the environment, and there the secret over its file."""
    one, two = (written(tmp_path / name, (name * 20).encode()) for name in "12")
    both = {VARIABLE: "3" * 20, FILE_VARIABLE: str(one)}
    assert TaskSecret.load(both, two) == TaskSecret(b"2" * 20)
    assert TaskSecret.load(both, None) == TaskSecret(b"3" * 20)


@pytest.mark.parametrize("text", [" ", "x" * (MIN_BYTES - 1), f"{' ' * 30}short\n"])
def test_a_short_one_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    for load in (
        lambda: TaskSecret.load({VARIABLE: text}, None),
        lambda: read_secret_file(written(tmp_path / "secret", text.encode())),
    ):
        with pytest.raises(UsageError, match="shorter than 16 bytes") as refused:
            load()
        assert "short\n" not in str(refused.value)
        assert "xxx" not in str(refused.value)
        assert "dlcmd task secret" in str(refused.value.hint)


def test_the_bounds_are_bytes(tmp_path: Path) -> None:
    assert TaskSecret.load({VARIABLE: "ä" * 8}, None) == TaskSecret("ä".encode() * 8)
    longest = b"x" * MAX_BYTES
    assert read_secret_file(written(tmp_path / "secret", longest)) == TaskSecret(longest)
    with pytest.raises(UsageError, match="longer"):
        read_secret_file(written(tmp_path / "secret", longest + b"\n"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "secret", mode=mode)
    with pytest.raises(UsageError, match="others may read or change") as refused:
        read_secret_file(path)
    assert refused.value.hint == f"chmod 600 {path}"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "secret")
    os.chown(path, 12345, 12345)
    with pytest.raises(UsageError, match="another user"):
        read_secret_file(path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(written(tmp_path / "secret"))
    with pytest.raises(UsageError, match="is a link"):
        read_secret_file(link)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)  # nobody writes to it
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("pipe", "socket", ".", "missing", "missing/file"):
            with pytest.raises(UsageError, match="the secret"):
                read_secret_file(tmp_path / name)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    cases = [written(tmp_path / "good"), written(tmp_path / "bad", mode=0o644), tmp_path]
    before = open_descriptors()
    for path in cases:
        try:
            read_secret_file(path)
        except UsageError:
            pass
    assert open_descriptors() <= before


def test_one_that_is_made_is_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_secret_file(tmp_path / "secret")
    finally:
        os.umask(before)
    make_secret_file(tmp_path / "other")
    found = tmp_path / "secret"
    assert found.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"[0-9a-f]{64}\n", found.read_text())
    assert read_secret_file(found) == TaskSecret(found.read_bytes().strip())
    assert read_secret_file(found) != read_secret_file(tmp_path / "other")


def test_one_that_is_made_replaces_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "secret")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("secret", "link"):
        with pytest.raises(Conflict):
            make_secret_file(tmp_path / name)
    assert path.read_text() == WORDS
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(LocalFileError):
        make_secret_file(tmp_path / "missing" / "secret")


def test_it_pickles_and_shows_nothing() -> None:
    secret = TaskSecret(WORDS.encode())
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert "sixteen" not in f"{secret} {secret!r} {secret!s} {[secret]}"
