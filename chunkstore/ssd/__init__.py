"""The SSD tier: chunks on a local SSD in front of a slow store (docs/decisions/0013)."""

import sys

if sys.platform != "linux":
    raise ImportError(f"the SSD tier needs Linux, and this is {sys.platform}")
