from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import InvalidPath
from chunkstore.paths import ancestors, check_path, check_paths, split

LEGAL = [
    b"a",
    b"a/b/c",
    b"...",
    b"..a/.b/c..",
    b" ",
    b"\n",
    b".\n",
    b"..\n",
    b"a/\n",
    b"\n/a",
    b"a/.\n",
    b"\xff\xfe",
    b"a\\b",
    b"x" * 255,
    b"/".join([b"x" * 255] * 15 + [b"y" * 255]),
]
ILLEGAL = [
    b"",
    b"/",
    b"/a",
    b"a/",
    b"a//b",
    b".",
    b"..",
    b"./a",
    b"a/.",
    b"a/..",
    b"../a",
    b"a/../b",
    b"a/./b",
    b"a\0b",
    b"\0",
    b"a\0",
    b"x" * 256,
    b"a/" + b"x" * 256 + b"/b",
    b"/".join([b"x" * 255] * 16 + [b""])[:4096],
    b"/".join([b"x" * 15] * 256),
    b"/".join([b"x" * 15] * 257),
]


def is_legal(path: bytes) -> bool:
    """The law in the plainest words."""
    components = path.split(b"/")
    return (
        len(path) <= 4095
        and b"\0" not in path
        and all(1 <= len(c) <= 255 and c not in (b".", b"..") for c in components)
    )


def accepts(path: bytes) -> bool:
    try:
        check_path(path)
    except InvalidPath:
        return False
    return True


def accepts_all(paths: list[bytes]) -> bool:
    try:
        check_paths(paths)
    except InvalidPath:
        return False
    return True


@pytest.mark.parametrize("path", LEGAL)
def test_legal(path: bytes) -> None:
    assert is_legal(path)
    check_path(path)
    check_paths([b"a", path])
    check_paths([path, b"a"])


@pytest.mark.parametrize("path", [path for path in ILLEGAL if not is_legal(path)])
def test_illegal(path: bytes) -> None:
    for check in (lambda: check_path(path), lambda: check_paths([path])):
        with pytest.raises(InvalidPath):
            check()
    assert not accepts_all([b"a", path])
    assert not accepts_all([path, b"a"])
    assert not accepts_all([b"a", path, b"a"])


pieces = st.sampled_from(
    [b"a", b".", b"..", b"/", b"\0", b"\n", b"\xff", b"x" * 254, b"x" * 255, b"y/" * 2000]
)
paths = st.lists(pieces, max_size=6).map(b"".join)


@given(paths)
def test_the_law(path: bytes) -> None:
    assert accepts(path) == is_legal(path)


@given(st.lists(paths, max_size=4))
def test_many_at_once_are_judged_like_each(many: list[bytes]) -> None:
    assert accepts_all(many) == all(map(is_legal, many))


def test_ancestors_and_split() -> None:
    assert list(ancestors(b"a/b/c")) == [b"a/b", b"a"]
    assert list(ancestors(b"a")) == list(ancestors(b"")) == []
    assert (split(b"a/b/c"), split(b"a")) == ((b"a/b", b"c"), (b"", b"a"))
