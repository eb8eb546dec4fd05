"""The SSD tier of a node as configured and used, and the blobs pinned on it."""
