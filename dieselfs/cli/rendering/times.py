"""Times as results show them."""

from __future__ import annotations

from datetime import UTC, datetime


def local_time(time_ns: int) -> str:
    """Return a time in whole seconds in the user's time zone."""
    return datetime.fromtimestamp(time_ns // 10**9).strftime("%Y-%m-%d %H:%M:%S")


def iso_time(time_ns: int) -> str:
    """Return a time in UTC with all nine digits of the fraction."""
    seconds, fraction = divmod(time_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"
