"""Rows of damage."""

from collections.abc import Iterable

from btrkeep.catalogue.model_damage import Damage
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.tables import damage

_DROP = "DELETE FROM damage WHERE host = :host AND name = :name AND path = :path AND start = :start"
_DROP_FOUND = f"{_DROP} AND found_by = :found_by"
_HERE = "WHERE (:host IS NULL OR host = :host) AND (:name IS NULL OR name = :name) ORDER BY host, name, path, start"
_FORGET = (
    "DELETE FROM damage WHERE host = :host AND name = :name",
    "DELETE FROM verification WHERE host = :host AND name = :name",
    "DELETE FROM comparison WHERE host = :host AND name = :name",
)
_COUNTS = "SELECT host, name, count(DISTINCT path) FROM damage WHERE fate IS NULL GROUP BY host, name"
_FILES = "SELECT count(DISTINCT path) FROM damage WHERE host = :host AND fate IS NULL"
_PATHS = "SELECT DISTINCT path FROM damage WHERE host = :host AND fate IS NULL ORDER BY path LIMIT :most"
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

    def damaged_paths(self, host: str, most: int) -> tuple[int, list[str]]:
        """Returns how many paths are damaged in any backup of the host, and the first of them, at most `most`. Resolved damages
        are not counted.
        """
        found = [path for (path,) in self._reader.all(_PATHS, {"host": host, "most": most})]
        return self._reader.value(_FILES, {"host": host}) if len(found) == most else len(found), found

    def put_damages(self, found: Iterable[Damage]) -> None:
        """Insert damages, or replace those of the same backup, path and start."""
        self.change_damages((), found)

    def change_damages(self, gone: Iterable[Damage], found: Iterable[Damage]) -> None:
        """Deletes those that are gone, unless another look has found them since, and inserts what was found, as `put_damages`."""
        old, new = list(gone), list(found)
        with self._writing("damages written") as session:
            session.run_many(_DROP_FOUND, [damage.values(one) for one in old])
            session.run_many(_DROP, [damage.values(one) for one in new])
            damage.add(session, new)

    def forget_looks(self, host: str, name: str) -> None:
        """Deletes the damages and verification results of a backup, because another backup has taken its place."""
        with self._writing("looks forgotten") as session:
            for statement in _FORGET:
                session.run(statement, {"host": host, "name": name})
