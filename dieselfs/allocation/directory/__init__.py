"""The allocation directory: what is allocated to jobs and datasets, and what their readers say.

`docs/allocation.md` describes it for people, docs/decisions/0032 says why it is so.
"""
