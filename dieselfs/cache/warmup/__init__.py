"""Warm-up of a whole dataset: of this node's SSD, or of a cache cluster."""
