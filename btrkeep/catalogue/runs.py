"""Rows of run and progress, the nights that consist of runs, and totals computed by the database."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from btrkeep.catalogue import backups, hosts
from btrkeep.catalogue.model_backup import (
    RUN_OUTCOMES,
    Backup,
    BackupOutcome,
    BalanceTotals,
    ExpiryTotals,
    HostRuns,
    Night,
    PastRuns,
    Progress,
    Run,
    RunTotals,
    RunVolume,
)
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.sqlite import Json, Session, escape, names_in
from btrkeep.catalogue.tables import backup, progress, run

_NEWEST_FINISH = 'SELECT finished AS "finished [moment]" FROM run WHERE finished IS NOT NULL ORDER BY id DESC LIMIT 1'


class RunStore(CatalogueSession):
    """Each method that changes rows does so in one transaction."""

    def __init__(self, state: Path, reader: Session, writer: Session | None) -> None:
        super().__init__(state, reader, writer)
        self._unseen: set[int] = set()  # runs of this process without any recorded progress

    def start_run(self, host: str, started: datetime, pid: int, pid_started: str | None, night: bool) -> int:
        """Records the start of a run; returns its id. `pid` and `pid_started` identify its process; `night`: it belongs to a whole
        night.
        """
        with self._writing("run begun in the catalogue") as session:
            if host not in self._hosts_with_row:
                hosts.ensure_host(session, host)
            run_id = run.start(session, host=host, started=started, pid=pid, pid_started=pid_started, night=night)
        self._hosts_with_row.add(host)
        self._unseen.add(run_id)
        return run_id

    def update_run(self, run_id: int, **fields: Any) -> None:
        """Changes fields of a run. Raises KeyError if no run has this id."""
        with self._writing("run row written") as session:
            run.change(session, run_id, fields)

    def finish_run(self, run_id: int, **fields: Any) -> None:
        """Ends a run: `finished` and `outcome` are required; its progress is deleted. Raises KeyError if no run has this id."""
        run.require_end(fields)
        with self._writing("run ended in the catalogue") as session:
            self._finish(session, run_id, fields)

    def finish_backup(self, backup: Backup, /, run_id: int, **fields: Any) -> None:
        """In one transaction: deletes the host's `.working`, inserts `backup`, ends the run and deletes its progress.

        The run's `finished`, `outcome` and `backup` are the backup's own unless given. Raises KeyError if no run has this id.
        """
        outcome = backup.state if backup.state in RUN_OUTCOMES else None
        ended = {"finished": backup.finished, "outcome": outcome, "backup": backup.name, **fields}
        run.require_end(ended)
        with self._writing("run and backup finished in the catalogue") as session:
            backups.put_final(session, backup)
            self._finish(session, run_id, ended)

    def _finish(self, session: Session, run_id: int, ended: dict[str, Any]) -> None:
        run.change(session, run_id, ended)
        if run_id not in self._unseen:
            session.run("DELETE FROM progress WHERE run_id = :id", {"id": run_id})

    def runs(self, host: str | None = None, limit: int = 20) -> list[Run]:
        """Returns the last runs, of one host or of all, newest first."""
        where = "" if host is None else "WHERE host = :host"
        return run.find(self._reader, f"{where} ORDER BY id DESC LIMIT :most", {"host": host, "most": limit})

    def past_runs(self, wanted: PastRuns, limit: int = 50) -> list[Run]:
        """Returns the last runs that match, newest first."""
        conditions = " AND ".join(_conditions(wanted)) or "TRUE"
        first, last = wanted.ids or (None, None)
        pid, pid_started = wanted.process or (None, None)
        values = {
            "host": next(iter(wanted.hosts or ()), None),
            "hosts": names_in(wanted.hosts or ()),
            "outcomes": names_in(wanted.outcomes),
            "since": wanted.since,
            "night": wanted.night,
            "pid": pid,
            "pid_started": pid_started,
            "first": first,
            "last": last,
            "before": wanted.before,
            "most": limit,
        }
        return run.find(self._reader, f"WHERE {conditions} ORDER BY id DESC LIMIT :most", values)

    def one_run(self, run_id: int) -> Run | None:
        """Returns the run of a host with this id, or None."""
        return run.first(self._reader, "WHERE id = :id", {"id": run_id})

    def unfinished_runs(self) -> list[Run]:
        """Returns the runs without an end, oldest first: they are running, or were killed; `pid` and `pid_started` show which."""
        return run.unfinished(self._reader)

    def newest_finish(self) -> datetime | None:
        """Returns the end of the newest run that has ended, by the clock of that time, or None.

        The newest one by id: after a night with a wrong clock an older run may have a later end.
        """
        newest: datetime | None = self._reader.value(_NEWEST_FINISH)
        return newest

    def put_progress(self, progress_now: Progress) -> None:
        """Records the progress of a host's transfer."""
        row = progress.values(progress_now)
        with self._writing("progress row written") as session:
            if session.run(progress.update(progress.kinds, "host = :host"), row).rowcount == 0:
                hosts.ensure_host(session, progress_now.host)
                session.run(progress.insert(), row)
        self._unseen.discard(progress_now.run_id)

    def drop_progress(self, host: str) -> None:
        """Deletes the progress of a host whose transfer has ended."""
        with self._writing("progress row dropped") as session:
            session.run("DELETE FROM progress WHERE host = :host", {"host": host})

    def progress(self) -> list[Progress]:
        """Returns the running transfers by host."""
        return progress.find(self._reader, "ORDER BY host")


