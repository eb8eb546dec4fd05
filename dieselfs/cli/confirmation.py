"""Asking before something is lost: on a terminal a question, in a script `--yes` or a refusal."""

from __future__ import annotations

import sys

import click

from dieselfs.errors import Refused, UsageError


def confirm(question: str, *, yes: bool) -> None:
    """`question` has no question mark. Return if the user agrees; raises `Refused` for no, `UsageError` if there is nobody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"not confirmed: {question}", "add --yes")
    if not click.confirm(f"{question}?", default=False, err=True):
        raise Refused(f"not confirmed: {question}", "nothing was done")
