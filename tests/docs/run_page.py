"""Run the blocks of a page as a reader does: `python -m tests.docs.run_page PAGE [--is-set-up]`.

Shell blocks run in one shell and Python blocks in one interactive Python, on a machine to throw
away (machine.sh). It stops at the first failure, prints it, and ends with exit code 1. With
`--is-set-up` a `make` of the page only looks whether the Makefile has the target.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.docs.blocks import Block, blocks_of

END = "-- end of block --"
BLOCK_TIMEOUT_S = 240

SHELL = f"""
set -eo pipefail
PATH=$PWD/.venv/bin:$PATH
. {Path(__file__).with_name("at_hand.sh")}
"""

NO_MAKE = 'make() { grep -q "^$1:" Makefile; }\n'

PYTHON = f"""
import code, json, sys

class Console(code.InteractiveConsole):
    def showtraceback(self): raise
    def showsyntaxerror(self, *args, **options): raise

console = Console()
for line in sys.stdin:
    for source in [*json.loads(line).splitlines(), ""]:
        incomplete = console.push(source)
    assert not incomplete
    print({END!r}, flush=True)
"""


class Failure(Exception):
    """A block did something else than its page says."""


class Session:
    """A program that reads blocks from its standard input and marks the end of their output."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, source: str, *, stays: bool = False) -> list[str]:
        """Run a block and return the lines that it prints, or only the first one if it stays."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{source}\n")
        self._process.stdin.flush()
        lines = []
        alarm = threading.Timer(BLOCK_TIMEOUT_S, self.kill)
        alarm.start()
        try:
            for line in self._process.stdout:
                if line.rstrip("\n") == END:
                    return lines
                lines.append(line.rstrip("\n"))
                if stays:
                    return lines
        finally:
            alarm.cancel()
        raise Failure(f"it failed with code {self._process.wait()}:\n" + "\n".join(lines))

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)


class Page:
    """The terminals and the interactive Python of a page's reader."""

    def __init__(self) -> None:
        self._shells: dict[str, Session] = {}
        self._python: Session | None = None

    def run(self, block: Block) -> list[str]:
        """Run what a block needs, and the block. Return the lines that it prints."""
        for kind, text in block.comments:
            if kind == "before":
                self._hidden(block, text)
            elif kind == "before python":
                self._in_python(text)
        if block.file:
            path = Path(block.file).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            return []
        if block.language == "python":
            printed = self._in_python(block.text)
        else:
            printed = self._in_shell(block)
        for kind, text in block.comments:
            if kind == "after":
                self._hidden(block, text)
        return printed

    def _hidden(self, block: Block, text: str) -> None:
        self._shell(block).run(f"{{\n{text}\n}} </dev/null\necho {END}")

    def _shell(self, block: Block) -> Session:
        name = block.options.get("terminal", "1")
        if name not in self._shells:
            self._shells[name] = Session("bash")
            make = NO_MAKE if "--is-set-up" in sys.argv else ""
            self._shells[name].run(f"{SHELL}{make}echo {END}")
        return self._shells[name]

    def _in_shell(self, block: Block) -> list[str]:
        text = f"{{\n{block.text}}} </dev/null"
        if "exit" in block.options:
            text = f"code=0\n{text} || code=$?\n((code == {block.options['exit']}))"
        return self._shell(block).run(f"{text}\necho {END}", stays="stays" in block.options)

    def _in_python(self, text: str) -> list[str]:
        if self._python is None:
            self._python = Session(".venv/bin/python", "-u", "-c", PYTHON)
        return self._python.run(json.dumps(text))


def pattern_of(line: str) -> re.Pattern[str]:
    """Return the pattern of the lines for which a line of the page stands.

    A number stands for any number, `…` for any text without a space, and a line with `front:` for
    the front of this machine.
    """
    if line.startswith("front: "):
        return re.compile("front: .*")
    pattern = ""
    for part in re.findall(r"[\w-]*…|\d[\d.,]*| +|.", line):
        if part.endswith("…"):
            pattern += r"\S*"
        elif part[0].isdigit():
            pattern += r"\d[\d.,]*"
        else:
            pattern += " +" if part[0] == " " else re.escape(part)
    return re.compile(pattern)


def check_output(shown: str, printed: list[str]) -> None:
    """Check that the lines of the page were printed, in this order, perhaps among others."""
    rest = iter(printed)
    for line in filter(None, shown.splitlines()):
        pattern = pattern_of(line.rstrip())
        if not any(pattern.fullmatch(found.rstrip()) for found in rest):
            raise Failure(f"no line {line!r} in\n" + "\n".join(printed))


def run_page(path: Path) -> None:
    page, printed = Page(), []
    for block in blocks_of(path):
        try:
            if block.language == "output":
                check_output(block.text, printed)
            elif (block.is_command or block.file) and not block.reason_not_to_run:
                printed = page.run(block)
        except Failure as failure:
            raise Failure(f"{path.name}:{block.line}: {failure}\n\n{block.text}") from failure


if __name__ == "__main__":
    try:
        run_page(Path(sys.argv[1]))
    except Failure as failure:
        sys.exit(str(failure))
