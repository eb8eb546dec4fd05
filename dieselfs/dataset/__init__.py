"""One dataset: its address, its store and index, and writes to it."""
