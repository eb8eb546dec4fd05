"""The start of a mount: from a request to a mountpoint that answers."""
