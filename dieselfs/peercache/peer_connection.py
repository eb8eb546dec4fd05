from dieselfs.peercache.messages import Answer


class Pending:
    """A question that was asked."""

    def result(self) -> Answer:
        """Wait for its answer. Raises `PeerFailed`."""
        raise NotImplementedError
