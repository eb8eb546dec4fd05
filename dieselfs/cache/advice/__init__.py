"""Advice on an SSD tier: traces of requests, their replay through its policies, and power."""
