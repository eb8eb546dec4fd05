"""The rule by which a client decides whether its reads go to the cache at all (§5.3).

Tectonic-Shift's clients leave out tables whose IO demand the disks can serve that are needed to
store them, and what has not been onboarded. Such reads would likely be refused by the cache's
admission; so the cache is spared the requests. Here users name the datasets: no client can measure
what all readers of a dataset demand of the store. The answer is `ReaderTags.may_keep`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

_PATTERN: Final = re.compile(r"[A-Za-z0-9*?][A-Za-z0-9._*?-]*")
"""A pattern that some dataset's name can match: see `object_keys.check_dataset_name`."""

SPELLING: Final = "names of datasets with * and ?, such as 'imagenet*,!*-val'; ! leaves out"
"""An example of a list of patterns, for messages."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    """The datasets whose reads may be kept in a cache. The default is all of them."""

    included: tuple[str, ...] = ("*",)
    """Patterns of datasets' names; a dataset that matches none is not eligible."""
    excluded: tuple[str, ...] = ()
    """Patterns of datasets that are not eligible in any case."""

    @classmethod
    def parse(cls, text: str) -> Eligibility:
        """Return the rule that a list of patterns spells, such as `imagenet*,!*-val`.

        `!` excludes; without any other pattern all else is included. A plus sign may stand for a
        comma. Raises `ValueError` for a pattern that no dataset's name can match.
        """
        patterns = [part.strip() for part in re.split("[,+]", text)]
        for pattern in patterns:
            if not pattern.removeprefix("!"):
                raise ValueError(f"an empty pattern in {text!r}")
            if not _PATTERN.fullmatch(pattern.removeprefix("!")):
                raise ValueError(f"no dataset's name can match {pattern!r}")
        included = tuple(pattern for pattern in patterns if not pattern.startswith("!"))
        excluded = tuple(pattern[1:] for pattern in patterns if pattern.startswith("!"))
        return cls(included or cls().included, excluded)

    def refusal(self, dataset: str) -> str:
        """Return why the reads of a dataset may not be kept; empty if they may."""
        for pattern in self.excluded:
            if fnmatchcase(dataset, pattern):
                return f"dataset {dataset} is left out by the pattern !{pattern}"
        if any(fnmatchcase(dataset, pattern) for pattern in self.included):
            return ""
        return f"dataset {dataset} matches no pattern of {', '.join(self.included)}"

    def matches_none(self, datasets: Iterable[str]) -> bool:
        """Return whether no pattern, `!` or not, matches any of these names."""
        patterns = *(() if self.included == ("*",) else self.included), *self.excluded
        return not any(fnmatchcase(name, pattern) for name in datasets for pattern in patterns)