def _conditions(wanted: PastRuns) -> Iterator[str]:
    if wanted.hosts is not None and len(wanted.hosts) == 1:
        yield "host = :host"  # reads backwards from the newest, not all rows
    elif wanted.hosts is not None:
        yield "host IN (SELECT value FROM json_each(:hosts))"
    if wanted.outcomes:
        yield "coalesce(outcome, '') IN (SELECT value FROM json_each(:outcomes))"
    if wanted.since is not None:
        yield "started >= :since"
    if wanted.night is not None:
        yield "night = :night"
    if wanted.process is not None:
        yield "pid = :pid AND pid_started IS NOT DISTINCT FROM :pid_started"
    if wanted.ids is not None:
        yield "id BETWEEN :first AND :last"
    if wanted.before is not None:
        yield "id < :before"


_APART = timedelta(hours=12)
"""Two runs with the same pid that are further apart belong to two nights: pids are used again, and after a boot also start times.
"""
_NIGHTS = f"""
    SELECT min(id), max(id), min(started) AS "started [moment]", max(finished) AS "finished [moment]",
        {run.select("pid", "pid_started")}, coalesce(outcome, ''), count(*), coalesce(sum(literal_bytes), 0)
    FROM run WHERE night AND id BETWEEN :lowest AND :highest
    GROUP BY pid, pid_started, substr(started, 1, length('2026-11-20T22')), outcome ORDER BY min(id)"""
_LONGEST = 50_000  # runs of a night, with those of others between them
_NEWEST = "SELECT max(id) FROM run"
_NIGHT_BEFORE = "SELECT max(id) FROM run WHERE night AND id < :id"


