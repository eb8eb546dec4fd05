"""The click type of values that people write in a form of their own, such as 64MiB or 7d."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A click type whose text `parse` reads. A number is a value that was read before."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        return value if isinstance(value, int | float) else self._parse(str(value))
