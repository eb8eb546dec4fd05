"""The page about the paper names, for each figure, the command that takes it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import REPOSITORY
from benchmarks.paper import FIGURES
from benchmarks.run import QUICK


def test_the_page_has_every_command() -> None:
    page = Path(REPOSITORY, "docs/paper.md").read_text()
    for figure in FIGURES:
        assert f"`{figure.command}`" in page, figure.name


def test_every_figure_has_a_script_and_a_small_run() -> None:
    for figure in FIGURES:
        assert Path(REPOSITORY, f"benchmarks/{figure.module}.py").exists()
        assert figure.module in QUICK
