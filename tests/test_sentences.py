"""Docstrings of the product are sentences with a subject: language rules that no linter knows.

The first lines and the sentences after them are counted that begin with a relative or interrogative
word, such as "Who begins it" or "Of one client".
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ["chunkstore", "metadata", "dieselfs", "tools"]
HEADLESS = re.compile(r"(Who|What|Whoever|Whatever|That|Of|Whether|By|Whom|Whose)\b")
MOST = 0.005
"""Of all sentences: a few may begin so and be right."""


def docstrings(file: Path) -> Iterator[str]:
    """Those of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(file.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield " ".join(text.split())


def sentences(text: str) -> list[str]:
    return [found for found in re.split(r"(?<=[.!?]) +(?=[A-Z`*])", text) if found]


def test_a_headless_sentence_is_noticed() -> None:
    found = sentences("Return the file. Of one client: its reads. What is left is dropped.")
    assert [bool(HEADLESS.match(sentence)) for sentence in found] == [False, True, True]


def test_sentences_have_a_subject() -> None:
    found = [
        (file, sentence)
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        for text in docstrings(file)
        for sentence in sentences(text)
    ]
    headless = [f"{file}: {sentence}" for file, sentence in found if HEADLESS.match(sentence)]
    assert len(headless) <= MOST * len(found), "\n".join(headless)
