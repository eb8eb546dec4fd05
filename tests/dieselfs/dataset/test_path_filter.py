"""Which paths `--exclude` and `--include` take."""

import pytest

from dieselfs.dataset.path_filter import PathFilter, Rule


def exclude(*patterns: str) -> PathFilter:
    return PathFilter([Rule(False, pattern) for pattern in patterns])


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.tmp", "a.tmp", True),
        ("*.tmp", "deep/below/a.tmp", True),
        ("*.tmp", "a.tmp.jpg", False),
        ("cache", "cache", True),
        ("cache", "a/cache/b", True),
        ("cache", "cached", False),
        ("cache/", "cache/x", True),
        ("/cache", "cache/x", True),
        ("/cache", "a/cache", False),
        ("a/*.jpg", "a/1.jpg", True),
        ("a/*.jpg", "a/b/1.jpg", False),
        ("a/**.jpg", "a/b/1.jpg", True),
        ("**/x.jpg", "x.jpg", True),
        ("a/**/x.jpg", "a/b/c/x.jpg", True),
        ("?.jpg", "1.jpg", True),
        ("?.jpg", "12.jpg", False),
        ("[ab].jpg", "a.jpg", True),
        ("[!ab].jpg", "a.jpg", False),
        ("a+b.(1)", "a+b.(1)", True),
        ("*", "with\nnewline", True),
    ],
)
def test_patterns(pattern: str, path: str, matches: bool) -> None:
    assert exclude(pattern).takes(path) is not matches


def test_the_first_match_decides() -> None:
    rules = PathFilter([Rule(True, "keep.tmp"), Rule(False, "*.tmp")])
    assert [rules.takes(path) for path in ("keep.tmp", "a.tmp", "a.jpg")] == [True, False, True]


def test_includes_alone_say_all_that_is_wanted() -> None:
    rules = PathFilter([Rule(True, "*.jpg")])
    assert [rules.takes(path) for path in ("a.jpg", "a.png")] == [True, False]


def test_without_rules_everything_is_taken() -> None:
    assert PathFilter().takes("a")
    assert not PathFilter()
