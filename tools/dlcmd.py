#!/usr/bin/env python3
"""Starts `dlcmd` from a checkout that is not installed; its dependencies must be."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dieselfs.cli import main

if __name__ == "__main__":
    main()
