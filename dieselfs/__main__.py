"""`python -m dieselfs` and the script `dlcmd` run the command line.

`chunkstore` and `metadata` are general names. Another distribution that has a package of one of
them overwrites our files, or is imported in our place. `scripts/setup.sh` looks for that; this
module looks when an import fails, since the look at all distributions takes 0.1 s.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

TOP_LEVEL: Final = ("dieselfs", "metadata", "chunkstore")


def run() -> NoReturn:
    """Run `dlcmd`; say so if another package is imported in place of one of ours."""
    try:
        from dieselfs.cli import main
    except (ImportError, AttributeError):
        found = conflicts()
        if not found:
            raise
        sys.exit("\n".join(f"dlcmd: {conflict}" for conflict in found))
    main()


def conflicts() -> Sequence[str]:
    """Return a sentence for each top-level package that is not ours alone; none if all is well."""
    from importlib.metadata import packages_distributions  # 20 ms, and hardly ever needed

    owners = packages_distributions()
    ours = Path(__file__).parents[1]
    found = []
    for name in TOP_LEVEL:
        others = sorted(set(owners.get(name, [])) - {"dieselfs"})
        place = _place(name)
        if others:
            found.append(
                f"the package {name} of DieselFS is also one of {', '.join(others)}; uninstall "
                "that, then install DieselFS again, or give each an environment of its own"
            )
        elif place is not None and place.parent != ours:
            found.append(
                f"{place} is imported as {name} in place of {ours / name}; remove or rename it"
            )
    return found


def _place(name: str) -> Path | None:
    """Return the folder or file that is imported as `name`; None if there is none."""
    from importlib.util import find_spec

    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin


if __name__ == "__main__":
    run()
