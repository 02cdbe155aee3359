"""Rows of backups with the recorded details; their states, all at the same time and changed by the thousand.

`rebuild` first collects backups in an unnamed temporary file: it reads every backup.json of the pool, which takes minutes. Nothing
may wait that long for the catalogue, and 96,000 backups with their details are hundreds of megabytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import datetime
from itertools import islice
from operator import attrgetter
from pathlib import Path, PurePosixPath

from btrkeep.catalogue import hosts
from btrkeep.catalogue.facts import POOL_ID, AboutStore
from btrkeep.catalogue.model_backup import Backup, BackupState, StateFromNotes
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.sqlite import Session, Values, document_in
from btrkeep.catalogue.tables import NOTED, backup
from btrkeep.checkpoints import Checkpoint
from btrkeep.errors import OperatorError

_HERE = "host = :host AND name = coalesce(:name, '')"
_DROP = f"DELETE FROM backup WHERE {_HERE}"
_DROP_NOTED = tuple(f"DELETE FROM {table} WHERE {_HERE}" for table in NOTED)
# After a rebuild: rows of deleted backups.
_DROP_STRAY = tuple(
    f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM backup WHERE backup.host = {table}.host AND backup.name = {table}.name)"
    for table in NOTED
)
_DROP_WITH_WORKING = "DELETE FROM backup WHERE host = :host AND name IN (:name, '')"
_DROP_ALL = ("DELETE FROM backup_detail", "DELETE FROM backup")
_INSERT_DETAIL = "INSERT INTO backup_detail (host, name, detail) VALUES (:host, coalesce(:name, ''), :detail)"
_SELECT = backup.query("")
_DETAILED = f"""
    SELECT {backup.select()}, coalesce(backup_detail.detail, '{{}}') AS "detail [document]"
    FROM backup LEFT JOIN backup_detail ON backup_detail.host = backup.host AND backup_detail.name = backup.name"""
_OF_HOST, _ORDER = " WHERE backup.host = :host", " ORDER BY backup.host, backup.started, backup.name"
# An outer join, although only hosts with a backup are needed: with an inner join SQLite would start with all backups.
_NEWEST = f"""
    SELECT {backup.select()} FROM host LEFT JOIN backup
    ON backup.host = host.name AND backup.name = coalesce(({hosts.NEWEST}), ({hosts.NEWEST_OF_ANY_STAMP})) ORDER BY host.name"""
# One row for each host, with its names in lines (they contain no line end): 95,000 rows would take three times as long.
_NAMES = """SELECT host, group_concat(name, char(10)) FROM backup GROUP BY host"""


class BackupStore(AboutStore):
    """Each method that changes rows does so in one transaction."""

    def put_backup(self, backup: Backup) -> None:
        """Inserts the backup, or replaces the one with the same host and name; without a name, the host's `.working`."""
        with self._writing("backup row written") as session:
            if backup.host not in self._hosts_with_row:
                hosts.ensure_host(session, backup.host)
            session.run(_DROP, {"host": backup.host, "name": backup.name})
            _insert(session, [backup])
        self._hosts_with_row.add(backup.host)

    def drop_backup(self, host: str, name: str | None) -> None:
        """Deletes the row of a backup, if it is known; without a name, the row of the host's `.working`. The foreign key deletes
        its details.
        """
        with self._writing("backup row dropped") as session:
            for statement in (*_DROP_NOTED, _DROP):
                session.run(statement, {"host": host, "name": name})

    def replace_backups(self, pool_id: str, new_backups: Iterable[Backup]) -> int:
        """Replaces all rows of backups in one transaction and returns their number. The history of runs stays.

        `new_backups` is read completely before anything is locked or changed. Two backups with the same host and name are an error;
        nothing is changed then.
        """
        count = 0
        with _spooled(new_backups, self._state) as lists, self._writing("all backup rows replaced") as session:
            self._put_fact(session, POOL_ID, pool_id)
            for statement in _DROP_ALL:
                session.run(statement)
            for backups in lists:
                hosts.ensure_hosts(session, {row.host for row in backups})
                _insert(session, backups)
                count += len(backups)
            for statement in _DROP_STRAY:
                session.run(statement)
        return count

    def backups(self, host: str | None = None, with_detail: bool = False) -> Iterator[Backup]:
        """Yields the backups of one host or of all, by host and start, as they were when the first one was read."""
        query = f"{_DETAILED if with_detail else _SELECT}{_OF_HOST if host is not None else ''}{_ORDER}"
        return (Backup(*row) for row in self._reader.stream(query, {"host": host}))

    def names(self) -> Iterator[tuple[str, str | None]]:
        """Yields host and name of every backup; None for a `.working`."""
        for host, joined_names in self._reader.stream(_NAMES):
            for name in joined_names.split("\n"):
                yield host, name or None

    def newest_backups(self, latest: datetime) -> list[Backup]:
        """Returns the newest backup of each host, in any state, by host; a backup after `latest` only if the host has no other."""
        return [Backup(*row) for row in self._reader.all(_NEWEST, {"latest": latest}) if row[0] is not None]


