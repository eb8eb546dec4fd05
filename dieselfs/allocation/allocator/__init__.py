"""The allocator: the process that divides a cluster's cache and remote IO among the jobs present.

Nothing depends on it: while it is away, every reader keeps what it had (docs/decisions/0032).
"""
