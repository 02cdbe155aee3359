"""The catalogue as programs see it: methods that return dataclasses.

It is a cache of the pool's backup.json files, plus the history of runs. A Catalogue is used by the thread that opened it (sqlite3
refuses others); in asyncio that is the loop's thread, because a call takes well under a millisecond unless another process is
writing. Every method raises OperatorError if the file is damaged, full, not writable, or held by another program for more than 30
s.
"""

from btrkeep.catalogue.alarms import AlarmStore
from btrkeep.catalogue.backups import BackupStore
from btrkeep.catalogue.balances import BalanceStore
from btrkeep.catalogue.damages import DamageStore
from btrkeep.catalogue.dedupes import DedupeStore
from btrkeep.catalogue.expiries import ExpiryStore
from btrkeep.catalogue.history_store import HistoryStore
from btrkeep.catalogue.hosts import HostStore
from btrkeep.catalogue.nights import NightQueries
from btrkeep.catalogue.run_summaries import RunSummaries
from btrkeep.catalogue.runs import RunStore
from btrkeep.catalogue.samples import SampleStore
from btrkeep.catalogue.states import BackupStateStore
from btrkeep.catalogue.verifications import VerificationStore


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
