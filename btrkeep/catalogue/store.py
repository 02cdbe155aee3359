"""The catalogue as programs see it: what it is asked in words, answered in dataclasses.

It is a cache of the pool's backup.json files, and the history of runs. A Catalogue is used by the thread that opened it (sqlite3
refuses others); in asyncio that is the loop's thread: each call takes well under a millisecond unless another process is writing.
Every method raises OperatorError when the file is damaged, full, not writable, or held by another program for more than 30 s.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Unpack

from btrkeep.catalogue import backups, facts, hosts, progress, runs
from btrkeep.catalogue.balancing import BalancingCatalogue
from btrkeep.catalogue.expiring import ExpiringCatalogue
from btrkeep.catalogue.looking_back import PastCatalogue
from btrkeep.catalogue.model import RUN_OUTCOMES, Backup, HostFacts, Progress, Run, RunFields
from btrkeep.catalogue.remembering import RememberingCatalogue
from btrkeep.catalogue.sampling import SamplingCatalogue
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.telling import TellingCatalogue

_POOL_ID = "pool_id"


class Catalogue(ExpiringCatalogue, BalancingCatalogue, SamplingCatalogue, TellingCatalogue, PastCatalogue, RememberingCatalogue):
    """One open catalogue."""

    def __init__(self, state: Path, reader: Session, writer: Session | None) -> None:
        super().__init__(state, reader, writer)
        self._known: set[str] = set()  # hosts that have their row, which is never deleted
        self._unseen: set[int] = set()  # runs that began here and of which no progress was told yet

    def pool_id(self) -> str | None:
        """The id of the pool whose backups these are; None in a new catalogue."""
        return self.get_fact(_POOL_ID)

    def set_pool_id(self, pool_id: str) -> None:
        """Say whose backups these are."""
        self.set_fact(_POOL_ID, pool_id)

    def put_backup(self, backup: Backup) -> None:
        """Insert the backup, or replace the one of the same host and name; with no name, the host's `.working`."""
        with self._writing() as session:
            backups.put(session, backup, known=backup.host in self._known)
        self._known.add(backup.host)

    def drop_backup(self, host: str, name: str | None) -> None:
        """Forget the backup, if it is known; with no name, the host's `.working`."""
        with self._writing() as session:
            backups.drop(session, host, name)

    def finish_backup(self, backup: Backup, /, run_id: int, **fields: Unpack[RunFields]) -> None:
        """In one transaction: the host's `.working` goes, `backup` comes, the run ends and its progress goes.

        The run's `finished`, `outcome` and `backup` are the backup's own unless given. Raises KeyError when there is no such run.
        """
        outcome = backup.state if backup.state in RUN_OUTCOMES else None
        ended: RunFields = {"finished": backup.finished, "outcome": outcome, "backup": backup.name, **fields}
        _require_end(ended)
        with self._writing() as session:
            backups.finish(session, backup)
            runs.finish(session, run_id, ended, shown=run_id not in self._unseen)

    def replace_backups(self, pool_id: str, found: Iterable[Backup]) -> int:
        """All backups anew, in one transaction; how many. The history of runs stays.

        `found` is read to its end before anything is locked or changed. Two of one host and name are an error: nothing changes.
        """
        from btrkeep.catalogue.spool import spooled  # only `rebuild` needs it, and it brings tempfile and pickle

        count = 0
        with spooled(found, self._state) as lists, self._writing() as session:
            facts.put(session, _POOL_ID, pool_id)
            backups.drop_all(session)
            for some in lists:
                backups.put_many(session, some)
                count += len(some)
        return count

    def backups(self, host: str | None = None, with_detail: bool = False) -> Iterator[Backup]:
        """Backups of one host or of all, by host and start, read as they are asked for: as they were when the first was."""
        return backups.stream(self._reader, host, with_detail)

    def names(self) -> Iterator[tuple[str, str | None]]:
        """Host and name of every backup, without the rest; None for a `.working`."""
        return backups.names(self._reader)

    def newest_backups(self, latest: datetime) -> list[Backup]:
        """The newest backup of each host, whatever its state, by host: one stamped after `latest` when it has no other."""
        return backups.newest(self._reader, latest)

    def host_facts(self, latest: datetime) -> dict[str, HostFacts]:
        """What `status` and `due` need to know of each host. A host without backup and run is not there.

        What is stamped after `latest` is in the future: a clock was wrong.
        """
        found = hosts.facts(self._reader, latest)
        self._known.update(found)
        return found

    def hosts(self) -> list[str]:
        """Every host that has a backup or a run, in order."""
        return hosts.known(self._reader)

    def start_run(self, host: str, started: datetime, pid: int, pid_started: str | None, night: bool) -> int:
        """A run begins; its id. `pid` and `pid_started` say which process does it, `night` that it is one of a whole night."""
        with self._writing() as session:
            run_id = runs.start(session, host, started, pid, pid_started, night, known=host in self._known)
        self._known.add(host)
        self._unseen.add(run_id)
        return run_id

    def update_run(self, run_id: int, **fields: Unpack[RunFields]) -> None:
        """Change fields of a run. Raises KeyError when there is none of that id."""
        with self._writing() as session:
            runs.update_fields(session, run_id, fields)

    def finish_run(self, run_id: int, **fields: Unpack[RunFields]) -> None:
        """The run ends, `finished` and `outcome` are needed; its progress goes. Raises KeyError when there is none of that id."""
        _require_end(fields)
        with self._writing() as session:
            runs.finish(session, run_id, fields, shown=run_id not in self._unseen)

    def add_runs(self, history: Iterable[Run]) -> int:
        """Past runs from elsewhere, in the order given, under new ids; how many."""
        with self._writing() as session:
            return runs.put_many(session, history)

    def runs(self, host: str | None = None, limit: int = 20) -> list[Run]:
        """The last runs, of one host or of all, newest first."""
        return runs.newest(self._reader, host, limit)

    def unfinished_runs(self) -> list[Run]:
        """Runs without an end, oldest first: running now, or killed; their `pid` and `pid_started` tell."""
        return runs.unfinished(self._reader)

    def put_progress(self, progress_now: Progress) -> None:
        """Say how far a host's transfer is."""
        with self._writing() as session:
            progress.put(session, progress_now)
        self._unseen.discard(progress_now.run_id)

    def drop_progress(self, host: str) -> None:
        """Nothing of this host is running any more."""
        with self._writing() as session:
            progress.drop(session, host)

    def progress(self) -> list[Progress]:
        """What runs now, by host."""
        return progress.every(self._reader)


def _require_end(fields: RunFields) -> None:
    if fields.get("finished") is None or fields.get("outcome") is None:
        raise TypeError("a run ends with `finished` and `outcome`")
