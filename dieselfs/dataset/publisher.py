"""Publication of a writer's commits to the index, and repair of an index that loses records.

A commit is durable before the index receives it, so nothing here can lose a file. But a server may
come back empty, and a database of several servers may forget what it acknowledged
(docs/decisions/0010): then `applied` may promise records that are gone. A writer that sees this
happen knows which records are in doubt: those after the last generation at which everything was
confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from chunkstore.commit_log import BIRTH_GENERATION, Commit
from dieselfs.dataset.dataset import Dataset
from metadata.dataset_state import register_dataset
from metadata.errors import IndexBehind, IndexForgot, RecordCorrupt, RecordsLost
from metadata.kv.lost_writes import lost_writes_of

_ATTEMPTS = 4
"""The attempts to repair an index; a fail-over may interrupt the repair after another one."""

log = logging.getLogger(__name__)


class Publisher:
    """The publisher of one writer, for one thread at a time."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._seen = lost_writes_of(dataset.index)
        self._confirmed = dataset.namespace.state().generation
        """The generation up to which everything was in the index, and confirmed."""

    def publish(self, commit: Commit, heads: Sequence[bytes]) -> None:
        """Publish a commit as `Dataset.publish` does, to an index that holds everything before it.

        An index that is being rebuilt receives the commit later. Raises `IndexForgot` if the index
        keeps losing records.
        """
        try:
            state = self._dataset.publish(commit, heads)
        except IndexBehind as error:
            # The process that rebuilds the index looks for later commits at its end. The next
            # process that opens the dataset does so too.
            log.warning(
                "commit %d of %s is durable, but the index does not show its files yet: %s",
                commit.generation,
                self._dataset.ref.name,
                error,
            )
            return
        except (IndexForgot, RecordCorrupt) as error:
            whole = isinstance(error, RecordsLost)
            if not whole and not self._has_lost_records():
                raise
        else:
            whole = False
            lost = lost_writes_of(self._dataset.index)
            if lost.losses == self._seen.losses:
                if lost.is_confirmed:
                    self._confirmed = state.generation
                return
        self._repair(whole)

    def _has_lost_records(self) -> bool:
        losses = lost_writes_of(self._dataset.index).losses
        return (
            losses != self._seen.losses
            or self._dataset.namespace.state().generation < self._confirmed
        )

    def _repair(self, whole: bool) -> None:
        for _ in range(_ATTEMPTS):
            lost = lost_writes_of(self._dataset.index)
            try:
                self._reapply(whole or lost.losses_without_end != self._seen.losses_without_end)
            except (IndexForgot, IndexBehind) as error:  # others may repair the same
                log.warning("%s", error)
                continue
            self._seen = lost
            if not self._has_lost_records():
                return
        raise IndexForgot(
            f"the index of {self._dataset.ref.name} keeps losing records: repair its server, then "
            f"rebuild the index with `dlcmd recover {self._dataset.ref.name}`"
        )

    def _reapply(self, whole: bool) -> None:
        """Put the commits again, whatever generation the index claims to have applied.

        The claim may be less than it had, or more than its records show.
        """
        dataset = self._dataset
        after = 0 if whole else min(self._confirmed, dataset.namespace.state().generation)
        log.warning(
            "dataset %s: the index has lost recent records; all commits after %s are applied again",
            dataset.ref.name,
            after,
        )
        born_ns = dataset.log.read(BIRTH_GENERATION).time_ns
        dataset.namespace.reapply(dataset.log, dataset.reader, after)
        register_dataset(dataset.index, dataset.ref, born_ns)
