"""The memory of a task's nodes put together (DIESEL §4.2): docs/decisions/0011-peer-cache.md."""
