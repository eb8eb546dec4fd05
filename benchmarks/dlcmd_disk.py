"""`dlcmd` that knows `disk:///FOLDER`, a `SharedSlowStore`; the daemons that it starts do too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.shared_slow_store import SharedSlowStore
from dieselfs import assembly
from dieselfs.cli import main


def _open(url: str) -> SharedSlowStore:
    return SharedSlowStore(Path(url.partition("://")[2]))


assembly._STORES["disk"] = _open  # type: ignore[index]

if __name__ == "__main__":
    main()
