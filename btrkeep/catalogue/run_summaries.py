"""Queries over many rows: runs and backups of many hosts as lists, and totals added up by the database."""

import json
from collections.abc import Collection, Mapping
from datetime import datetime

from btrkeep.catalogue.columns import Json, escape, names_in
from btrkeep.catalogue.model_summary import BackupOutcome, BalanceTotals, ExpiryTotals, HostRuns, RunTotals
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.tables import backup, run

# A later id is a later run: with the first id that can be meant all older rows are passed over, of one host and of all.
_FIRST = "SELECT min(id) FROM run WHERE finished >= :since OR finished IS NULL"
_TRIED = f"""
    SELECT {run.select(*HostRuns._fields)} FROM run WHERE id >= :first AND started >= :since"""
_COUNTS = """SELECT host, count(*) FROM backup WHERE name <> '' GROUP BY host"""
_AMONG = "host IN (SELECT value FROM json_each(:hosts))"
_OUTCOMES = f"SELECT {backup.select(*BackupOutcome._fields)} FROM backup WHERE name <> '' AND {_AMONG} ORDER BY host, started, name"
_FIRST_SEEN = """
    SELECT value, (SELECT started FROM backup WHERE host = value ORDER BY started, name LIMIT 1) AS "backup [moment]",
        (SELECT started FROM run WHERE host = value ORDER BY id LIMIT 1) AS "run [moment]"
    FROM json_each(:hosts)"""
_RUN_TOTALS = """
    SELECT outcome, count(*), coalesce(sum(literal_bytes), 0) FROM run
    WHERE finished BETWEEN :since AND :latest AND outcome IS NOT NULL GROUP BY outcome ORDER BY outcome"""
_BALANCE_TOTALS = """
    SELECT count(*), coalesce(sum(block_groups), 0), coalesce(sum(moved), 0), coalesce(sum(written), 0) FROM balance
    WHERE filesystem = :filesystem"""
_EXPIRY_TOTALS = "SELECT count(*), coalesce(sum(deleted), 0) FROM expiry"
_SIZES = """SELECT backup.host, backup.bytes FROM json_each(:newest) AS one JOIN backup
    ON backup.host = json_extract(one.value, '$[0]') AND backup.name = json_extract(one.value, '$[1]')
    WHERE backup.bytes IS NOT NULL"""
_STATES = "SELECT state, count(*) FROM backup GROUP BY state"


class RunSummaries(CatalogueSession):
    """Reads summaries. Filesystems are named by their UUID."""

    def runs_since(self, since: datetime, hosts: Collection[str] | None = None) -> list[HostRuns]:
        """Runs that began at `since` or later, of all hosts or of these, in the order in which they began."""
        first = self._reader.value(_FIRST, {"since": since})
        if first is None:
            return []
        query = _TRIED if hosts is None else f"{_TRIED} AND {_AMONG}"
        values = {"since": since, "first": first, "hosts": names_in(hosts or ())}
        return [HostRuns._make(row) for row in self._reader.all(f"{query} ORDER BY id", values)]

    def backup_counts(self) -> dict[str, int]:
        """Returns the number of final backups by host; a host without any is absent."""
        return dict(self._reader.all(_COUNTS))

    def first_seen(self, hosts: Collection[str]) -> dict[str, datetime]:
        """Returns when the first run or the oldest backup of each of these hosts began; a host without any is absent."""
        found = self._reader.all(_FIRST_SEEN, {"hosts": names_in(hosts)})
        rows = [(name, [one for one in moments if one]) for name, *moments in found]
        return {name: min(moments) for name, moments in rows if moments}

    def backup_outcomes(self, hosts: Collection[str]) -> list[BackupOutcome]:
        """Returns what became of the final backups of these hosts, ordered by host and start."""
        return [BackupOutcome._make(row) for row in self._reader.all(_OUTCOMES, {"hosts": names_in(hosts)})]

    def run_totals(self, since: datetime, latest: datetime) -> list[RunTotals]:
        """Returns totals by outcome of the runs that ended from `since` to `latest`."""
        return [RunTotals(*row) for row in self._reader.all(_RUN_TOTALS, {"since": since, "latest": latest})]

    def balance_totals(self, filesystem: str) -> BalanceTotals:
        """Returns totals of all runs of balance on a filesystem."""
        (row,) = self._reader.all(_BALANCE_TOTALS, {"filesystem": filesystem})
        return BalanceTotals(*row)

    def expiry_totals(self) -> ExpiryTotals:
        """Returns totals of all runs of `expire`."""
        (row,) = self._reader.all(_EXPIRY_TOTALS)
        return ExpiryTotals(*row)

    def sizes(self, newest: Mapping[str, str]) -> dict[str, int]:
        """Returns the size of all files of one backup of each host, given by name. Unknown backups are left out."""
        pairs = Json(json.dumps([[escape(host), name] for host, name in newest.items()]))
        return dict(self._reader.all(_SIZES, {"newest": pairs}))

    def state_counts(self) -> dict[str, int]:
        """Returns the number of backups by state; a state without any is absent."""
        return dict(self._reader.all(_STATES))
