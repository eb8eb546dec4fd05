"""Asking before something is lost: on a terminal a question, in a script `--yes` or a refusal."""

from __future__ import annotations

import sys

import click

from dieselfs.errors import UsageError


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agrees; raises `click.Abort` for no, `UsageError` if there is nobody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"not done without a confirmation: {question}", "add --yes")
    click.confirm(question, default=False, abort=True, err=True)
