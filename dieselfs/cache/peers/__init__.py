"""The task-grained peer cache (DIESEL §4.2), which joins the memories of a task's nodes.

The decision record is docs/decisions/0011.
"""
