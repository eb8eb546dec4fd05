"""Chunks kept on a local SSD in front of a slow store: docs/decisions/0013-ssd-tier.md."""
