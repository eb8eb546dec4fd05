"""The administrator's view of allocations: what is in force, why, and what is set by hand.

`docs/allocation.md` describes it for people.
"""
