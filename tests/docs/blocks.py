"""The fenced blocks of a page, with the comments that say how each is run.

A block in `sh` or `python` is run, unless the line before it says `<!-- not run: REASON -->`. Other
comments before a block:

    <!-- run: exit=10 -->       the block ends with this exit code
    <!-- run: terminal=2 -->    it is typed into another shell, with variables of its own
    <!-- run: stays -->         its last command serves until the end of the page
    <!-- before: COMMANDS -->   what a reader has done, or has at hand, before the block (a shell's)
    <!-- before python: … -->   the same, in Python
    <!-- after: COMMANDS -->    what holds after the block
    <!-- file: PATH -->         the block, in any language, is the content of this file

A block in `output` is what the block before it prints.
"""

import re
from dataclasses import dataclass
from pathlib import Path

COMMANDS = ("sh", "python")
"""The languages whose blocks are run."""
LANGUAGES = (*COMMANDS, "output", "text", "toml", "cpp", "json")

FENCE = re.compile(r"^(```+)(\S*)[^\n]*\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(
    r"<!--\s*(run|not run|before|before python|after|file):\s*(.*?)\s*-->", re.DOTALL
)
COMMENTS_BEFORE = re.compile(r"((?:<!--(?:(?!-->).)*-->\s*)+)\Z", re.DOTALL)
INDENTED_COMMAND = re.compile(
    r"^\n(?: {4}|\t)(?:\$ |(?:dlcmd|make|pip|export|import|from|python|torchrun|mount|ln|cp) )"
    r"|^[ \t]+```",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One fenced block, and what the comments before it say."""

    language: str
    text: str
    line: int
    comments: tuple[tuple[str, str], ...] = ()

    @property
    def is_command(self) -> bool:
        return self.language in COMMANDS and not self.file

    @property
    def reason_not_to_run(self) -> str:
        return self._said("not run")

    @property
    def file(self) -> str:
        return self._said("file")

    @property
    def options(self) -> dict[str, str]:
        """Return the words of `run:`, such as {"exit": "10", "stays": ""}."""
        words = (word.partition("=") for word in self._said("run").split())
        return {name: value for name, _, value in words}

    def _said(self, kind: str) -> str:
        return " ".join(text for found, text in self.comments if found == kind)


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in their order."""
    text = page.read_text()
    blocks, end = [], 0
    for fence in FENCE.finditer(text):
        before = COMMENTS_BEFORE.search(text, end, fence.start())
        comments = COMMENT.findall(before[0]) if before else []
        line = text.count("\n", 0, fence.start()) + 1
        blocks.append(Block(fence[2], fence[3], line, tuple(comments)))
        end = fence.end()
    return blocks


def indented_commands(page: Path) -> list[int]:
    """Return the lines where an indented block begins with a command: nothing would run it."""
    text = FENCE.sub(lambda fence: re.sub(r"[^\n]+", "-", fence[0]), page.read_text())
    return [text.count("\n", 0, found.start()) + 2 for found in INDENTED_COMMAND.finditer(text)]
