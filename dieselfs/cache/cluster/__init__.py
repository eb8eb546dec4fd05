"""Cache nodes: SSD tiers as a network service; several of them form a cache cluster.

Each chunk has an owner among the nodes. The design is in docs/decisions/0014-cache-nodes.md.
"""
