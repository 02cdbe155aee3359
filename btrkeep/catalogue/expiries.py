"""Rows of expiry: the runs of `expire`, what each does now, and what became of it."""

from datetime import datetime
from typing import Any

from btrkeep.catalogue.model import Expiry
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.tables import expiry


class ExpiryStore(CatalogueSession):
    """Each method that changes rows does so in one transaction."""

    def start_expiry(self, started: datetime, pid: int, pid_started: str | None, **fields: Any) -> int:
        """A run of `expire` begins; its id. All counts are 0 and all else unknown unless given."""
        with self._writing("expiry begun in the catalogue") as session:
            return expiry.start(session, started=started, pid=pid, pid_started=pid_started, **fields)

    def update_expiry(self, expiry_id: int, /, **fields: Any) -> None:
        """Changes fields of a run of `expire`; `finished` and `outcome` end it. Raises KeyError if no run has this id."""
        with self._writing("expiry ended in the catalogue" if fields.get("finished") else "expiry row written") as session:
            expiry.change(session, expiry_id, fields)

    def expiries(self, limit: int = 20, *, of_all: bool = False) -> list[Expiry]:
        """The last runs of `expire`, newest first; with `of_all` without those of some hosts alone."""
        where = "WHERE hosts IS NULL" if of_all else ""
        return expiry.find(self._reader, f"{where} ORDER BY id DESC LIMIT :most", {"most": limit})

    def unfinished_expiries(self) -> list[Expiry]:
        """Runs of `expire` without an end, oldest first: running now, or killed; their `pid` and `pid_started` tell."""
        return expiry.unfinished(self._reader)

    def one_expiry(self, expiry_id: int) -> Expiry | None:
        """Returns the run of `expire` with this id, or None."""
        return expiry.first(self._reader, "WHERE id = :id", {"id": expiry_id})