def put_final(session: Session, row: Backup) -> None:
    """Inserts or replaces a backup and deletes the row of the host's `.working`. The host's row exists, because it has a run."""
    session.run(_DROP_WITH_WORKING, {"host": row.host, "name": row.name})
    _insert(session, [row])


def _insert(session: Session, many: Sequence[Backup]) -> None:
    backup.add(session, many)
    details = [{"host": row.host, "name": row.name, "detail": document_in(row.detail)} for row in many if row.detail]
    session.run_many(_INSERT_DETAIL, details)


# uuid is passed on unchanged: it needs no conversion.
_STATES = f"""
    SELECT {backup.select("host", "name", "started", "state", "outcome", "held_until", "held_why", "expired", "subvolume_id")},
        uuid, CASE WHEN name = '' THEN base END, sealed
    FROM backup ORDER BY host, started, name"""
# A hold, a mark, a suspect or altered outcome: rows that depend on the host's notes, now or before.
_NOTED = f"""
    SELECT {backup.select(*StateFromNotes._fields)} FROM backup
    WHERE held_why IS NOT NULL OR expired IS NOT NULL OR outcome IN ('suspect', 'altered')
        OR state IN ('expired', 'deleting') OR state <> outcome"""
_ALTERED = "SELECT host, name FROM backup WHERE outcome = 'altered' AND state NOT IN ('expired', 'deleting') ORDER BY host, name"
_SET = f"UPDATE backup SET state = :state, expired = :expired WHERE {_HERE}"
_SEAL = f"UPDATE backup SET sealed = :sealed WHERE {_HERE}"
_MARK_DELETING = f"UPDATE backup SET state = 'deleting' WHERE {_HERE}"
_DROP_HOST = "DELETE FROM backup WHERE host = :host"
_DROP_NOTED_OF_HOST = tuple(f"DELETE FROM {table} WHERE host = :host" for table in NOTED)
_MOVES = tuple(f"UPDATE {table} SET host = :new WHERE host = :host" for table in ("backup_detail", "run", "progress", *NOTED))
_MOVE_RUNS = "UPDATE run SET host = :new WHERE host = :host"
_HAS_ROWS = "SELECT 1 FROM run WHERE host = :new UNION ALL SELECT 1 FROM backup WHERE host = :new LIMIT 1"


