"""Garbage and retention: what may be deleted, and when (docs/housekeeping.md)."""
