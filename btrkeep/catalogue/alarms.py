"""Rows of alarm."""

from collections.abc import Iterable

from btrkeep.catalogue.model_alarm import StoredAlarm
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.tables import alarm

_DROP = "DELETE FROM alarm WHERE what = :what AND subject = :subject"


class AlarmStore(CatalogueSession):
    """Alarms that stand, and those that went and are still remembered."""

    def alarms(self) -> list[StoredAlarm]:
        """All of them, by event and subject."""
        return alarm.find(self._reader, "ORDER BY what, subject")

    def put_alarms(self, changed: Iterable[StoredAlarm], gone: Iterable[tuple[str, str]] = ()) -> None:
        """In one transaction: insert or replace the ones, forget the others, by event and subject."""
        rows = list(changed)
        with self._writing("alarms written") as session:
            session.run_many(_DROP, [{"what": what, "subject": subject} for what, subject in (*(one.key for one in rows), *gone)])
            alarm.add(session, rows)
