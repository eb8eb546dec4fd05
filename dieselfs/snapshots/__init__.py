"""Snapshots: built, published, pulled, chosen, tagged, compared and pruned."""
