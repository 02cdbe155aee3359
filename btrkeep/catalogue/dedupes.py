"""Rows of dedupe: the runs of `backupd dedupe`, and what each saved."""

from datetime import datetime
from typing import Any

from btrkeep.catalogue.model import Dedupe
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.tables import dedupe


class DedupeStore(CatalogueSession):
    """Each method that changes rows does so in one transaction."""

    def start_dedupe(self, started: datetime, pid: int, pid_started: str | None) -> int:
        """A run begins; its id. All counts are 0. The row of one that was killed gets its end."""
        with self._writing("dedupe begun in the catalogue") as session:
            for row in dedupe.unfinished(session):  # the lock `verify` is ours, so none of them runs
                dedupe.change(session, row.id, {"finished": row.updated, "outcome": "killed"})
            return dedupe.start(session, started=started, pid=pid, pid_started=pid_started)

    def update_dedupe(self, dedupe_id: int, /, **fields: Any) -> None:
        """Changes fields of a run; `finished` and `outcome` end it. Raises KeyError if no run has this id."""
        with self._writing("dedupe ended in the catalogue" if fields.get("finished") else "dedupe row written") as session:
            dedupe.change(session, dedupe_id, fields)

    def dedupes(self, limit: int) -> list[Dedupe]:
        """The last runs, newest first."""
        return dedupe.find(self._reader, "ORDER BY id DESC LIMIT :most", {"most": limit})
