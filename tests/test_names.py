"""A name of a class or of a module means one thing in the whole product."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("chunkstore", "metadata", "dieselfs", "tools")
COMMANDS = Path("dieselfs/cli/commands")

# module -> what it means wherever it stands
SHARED = {
    "__init__": "a package",
    "__main__": "the program of a package",
    "errors": "the exceptions of a package",
    "memory": "the reference implementation of a port, in dictionaries",
    "mount": "a server of a mount; `cli/mount.py` is a former place",
    "naming": "policies by name",
    "options": "the options of a part of the cache, as given",
    "progress": "how far a long operation is, told and shown",
    "registries": "which registry an index or an environment names",
    "settings": "the settings of a part of the cache",
    "statistics": "the counters of a part of the cache or of a client",
}


def doubled(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, path in names:
        found[name].append(str(path.relative_to(ROOT)))
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_each_public_class_has_a_name_of_its_own() -> None:
    classes = (
        (node.name, path)
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert doubled(classes) == {}


def test_each_module_has_a_name_of_its_own() -> None:
    """But for commands, which are called as what they run."""
    named = ((path.stem, path) for path in modules() if path.parent != ROOT / COMMANDS)
    assert doubled(named).keys() == SHARED.keys()
