"""Shares of a whole as people write them: 5%."""

from __future__ import annotations

import re
from typing import Any

import click

from dieselfs.errors import UsageError

_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


class Share(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A click type: a number from 0 to 1, written as 5%. Only `or_none` allows 0 itself."""

    name = "share"

    def __init__(self, *, or_none: bool = False) -> None:
        self._or_none = or_none

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        match = _SHARE.fullmatch(str(value))
        share = float(match[1]) / 100 if match else -1.0
        if not 0 <= share <= 1 or not (share or self._or_none):
            raise UsageError(f"{value!r} is not a share", "write for instance 5%")
        return share
