"""The tiers between readers and the store: node memory, peers, cache cluster, SSD."""
