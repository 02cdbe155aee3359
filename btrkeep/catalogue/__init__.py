"""The catalogue as programs see it, with every SQL statement of btrkeep, about backups and how they went.

    with Catalogue.open(Path("/var/lib/btrkeep/main")) as catalogue:
        for backup in catalogue.backups("web1"):
            ...

The pool describes itself (backup.json); the catalogue is a cache of it, plus the history of runs, of free space and of balances.
Losing it loses no backup.

Its methods return dataclasses. A Catalogue is used by the thread that opened it (sqlite3 refuses others); in asyncio that is the
loop's thread, because a call takes well under a millisecond unless another process is writing. Every method raises OperatorError if
the file is damaged, full, not writable, or locked by another program for more than 30 s.
"""

from collections.abc import Iterable

from btrkeep.catalogue.backups import BackupStateStore, BackupStore
from btrkeep.catalogue.facts import HistoryStore
from btrkeep.catalogue.hosts import HostStore
from btrkeep.catalogue.model_alarm import Silence, StoredAlarm
from btrkeep.catalogue.model_backup import (
    EXPIRY_OUTCOMES,
    KILLED,
    RUN_OUTCOMES,
    Backup,
    BackupOutcome,
    BackupState,
    BalanceTotals,
    Dedupe,
    Expiry,
    ExpiryTotals,
    HostFacts,
    HostRuns,
    Night,
    PastRuns,
    Progress,
    Run,
    RunTotals,
    RunVolume,
    StateFromNotes,
)
from btrkeep.catalogue.model_pool import (
    BALANCE_OUTCOMES,
    SPANS,
    STEP_OUTCOMES,
    Balance,
    BalanceStep,
    FreeSpaceScore,
    Job,
    Sample,
    SampleMark,
)
from btrkeep.catalogue.model_verification import FOUND_BY, WHOLE, ComparedBackup, Damage, VerificationFacts, VerifiedBackup
from btrkeep.catalogue.pool_history import BalanceStore, DedupeStore, ExpiryStore, SampleStore
from btrkeep.catalogue.readonly import CatalogueUnready, state_mark
from btrkeep.catalogue.runs import NightQueries, RunStore, RunSummaries
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.sqlite import CatalogueBusy, CatalogueDamaged, CatalogueFull, CatalogueUnusable
from btrkeep.catalogue.tables import alarm, silence
from btrkeep.catalogue.verifications import DamageStore, VerificationStore

__all__ = [
    "BALANCE_OUTCOMES",
    "EXPIRY_OUTCOMES",
    "FOUND_BY",
    "KILLED",
    "RUN_OUTCOMES",
    "SPANS",
    "STEP_OUTCOMES",
    "WHOLE",
    "Backup",
    "BackupOutcome",
    "BackupState",
    "Balance",
    "BalanceStep",
    "BalanceTotals",
    "Catalogue",
    "CatalogueBusy",
    "CatalogueDamaged",
    "CatalogueFull",
    "CatalogueUnready",
    "CatalogueUnusable",
    "ComparedBackup",
    "Damage",
    "Dedupe",
    "Expiry",
    "ExpiryTotals",
    "FreeSpaceScore",
    "HostFacts",
    "HostRuns",
    "Job",
    "Night",
    "PastRuns",
    "Progress",
    "Run",
    "RunTotals",
    "RunVolume",
    "Sample",
    "SampleMark",
    "Silence",
    "StateFromNotes",
    "StoredAlarm",
    "VerificationFacts",
    "VerifiedBackup",
    "state_mark",
]

_DROP = "DELETE FROM alarm WHERE what = :what AND subject = :subject"
_DROP_SILENCE = "DELETE FROM silence WHERE kind = :kind AND name = :name"


class AlarmStore(CatalogueSession):
    """Open alarms, and those that have ended and are still remembered."""

    def alarms(self) -> list[StoredAlarm]:
        """Returns all alarms, by event and subject."""
        return alarm.find(self._reader, "ORDER BY what, subject")

    def put_alarms(self, changed: Iterable[StoredAlarm], gone: Iterable[tuple[str, str]] = ()) -> None:
        """In one transaction: inserts or replaces some alarms and deletes others, by event and subject."""
        rows = list(changed)
        with self._writing("alarms written") as session:
            session.run_many(_DROP, [{"what": event, "subject": subject} for event, subject in (*(row.key for row in rows), *gone)])
            alarm.add(session, rows)

    def silences(self) -> list[Silence]:
        """Returns all silences, by kind and name; also those that have ended."""
        return silence.find(self._reader, "ORDER BY kind, name")

    def put_silences(self, changed: Iterable[Silence], gone: Iterable[tuple[str, str]] = ()) -> None:
        """In one transaction: inserts or replaces some silences and deletes others, by kind and name."""
        rows = list(changed)
        with self._writing("silences written") as session:
            session.run_many(_DROP_SILENCE, [{"kind": kind, "name": name} for kind, name in (*(row.key for row in rows), *gone)])
            silence.add(session, rows)


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
