"""Imports point one way, and a foreign library has one owner.

The packages are stacked; a package may import itself and those below it:

    tools      -> dieselfs     a door to the product holds no logic of its own
    dieselfs   -> metadata     mounts, tasks and training are told names and where a file lies
    metadata   -> chunkstore   a record can be rebuilt from a chunk, so it is made of chunk ids
    chunkstore -> nothing      bytes and chunks must be readable with no index and no product
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STACK = ["chunkstore", "metadata", "dieselfs", "tools"]  # each may import those to its left

# Who may import what comes from outside: the one place that translates its errors into ours.
OWNERS = {
    "redis": ["metadata/kv/"],  # an embedded set-up must not need it
    "hiredis": ["metadata/kv/"],
    "lmdb": ["metadata/kv/lmdb_", "chunkstore/ssd/"],  # the embedded index alone
    "obstore": ["chunkstore/stores/cloud"],  # errors and addresses of clouds end there
    "botocore": ["chunkstore/stores/cloud_aws_credentials"],  # an extra
    "rados": ["chunkstore/stores/rados"],  # an extra
    "msgspec": [
        "dieselfs/cache/wire/",  # what is said between processes, checked by its types
        "dieselfs/cache/membership/view_file",  # what one node's processes know of the others
        "dieselfs/cache/ports/member_record",  # a member, wherever it is stored or sent
        "dieselfs/cache/jobs/",  # what readers of jobs publish, checked by its types
        "dieselfs/allocation/directory/",  # and so are decisions
    ],
    "click": ["dieselfs/cli/"],  # what the command line can do, a Python user can
    "rich": ["dieselfs/cli/"],
    "torch": ["dieselfs/integrations/torch_"],  # an extra: what these modules decide, others hold
    "PIL": ["dieselfs/integrations/image_files"],
    "kubernetes": ["dieselfs/allocation/kubernetes/"],  # an extra
    "urllib3": ["dieselfs/allocation/kubernetes/"],  # its errors, which the client passes on
    "scipy": ["dieselfs/allocation/policies/linear_program"],  # an extra: linear programs
    "numpy": ["chunkstore/", "metadata/", "dieselfs/"],  # columns of entries are everywhere
    "xxhash": ["chunkstore/", "metadata/", "dieselfs/"],  # and so are checksums
}


SOURCES = [file for package in STACK for file in sorted((ROOT / package).rglob("*.py"))]


def imported_modules(file: Path) -> Iterator[str]:
    """Every absolute import in `file`, those inside functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            yield from (name if is_module(name) else module for name in names)


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_one_way(file: Path) -> None:
    path = str(file.relative_to(ROOT))
    package = path.split("/")[0]
    for module in imported_modules(file):
        top = module.split(".")[0]
        if top in STACK:
            assert STACK.index(top) <= STACK.index(package), f"{package} lies below {top}"
        elif top not in sys.stdlib_module_names:
            assert top in OWNERS, f"{top}: a new dependency needs an owner in this test"
            assert path.startswith(tuple(OWNERS[top])), f"{top} belongs to {OWNERS[top]}"
