"""Events of a simulation: what happened to which job, and when."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class EventKind(Enum):
    """The kinds of events."""

    SUBMIT = "submit"
    START = "start"
    EPOCH = "epoch"
    """A job has read its dataset once more."""
    END = "end"
    ALLOCATE = "allocate"
    """The policy has decided; the job's number is -1."""


class Event(NamedTuple):
    """One event. Jobs are numbered by their places in the list that is simulated."""

    at_s: float
    kind: EventKind
    job: int
