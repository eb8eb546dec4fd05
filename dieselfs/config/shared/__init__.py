"""The settings that all nodes of a store share, kept in the store (docs/decisions/0025)."""
