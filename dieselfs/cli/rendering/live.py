"""Results that are shown again and again, until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from dieselfs.cli.rendering.output import Output
from dieselfs.cli.rendering.standard_streams import written_to_stdout

if TYPE_CHECKING:
    from rich.console import RenderableType

Sample = TypeVar("Sample")


def show_until_interrupted(
    output: Output,
    samples: Iterable[Sample],
    write: Callable[[Sample], None],
    drawn: Callable[[Sample], RenderableType],
) -> None:
    """Show each sample in the place of the one before on a terminal; write them all elsewhere."""
    try:
        if output.json or not output.terminal:
            for sample in samples:
                write(sample)
                with written_to_stdout():
                    sys.stdout.flush()
            return
        from rich.console import Console
        from rich.live import Live

        shown = map(drawn, samples)
        first = next(shown)  # an error comes before the terminal is taken
        with Live(console=Console(no_color=not output.color), auto_refresh=False) as live:
            live.update(first, refresh=True)
            for each in shown:
                live.update(each, refresh=True)
    except KeyboardInterrupt:
        return
