"""Advice on the SSD tier: traces are replayed through the policies that the tier runs."""
