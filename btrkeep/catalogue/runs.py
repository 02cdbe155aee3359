"""Rows of run, the history of attempts, and of progress, the running transfers, updated about once a second each."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from btrkeep.catalogue import backups, hosts
from btrkeep.catalogue.columns import names_in
from btrkeep.catalogue.model import RUN_OUTCOMES, Backup, Progress, Run
from btrkeep.catalogue.model_summary import PastRuns
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import progress, run

_NEWEST_FINISH = 'SELECT finished AS "finished [moment]" FROM run WHERE finished IS NOT NULL ORDER BY id DESC LIMIT 1'


class RunStore(CatalogueSession):
    """Each method that changes rows does so in one transaction."""

    def __init__(self, state: Path, reader: Session, writer: Session | None) -> None:
        super().__init__(state, reader, writer)
        self._unseen: set[int] = set()  # runs that began here and of which no progress was told yet

    def start_run(self, host: str, started: datetime, pid: int, pid_started: str | None, night: bool) -> int:
        """A run begins; its id. `pid` and `pid_started` say which process does it, `night` that it is one of a whole night."""
        with self._writing("run begun in the catalogue") as session:
            if host not in self._known:
                hosts.know(session, host)
            run_id = run.start(session, host=host, started=started, pid=pid, pid_started=pid_started, night=night)
        self._known.add(host)
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
        """The last runs, of one host or of all, newest first."""
        where = "" if host is None else "WHERE host = :host"
        return run.find(self._reader, f"{where} ORDER BY id DESC LIMIT :most", {"host": host, "most": limit})

    def past_runs(self, wanted: PastRuns, limit: int = 50) -> list[Run]:
        """The last runs of hosts that are wanted, newest first."""
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
        """Runs without an end, oldest first: running now, or killed; their `pid` and `pid_started` tell."""
        return run.unfinished(self._reader)

    def newest_finish(self) -> datetime | None:
        """Returns the end of the newest run that has ended, by the clock of that time, or None.

        The newest by id: after a night with a wrong clock an older run may have a later end.
        """
        found: datetime | None = self._reader.value(_NEWEST_FINISH)
        return found

    def put_progress(self, progress_now: Progress) -> None:
        """Say how far a host's transfer is."""
        row = progress.values(progress_now)
        with self._writing("progress row written") as session:
            if session.run(progress.update(progress.kinds, "host = :host"), row).rowcount == 0:
                hosts.know(session, progress_now.host)
                session.run(progress.insert(), row)
        self._unseen.discard(progress_now.run_id)

    def drop_progress(self, host: str) -> None:
        """Deletes the progress of a host: nothing of it is running any more."""
        with self._writing("progress row dropped") as session:
            session.run("DELETE FROM progress WHERE host = :host", {"host": host})

    def progress(self) -> list[Progress]:
        """Returns the running transfers by host."""
        return progress.find(self._reader, "ORDER BY host")


def _conditions(wanted: PastRuns) -> Iterator[str]:
    if wanted.hosts is not None and len(wanted.hosts) == 1:
        yield "host = :host"  # read from the newest back, not all of them
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
