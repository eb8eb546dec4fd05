"""The known reading order, and what is fetched ahead of it (DIESEL §4.3): docs/decisions/0007-plan.md."""
