"""The question before data is lost: asked on a terminal; a script needs `--yes`."""

from __future__ import annotations

import sys

import click

from dieselfs.errors import Refused, UsageError


def confirm(question: str, *, yes: bool) -> None:
    """Ask `question`, which has no question mark, and return if the user agrees.

    Raises `Refused` if the user does not agree, and `UsageError` if stdin is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"not confirmed: {question}", "add --yes")
    if not click.confirm(f"{question}?", default=False, err=True):
        raise Refused(f"not confirmed: {question}", "nothing was done")
