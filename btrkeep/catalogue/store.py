"""The catalogue as programs see it: methods that return dataclasses.

It is a cache of the pool's backup.json files, plus the history of runs. A Catalogue is used by the thread that opened it (sqlite3
refuses others); in asyncio that is the loop's thread, because a call takes well under a millisecond unless another process is
writing. Every method raises OperatorError if the file is damaged, full, not writable, or held by another program for more than 30
s.
"""

from collections.abc import Iterable

from btrkeep.catalogue.backups import BackupStateStore, BackupStore
from btrkeep.catalogue.facts import HistoryStore
from btrkeep.catalogue.hosts import HostStore
from btrkeep.catalogue.model_alarm import StoredAlarm
from btrkeep.catalogue.pool_history import BalanceStore, DedupeStore, ExpiryStore, SampleStore
from btrkeep.catalogue.runs import NightQueries, RunStore, RunSummaries
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.tables import alarm
from btrkeep.catalogue.verifications import DamageStore, VerificationStore

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
            session.run_many(_DROP, [{"what": what, "subject": subject} for what, subject in (*(row.key for row in rows), *gone)])
            alarm.add(session, rows)


class Catalogue(
    BackupStore,
    BackupStateStore,
    HostStore,
    RunStore,
    RunSummaries,
    NightQueries,
    ExpiryStore,
    DedupeStore,
    BalanceStore,
    SampleStore,
    AlarmStore,
    DamageStore,
    VerificationStore,
    HistoryStore,
):
    """An open catalogue."""
