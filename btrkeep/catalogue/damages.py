"""Rows of damage."""

from collections.abc import Iterable
from datetime import datetime

from btrkeep.catalogue.model_damage import Damage
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import damage

_DROP = "DELETE FROM damage WHERE host = :host AND name = :name AND path = :path AND start = :start"
_DROP_FOUND = "DELETE FROM damage WHERE host = :host AND name = :name AND found_by = :found_by"
_DROP_ALL_FOUND = "DELETE FROM damage WHERE found_by = :found_by AND (:until IS NULL OR found_at <= :until)"
_HERE = "WHERE (:host IS NULL OR host = :host) AND (:name IS NULL OR name = :name) ORDER BY host, name, path, start"
_FORGET = (
    "DELETE FROM damage WHERE host = :host AND name = :name",
    "DELETE FROM verification WHERE host = :host AND name = :name",
    "DELETE FROM comparison WHERE host = :host AND name = :name",
)
_COUNTS = "SELECT host, name, count(DISTINCT path) FROM damage WHERE fate IS NULL GROUP BY host, name"
_FIRST = "SELECT host, name, min(path) FROM damage WHERE fate IS NULL GROUP BY host, name"


class DamageStore(CatalogueSession):
    """Each method that changes rows does so in one transaction."""

    def damages(self, host: str | None = None, name: str | None = None) -> list[Damage]:
        """Returns the damages of a backup, of a host or of all hosts, ordered by host, backup, path and offset, resolved ones
        included.
        """
        return damage.find(self._reader, _HERE, {"host": host, "name": name})

    def damaged_files(self) -> dict[tuple[str, str], int]:
        """Returns the number of damaged files of each backup that has any, by host and name. Resolved damages are not counted."""
        return {(host, name): files for host, name, files in self._reader.all(_COUNTS)}

    def first_damaged(self) -> dict[tuple[str, str], str]:
        """Returns the path of one damaged file of each backup that has any, by host and name. Resolved damages are not counted."""
        return {(host, name): path for host, name, path in self._reader.all(_FIRST)}

    def put_damages(self, found: Iterable[Damage]) -> None:
        """Insert damages, or replace those of the same backup, path and start."""
        rows = list(found)
        with self._writing("damages written") as session:
            _put(session, rows)

    def replace_damages(self, host: str, name: str, found_by: str, found: Iterable[Damage]) -> None:
        """Replaces all damages of a backup that were found in this way."""
        rows = list(found)
        with self._writing("damages replaced") as session:
            session.run(_DROP_FOUND, {"host": host, "name": name, "found_by": found_by})
            _put(session, rows)

    def replace_found_by(self, found_by: str, found: Iterable[Damage], until: datetime | None = None) -> None:
        """Replaces the damages of all backups that were found in this way, up to that moment."""
        rows = list(found)
        with self._writing("damages of all replaced") as session:
            session.run(_DROP_ALL_FOUND, {"found_by": found_by, "until": until})
            _put(session, rows)

    def forget_looks(self, host: str, name: str) -> None:
        """Deletes the damages and verification results of a backup, because another backup has taken its place."""
        with self._writing("looks forgotten") as session:
            for statement in _FORGET:
                session.run(statement, {"host": host, "name": name})


def _put(session: Session, rows: list[Damage]) -> None:
    session.run_many(_DROP, [damage.values(one) for one in rows])
    damage.add(session, rows)
