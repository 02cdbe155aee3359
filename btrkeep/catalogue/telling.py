"""The part of the catalogue that tells people and programs how it goes: alarms, and sums."""

from collections.abc import Collection, Iterable
from datetime import datetime

from btrkeep.catalogue import alarms, totals, tried
from btrkeep.catalogue.model_alarm import BalanceTotals, ExpiryTotals, RunTotals, StoredAlarm
from btrkeep.catalogue.model_tried import BackupFate, HostRuns
from btrkeep.catalogue.opened import OpenCatalogue


class TellingCatalogue(OpenCatalogue):
    """Filesystems are named by their UUID."""

    def alarms(self) -> list[StoredAlarm]:
        """Alarms that stand, and those that went and are still remembered, by event and subject."""
        return alarms.every(self._reader)

    def put_alarms(self, changed: Iterable[StoredAlarm], gone: Iterable[tuple[str, str]] = ()) -> None:
        """In one transaction: insert or replace the ones, forget the others, by event and subject."""
        with self._writing() as session:
            alarms.put(session, changed, gone)

    def run_totals(self, since: datetime, latest: datetime) -> list[RunTotals]:
        """Of the runs of hosts that ended at `since` or later, and not after `latest`, by outcome."""
        return totals.runs(self._reader, since, latest)

    def balance_totals(self, filesystem: str) -> BalanceTotals:
        """Of all runs of balance on a filesystem."""
        return totals.balances(self._reader, filesystem)

    def expiry_totals(self) -> ExpiryTotals:
        """Of all runs of `expire`."""
        return totals.expiries(self._reader)

    def state_counts(self) -> dict[str, int]:
        """How many backups there are in each state; a state without any is not there."""
        return totals.states(self._reader)

    def tried(self, since: datetime, hosts: Collection[str] | None = None) -> list[HostRuns]:
        """Runs that began at `since` or later, of all hosts or of these, in the order in which they began."""
        return tried.since(self._reader, since, hosts)

    def backup_counts(self) -> dict[str, int]:
        """How many final backups each host has; a host without any is not there."""
        return tried.counts(self._reader)

    def first_seen(self, hosts: Collection[str]) -> dict[str, datetime]:
        """When the first run or the oldest backup of each of these hosts began; a host without any is not there."""
        return tried.first_seen(self._reader, hosts)

    def fates(self, hosts: Collection[str]) -> list[BackupFate]:
        """What became of the final backups of these hosts, by host and start."""
        return tried.fates(self._reader, hosts)
