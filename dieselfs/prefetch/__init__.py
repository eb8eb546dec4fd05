"""The known reading order, and the prefetching of its chunks (DIESEL §4.3).

The design is in docs/decisions/0007-plan.md.
"""
