"""The chunks of one task in the shared memory of one node (DIESEL §4.2).

The design is in docs/decisions/0006-node-memory.md.
"""