class BackupStateStore(CatalogueSession):
    """Changes the state of backups. Each method does so in one transaction: all changes or none."""

    def states(self) -> Iterator[BackupState]:
        """Returns every backup by host and start, with only the fields for the retention: 95,000 in a third of a second."""
        make = tuple.__new__  # half the time of BackupState(*row)
        return (make(BackupState, row) for row in self._reader.stream(_STATES))

    def states_from_notes(self) -> list[StateFromNotes]:
        """Returns the backups whose rows show that they are held, marked, being deleted, or were suspect."""
        return [StateFromNotes._make(row) for row in self._reader.all(_NOTED)]

    def altered_backups(self) -> list[tuple[str, str]]:
        """Returns host and name of the backups that were changed after they became final, without those that will be deleted."""
        return [(host, name) for host, name in self._reader.all(_ALTERED)]

    def set_states(self, changes: Iterable[tuple[str, str | None, str, datetime | None]]) -> int:
        """Sets (host, name, state, time of expiry) of backups, ignoring unknown ones, and returns how many were changed.

        The time is None for a backup that is kept. The outcome is unchanged.
        """
        rows = [{"host": host, "name": name, "state": state, "expired": at} for host, name, state, at in changes]
        with self._writing("states of backups written") as session:
            return session.run_many(_SET, rows)

    def set_seals(self, seals: Iterable[tuple[str, str, int]]) -> None:
        """Sets the transaction of the last change of backups: (host, name, ctransid). Unknown ones are ignored."""
        with self._writing("seals of backups written") as session:
            session.run_many(_SEAL, [{"host": host, "name": name, "sealed": sealed} for host, name, sealed in seals])

    def mark_deleting(self, which: Iterable[tuple[str, str | None]]) -> int:
        """Records that these backups, by host and name, will be deleted; returns how many of them exist."""
        with self._writing("backups marked as deleting") as session:
            return session.run_many(_MARK_DELETING, _named(which))

    def drop_backups(self, which: Iterable[tuple[str, str | None]]) -> int:
        """Deletes the rows of these backups, by host and name, with all results of verification. Returns how many were known.

        The foreign key deletes their details.
        """
        with self._writing("rows of deleted backups dropped") as session:
            rows = _named(which)
            for statement in _DROP_NOTED:
                session.run_many(statement, rows)
            return session.run_many(_DROP, rows)

    def drop_host(self, name: str) -> int:
        """Deletes the rows of all backups of a host, including its `.working`; returns their number. The history of its runs
        remains.
        """
        with self._writing("rows of the host dropped") as session:
            for statement in _DROP_NOTED_OF_HOST:
                session.run(statement, {"host": name})
            return session.run(_DROP_HOST, {"host": name}).rowcount

    def rename_host(self, old: str, new: str) -> int:
        """Renames a host in backups, runs and progress, including the paths of the backups. Returns the number of backups.

        A backup's row is copied to the new name before its details move and the old row is deleted, because each detail refers to
        its backup by host and name at all times. The old host's row remains, because running programs may need it.

        Raises OperatorError if `new` already has backups or runs; then nothing is changed.
        """
        names = {"host": old, "new": new}
        with self._writing("rows of the host renamed") as session:
            if session.first(_HAS_ROWS, names):
                raise OperatorError(f"the catalogue has backups or runs of {new} already", "choose a name that no host ever had")
            hosts.ensure_host(session, new)
            moved = [_moved(row, new) for row in backup.find(session, "WHERE host = :host", names)]
            backup.add(session, moved)
            for statement in (*_MOVES, _DROP_HOST):
                session.run(statement, names)
        return len(moved)

    def move_runs(self, old: str, new: str) -> int:
        """Moves the history of a host's runs to another one, which may have runs. Returns the number of runs."""
        with self._writing("runs of the host moved") as session:
            hosts.ensure_host(session, new)
            return session.run(_MOVE_RUNS, {"host": old, "new": new}).rowcount


def _named(which: Iterable[tuple[str, str | None]]) -> list[Values]:
    return [{"host": host, "name": name} for host, name in which]


def _moved(row: Backup, new: str) -> Backup:
    """Returns the row with the new host name, also in its path."""
    path = PurePosixPath(row.path)
    if path.parent.name == row.host:
        path = path.parent.with_name(new) / path.name
    return replace(row, host=new, path=str(path))


_AT_A_TIME = 500
_VALUES = attrgetter(*(field.name for field in fields(Backup)))  # tuples pickle in half the time


@contextmanager
def _spooled(backups: Iterable[Backup], folder: Path) -> Iterator[Iterator[list[Backup]]]:
    """Reads all of `backups`; then yields them in lists, in the same order."""
    import pickle  # only `rebuild` needs it and tempfile
    import tempfile

    with tempfile.TemporaryFile(dir=folder) as file:
        source = iter(backups)
        with Checkpoint("backups listed"):
            while batch := list(islice(source, _AT_A_TIME)):
                pickle.dump([_VALUES(row) for row in batch], file, pickle.HIGHEST_PROTOCOL)
        end = file.tell()
        file.seek(0)

        def lists() -> Iterator[list[Backup]]:
            while file.tell() < end:
                yield [Backup(*values) for values in pickle.load(file)]  # noqa: S301  written above, to a file without a name

        yield lists()
