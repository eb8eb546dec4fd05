"""Chunk-wise shuffle (DIESEL §4.3): orders, their text, and their quality."""
