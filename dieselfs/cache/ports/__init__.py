"""The ports and values that the parts of the cache share: blocks, members, sources."""