class NightQueries(CatalogueSession):
    """Reads nights."""

    def nights(self, among: int = 100_000) -> list[Night]:
        """Returns the nights among that many of the last runs of hosts, newest first; without a night that may have started before
        these.
        """
        newest = self._reader.value(_NEWEST) or 0
        all_nights = self._nights(newest - among + 1, newest)
        return all_nights if newest <= among else all_nights[:-1]

    def night(self, first_run: int) -> Night | None:
        """Returns the night that started with this run, or None. Later nights are not read."""
        before = self._reader.value(_NIGHT_BEFORE, {"id": first_run})
        nights = self._nights(first_run if before is None else before, first_run + _LONGEST)
        return next((night for night in nights if night.first_run == first_run), None)

    def _nights(self, lowest: int, highest: int) -> list[Night]:
        """Combines pieces: runs of one process that started within one hour and have the same outcome."""
        parts: dict[tuple[int, str | None], list[list[Night]]] = {}
        for *row, outcome, runs, new in self._reader.all(_NIGHTS, {"lowest": lowest, "highest": highest}):
            piece = Night(*(*row, {outcome: runs}, new))
            host_nights = parts.setdefault((piece.pid, piece.pid_started), [])
            if host_nights and piece.started - (host_nights[-1][-1].finished or host_nights[-1][-1].started) <= _APART:
                host_nights[-1].append(piece)
            else:
                host_nights.append([piece])
        made = (_joined(pieces) for night_lists in parts.values() for pieces in night_lists)
        return sorted(made, key=lambda night: night.first_run, reverse=True)


def _joined(pieces: list[Night]) -> Night:
    outcomes: Counter[str] = Counter()
    for piece in pieces:
        outcomes.update(piece.outcomes)
    ends = [piece.finished for piece in pieces if piece.finished]
    return Night(
        min(piece.first_run for piece in pieces),
        max(piece.last_run for piece in pieces),
        min(piece.started for piece in pieces),
        max(ends) if ends and "" not in outcomes else None,
        pieces[0].pid,
        pieces[0].pid_started,
        dict(outcomes),
        sum(piece.literal_bytes for piece in pieces),
    )


# Ids increase with time: starting at the first possible id skips all older rows, for one host and for all.
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
_VOLUMES = f"""
    SELECT {run.select("host", "started", "finished")}, run.literal_bytes + coalesce(run.matched_bytes, 0)
    FROM json_each(:hosts) AS named JOIN run ON run.id IN (
        SELECT id FROM run WHERE host = named.value AND outcome = 'complete' AND attempts = 1 ORDER BY id DESC LIMIT :most)
    WHERE run.literal_bytes IS NOT NULL"""
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
_COUNT_STATES = "SELECT state, count(*) FROM backup GROUP BY state"


class RunSummaries(CatalogueSession):
    """Reads summaries. Filesystems are named by their UUID."""

    def runs_since(self, since: datetime, hosts: Collection[str] | None = None) -> list[HostRuns]:
        """Returns the runs that started at `since` or later, of all hosts or of these, in the order of their start."""
        first = self._reader.value(_FIRST, {"since": since})
        if first is None:
            return []
        query = _TRIED if hosts is None else f"{_TRIED} AND {_AMONG}"
        values = {"since": since, "first": first, "hosts": names_in(hosts or ())}
        return [HostRuns._make(row) for row in self._reader.all(f"{query} ORDER BY id", values)]

    def run_volumes(self, hosts: Collection[str], most: int = 5) -> list[RunVolume]:
        """Returns the last complete runs of one attempt of each of these hosts, at most `most` of each, in no order."""
        rows = self._reader.all(_VOLUMES, {"hosts": names_in(hosts), "most": most})
        return [RunVolume(host, (end - begin).total_seconds(), size) for host, begin, end, size in rows]

    def backup_counts(self) -> dict[str, int]:
        """Returns the number of final backups by host; a host without any is absent."""
        return dict(self._reader.all(_COUNTS))

    def first_seen(self, hosts: Collection[str]) -> dict[str, datetime]:
        """Returns the start of the first run or the oldest backup of each of these hosts; a host without any is missing."""
        first_moments = self._reader.all(_FIRST_SEEN, {"hosts": names_in(hosts)})
        rows = [(name, [moment for moment in moments if moment]) for name, *moments in first_moments]
        return {name: min(moments) for name, moments in rows if moments}

    def backup_outcomes(self, hosts: Collection[str]) -> list[BackupOutcome]:
        """Returns the present state of the final backups of these hosts, ordered by host and start."""
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
        return dict(self._reader.all(_COUNT_STATES))
