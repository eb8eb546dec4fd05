"""`dlcmd completion`: the script that teaches a shell to complete `dlcmd`."""

from __future__ import annotations

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext


@command(
    examples=[
        "dlcmd completion bash > ~/.local/share/bash-completion/completions/dlcmd",
        "dlcmd completion zsh > ~/.zfunc/_dlcmd      # with ~/.zfunc in $fpath",
        "dlcmd completion fish > ~/.config/fish/completions/dlcmd.fish",
    ]
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(context: CommandContext, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    from dieselfs.cli import dlcmd
    from dieselfs.cli.rendering.completion_scripts import register
    from dieselfs.cli.rendering.exit_codes import PROGRAM

    register()
    kind = get_completion_class(shell)
    assert kind is not None
    context.output.line(kind(dlcmd, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source())
