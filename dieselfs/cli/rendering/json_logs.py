"""Logs of the library as JSON objects on stderr, beside the results of --json."""

from __future__ import annotations

import json
import logging
import sys


def log_as_json() -> None:
    """Write warnings of the library, such as that a store is new, as JSON objects on stderr."""
    logger = logging.getLogger()
    for former in logger.handlers[:]:
        if isinstance(former.formatter, _JsonLines):
            logger.removeHandler(former)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logger.addHandler(handler)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the object of a record on one line."""
        level = record.levelname.lower()
        return json.dumps({"event": "log", "level": level, "message": record.getMessage()})
