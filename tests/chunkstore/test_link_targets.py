"""Which links stay in their tree: judged by a path and a target, checked against the kernel."""

import os
import tempfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chunkstore.chunk_format import MAX_TARGET_BYTES
from chunkstore.link_targets import target_problem


@pytest.mark.parametrize(
    ("target", "depth"),
    [
        (b"a", 0),
        (b"a/b/c", 0),
        (b"./a//b/", 0),
        (b".", 0),
        (b"nowhere", 0),
        (b"..", 1),
        (b"../a", 1),
        (b"./.././../a/./b", 2),
        (b"...", 0),
        (b"..a/b..", 0),
        (b"\xff\n", 0),
        (b"a" * MAX_TARGET_BYTES, 0),
    ],
)
def test_links_that_stay(target: bytes, depth: int) -> None:
    assert target_problem(target, depth) is None


@pytest.mark.parametrize(
    ("target", "depth", "what"),
    [
        (b"/", 9, "absolute"),
        (b"/etc/passwd", 9, "absolute"),
        (b"//a", 9, "absolute"),
        (b"..", 0, "out of the tree"),
        (b"../../a", 1, "out of the tree"),
        (b".//..", 0, "out of the tree"),
        (b"a/..", 9, "after a name"),
        (b"../a/../b", 9, "after a name"),
        (b"", 9, "bytes"),
        (b"a\0b", 9, "bytes"),
        (b"a" * (MAX_TARGET_BYTES + 1), 9, "bytes"),
    ],
)
def test_links_that_may_leave(target: bytes, depth: int, what: str) -> None:
    assert what in (target_problem(target, depth) or "")


paths = st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=3).map(b"/".join)
targets = st.lists(st.sampled_from([b"a", b"b", b"..", b"."]), min_size=1, max_size=4).map(
    b"/".join
)


@given(st.dictionaries(paths, targets, max_size=6), st.lists(paths, max_size=3))
@example({b"a/a": b"..", b"a/b": b"a/.."}, [])
@settings(max_examples=200)
def test_no_chain_of_kept_links_leaves_the_tree(
    links: dict[bytes, bytes], directories: list[bytes]
) -> None:
    """The kernel, asked for every name, stays below the top, or finds nothing."""
    with tempfile.TemporaryDirectory() as folder:
        outer = os.fsencode(os.path.realpath(folder))
        top = outer + b"/top"
        for path in directories:
            os.makedirs(top + b"/" + path, exist_ok=True)
        os.makedirs(top, exist_ok=True)
        for name in (b"a", b"b"):  # what a link that leaves would find
            os.mkdir(outer + b"/" + name)
        for path, target in links.items():
            place = top + b"/" + path
            if target_problem(target, path.count(b"/")) is None:
                above = os.path.dirname(place)
                if os.path.lexists(place) or os.path.realpath(above) != above:
                    continue  # a link lies in a directory, not behind another link
                try:
                    os.makedirs(above, exist_ok=True)
                    os.symlink(target, place)
                except OSError:  # a link is in the way
                    continue
        for path in [*links, *directories]:
            led_to = os.path.realpath(top + b"/" + path)
            assert led_to == top or led_to.startswith(top + b"/")
