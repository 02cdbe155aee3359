"""Single facts by name, in the table `about`, such as the pool that the catalogue belongs to."""

from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.sqlite import Session

POOL_ID = "pool_id"


class AboutStore(CatalogueSession):
    """Facts outlive `replace_backups`."""

    def get_fact(self, name: str) -> str | None:
        """Returns the value that `set_fact` stored last, or None."""
        value: str | None = self._reader.value("SELECT value FROM about WHERE name = :name", {"name": name})
        return value

    def facts(self, beginning: str) -> dict[str, str]:
        """All facts whose names begin so, by name."""
        query = "SELECT name, value FROM about WHERE substr(name, 1, :length) = :beginning ORDER BY name"
        return {row[0]: row[1] for row in self._reader.all(query, {"beginning": beginning, "length": len(beginning)})}

    def set_fact(self, name: str, value: str | None) -> None:
        """Keep one fact by its name; None forgets it."""
        with self._writing("fact written") as session:
            self._put_fact(session, name, value)

    def pool_id(self) -> str | None:
        """The id of the pool whose backups these are; None in a new catalogue."""
        return self.get_fact(POOL_ID)

    def set_pool_id(self, pool_id: str) -> None:
        """Say whose backups these are."""
        self.set_fact(POOL_ID, pool_id)

    def _put_fact(self, session: Session, name: str, value: str | None) -> None:
        session.run("DELETE FROM about WHERE name = :name", {"name": name})
        if value is not None:
            session.run("INSERT INTO about (name, value) VALUES (:name, :value)", {"name": name, "value": value})
