"""`--exclude` and `--include` rules over paths, as in rsync and rclone.

The rules apply in the order given, and the first that matches decides. Without a match a path is
taken, unless there are only includes: then only what they match is taken. `*` and `?` stop at
slashes, `**` does not. A pattern without a slash matches a name at any depth; one with a leading
slash starts at the top. A rule that matches a directory decides for everything below it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern and its effect."""

    include: bool
    pattern: str


@dataclass(frozen=True, slots=True)
class PathFilter:
    """The rules of one command. `PathFilter()` takes everything."""

    rules: Sequence[Rule] = ()
    _compiled: list[tuple[bool, re.Pattern[str]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        compiled = [
            (rule.include, re.compile(_expression(rule.pattern), re.DOTALL)) for rule in self.rules
        ]
        object.__setattr__(self, "_compiled", compiled)

    def __bool__(self) -> bool:
        return bool(self.rules)

    def takes(self, path: str) -> bool:
        """Return True if the file or directory at `path` is wanted.

        The path is relative, with no slash at either end.
        """
        for include, expression in self._compiled:
            if expression.search(path):
                return include
        return not self.rules or any(not rule.include for rule in self.rules)

    def prunes(self, path: str) -> bool:
        """Return True if the directory at `path` is excluded with everything below it."""
        for include, expression in self._compiled:
            if expression.search(path):
                return not include
        return False


class Glob:
    """A pattern for whole paths, with the signs of the rules' patterns."""

    def __init__(self, pattern: str) -> None:
        """`pattern` starts at the dataset's root, with or without a slash."""
        parts = pattern.strip("/").split("/")
        plain = [at for at, part in enumerate(parts) if re.search(r"[*?[]", part)]
        self.top = "/".join(parts[: plain[0]] if plain else parts)
        """The directory, or the one path, below which all that matches is."""
        self._expression = re.compile(_translated("/".join(parts)), re.DOTALL)

    def matches(self, path: str) -> bool:
        """Return True if the pattern matches the whole path."""
        return self._expression.fullmatch(path) is not None


def _expression(pattern: str) -> str:
    anchored = "/" in pattern.rstrip("/")
    start = "^" if anchored else "(?:^|/)"
    return start + _translated(pattern.strip("/")) + "(?:/|$)"


def _translated(glob: str) -> str:
    tokens = re.split(r"(\*\*/?|\*|\?|\[!?[^]]+\])", glob)
    return "".join(_translated_token(token) for token in tokens)


def _translated_token(token: str) -> str:
    match token:
        case "**/":
            return "(?:.*/)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    if len(token) > 2 and token[0] == "[" and token[-1] == "]":
        inner = token[1:-1].replace("\\", r"\\")
        return f"[^{inner[1:]}]" if inner[0] == "!" else f"[{inner}]"
    return re.escape(token)
