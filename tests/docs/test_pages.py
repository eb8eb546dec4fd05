"""The pages do what they say: their blocks run in their order and print what they show.

Each page is run on a machine of its own (machine.sh). The tests of every change run README and the
first page that it names, in the checkout's virtual environment. `make test-docs` runs all pages, in
a copy of the checkout whose virtual environment is made by the commands of the first page.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.blocks import LANGUAGES, Block, blocks_of, indented_commands
from tests.docs.machine import build, command_on_machine, why_there_is_none
from tests.docs.run_page import Failure, check_output

CHECKOUT = Path(__file__).parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
QUICK = {"README.md", "getting-started.md"}
ALL = "DIESELFS_ALL_PAGES"
SHARE_RUN = 0.9
SET_UP = ["make setup", "make torch"]
"""The commands of the first page that make its virtual environment."""


def name_of(page: Path) -> str:
    return page.name


def is_run(page: Path) -> bool:
    return any(block.is_command and not block.reason_not_to_run for block in blocks_of(page))


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The folder of a checkout that is set up, and where pages see it."""
    if why := why_there_is_none():
        pytest.skip(why)
    if not os.environ.get(ALL):
        if find_spec("torch") is None:
            pytest.skip("torch is not installed")
        yield CHECKOUT, CHECKOUT
        return
    built, seen = tmp_path_factory.mktemp("checkout"), Path("/src/dieselfs")
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=CHECKOUT, text=True)
    for name in filter(None, listed.split("\0")):
        if (CHECKOUT / name).is_file():
            (built / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, built / name)
    build(built, seen, tmp_path_factory.mktemp("disk"), ["bash", "-ec", "\n".join(SET_UP)])
    yield built, seen
    shutil.rmtree(built)  # a gigabyte


@pytest.mark.timeout(1800)  # the first one makes the environment too
@pytest.mark.parametrize("page", [page for page in PAGES if is_run(page)], ids=name_of)
def test_the_page_runs(page: Path, checkout: tuple[Path, Path], tmp_path: Path) -> None:
    if page.name not in QUICK and not os.environ.get(ALL):
        pytest.skip("make test-docs runs it")
    built, seen = checkout
    command = [
        ".venv/bin/python",
        "-m",
        "tests.docs.run_page",
        os.fspath(page.relative_to(CHECKOUT)),
    ]
    if not os.environ.get(ALL):
        command.append("--is-set-up")
    done = subprocess.run(
        command_on_machine(built, seen, tmp_path, command),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_escapes(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{page.name}:{block.line}: is it a command?"
        if block.language == "text":
            assert not re.search(r"^(\$|dlcmd|make|import) ", block.text, re.MULTILINE), (
                f"{page.name}:{block.line}: a command is not text"
            )
        if any(kind == "not run" for kind, _ in block.comments):
            assert block.reason_not_to_run, f"{page.name}:{block.line}: no reason"
    assert indented_commands(page) == [], f"{page.name}: commands belong into fenced blocks"


def test_most_blocks_are_run() -> None:
    commands = [(page, block) for page in PAGES for block in blocks_of(page) if block.is_command]
    left_out = [
        f"{page.name}:{block.line}: {block.reason_not_to_run}"
        for page, block in commands
        if block.reason_not_to_run
    ]
    print(
        f"{len(commands) - len(left_out)} of {len(commands)} blocks are run; not:",
        *left_out,
        sep="\n  ",
    )
    assert len(left_out) <= (1 - SHARE_RUN) * len(commands), "\n".join(left_out)


def test_the_first_page_sets_up_as_this_test_does() -> None:
    typed = [block.text for block in blocks_of(CHECKOUT / "docs/getting-started.md")]
    assert [line for line in typed[0].splitlines() if line.startswith("make")] == SET_UP


def test_the_comments_of_a_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n<!-- before: x -->\n\nText.\n\n"
        "<!-- before:\na\nb\n-->\n<!-- run: exit=10 stays -->\n```sh\nfalse\n```\n"
        "<!-- not run: no such server -->\n```python\nx = 1\n```\n\n    dlcmd ls\n"
    )
    shell, python = blocks_of(page)
    assert shell == Block("sh", "false\n", 12, (("before", "a\nb"), ("run", "exit=10 stays")))
    assert shell.options == {"exit": "10", "stays": ""}
    assert python.reason_not_to_run == "no such server"
    assert indented_commands(page) == [20]


def test_the_output_of_a_page_is_compared() -> None:
    shown = "put 3 files, 1.7 MiB\nmounted pets@2-6c99… at …/mnt\n"
    check_output(shown, ["put 1,270 files, 12 MiB", "a warning", "mounted pets@12-8d at /a/b/mnt"])
    with pytest.raises(Failure, match="no line 'mounted"):
        check_output(shown, ["mounted pets@12-8d at /mnt", "put 3 files, 1 MiB"])
