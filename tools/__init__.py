"""Doors to the product from a checkout; nothing here is installed."""
