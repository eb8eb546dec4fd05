"""Counts in messages for people: 1 file is, 2,000 files are."""

from __future__ import annotations

from typing import Final

_OF_ONE: Final = {"are": "is", "were": "was", "have": "has"}


def counted(number: int, noun: str, verb: str = "") -> str:
    """Return `1 file` or `2,000 files`, with the regular plural of nouns in -y and -s too.

    A verb, given in the plural, follows: `1 file is`.
    """
    if number != 1:
        if noun.endswith("y"):
            noun = f"{noun[:-1]}ies"
        else:
            noun = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun} {agreed(number, verb)}".rstrip()


def agreed(number: int, verb: str) -> str:
    """Return a verb, given in the plural, in the form for so many."""
    return _OF_ONE.get(verb, verb) if number == 1 else verb
