#!/usr/bin/env python3
"""Starts `dlcmd` from a checkout: `tools/dlcmd.py ls`, with no installation but the dependencies."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dieselfs.cli import main  # noqa: E402  (the line above makes the packages importable)

if __name__ == "__main__":
    main()
