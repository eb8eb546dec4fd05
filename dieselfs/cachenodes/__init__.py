"""Cache nodes: SSD tiers as a network service, several of them a cache cluster by chunk (docs/decisions/0014-cache-nodes.md)."""
