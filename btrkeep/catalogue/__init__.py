"""The catalogue: every SQL statement of btrkeep, about backups and how they went.

    with Catalogue.open(Path("/var/lib/btrkeep/main")) as catalogue:
        for backup in catalogue.backups("web1"):
            ...

The pool describes itself (backup.json); the catalogue is a cache of it, plus the history of runs, of free space and of balances.
Losing it loses no backup.
"""

from btrkeep.catalogue.model import (
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
    StateFromNotes,
)
from btrkeep.catalogue.model_alarm import StoredAlarm
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
from btrkeep.catalogue.readonly import CatalogueUnready, state_mark
from btrkeep.catalogue.sqlite import CatalogueBusy, CatalogueDamaged, CatalogueFull, CatalogueUnusable
from btrkeep.catalogue.store import Catalogue

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
    "Sample",
    "SampleMark",
    "StateFromNotes",
    "StoredAlarm",
    "VerificationFacts",
    "VerifiedBackup",
    "state_mark",
]
