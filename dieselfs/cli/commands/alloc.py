"""`dlcmd alloc`: cache and remote IO, divided among jobs."""

from __future__ import annotations

import click

from dieselfs.cli.command_group import SuggestingGroup
from dieselfs.cli.commands.alloc_job import job_group
from dieselfs.cli.commands.alloc_plan import plan_command
from dieselfs.cli.commands.alloc_profile import profile_command
from dieselfs.cli.commands.alloc_run import run_command
from dieselfs.cli.commands.alloc_set import set_cache_command, set_io_command
from dieselfs.cli.commands.alloc_show import show_command
from dieselfs.cli.commands.alloc_simulate import simulate_command


@click.group(cls=SuggestingGroup)
def alloc() -> None:
    """Divide cache and remote IO among jobs."""


for _command in (
    *(show_command, run_command, set_cache_command, set_io_command, job_group),
    *(profile_command, plan_command, simulate_command),
):
    alloc.add_command(_command)
