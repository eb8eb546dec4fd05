"""`dlcmd` that knows `flapping://`; the daemons that it starts do too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dieselfs import assembly
from dieselfs.cli import main
from tests.faults.flapping_store import FlappingStore

assembly._STORES["flapping"] = lambda url: FlappingStore(Path(url.partition("://")[2]))  # type: ignore[index]

if __name__ == "__main__":
    main()
