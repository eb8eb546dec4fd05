"""The kernel's requests: protocol, connection, and what all answers share."""
