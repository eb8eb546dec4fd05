"""The SSD tier: chunks on a local SSD in front of a slow store (docs/decisions/0013)."""
