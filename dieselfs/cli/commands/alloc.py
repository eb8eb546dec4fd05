"""`dlcmd alloc`: cache and remote IO, divided among jobs."""

from __future__ import annotations

import click

from dieselfs.cli.command_group import SuggestingGroup
from dieselfs.cli.commands.alloc_plan import plan_command
from dieselfs.cli.commands.alloc_run import run_command
from dieselfs.cli.commands.alloc_simulate import simulate_command


@click.group(cls=SuggestingGroup)
def alloc() -> None:
    """Divide cache and remote IO among jobs."""


alloc.add_command(plan_command)
alloc.add_command(run_command)
alloc.add_command(simulate_command)
