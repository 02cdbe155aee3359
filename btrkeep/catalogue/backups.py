"""Rows of backups, with the details recorded for each."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from btrkeep.catalogue import hosts
from btrkeep.catalogue.columns import document_in
from btrkeep.catalogue.facts import POOL_ID, AboutStore
from btrkeep.catalogue.model import Backup
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import NOTED, backup

_DROP = "DELETE FROM backup WHERE host = :host AND name = coalesce(:name, '')"
_DROP_NOTED = tuple(f"DELETE FROM {table} WHERE host = :host AND name = coalesce(:name, '')" for table in NOTED)
# After a rebuild: of backups that are not there any more.
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
# An outer join although only hosts with a backup are wanted: an inner one lets SQLite begin with all backups instead of the hosts.
_NEWEST = f"""
    SELECT {backup.select()} FROM host LEFT JOIN backup
    ON backup.host = host.name AND backup.name = coalesce(({hosts.NEWEST}), ({hosts.NEWEST_OF_ANY_STAMP})) ORDER BY host.name"""
# One row for each host, its names in lines: a backup's name has no line end, and 95,000 rows take three times as long.
_NAMES = """SELECT host, group_concat(name, char(10)) FROM backup GROUP BY host"""


class BackupStore(AboutStore):
    """Each method that changes rows does so in one transaction."""

    def put_backup(self, backup: Backup) -> None:
        """Insert the backup, or replace the one of the same host and name; with no name, the host's `.working`."""
        with self._writing("backup row written") as session:
            if backup.host not in self._known:
                hosts.know(session, backup.host)
            session.run(_DROP, {"host": backup.host, "name": backup.name})
            _insert(session, [backup])
        self._known.add(backup.host)

    def drop_backup(self, host: str, name: str | None) -> None:
        """Deletes the row of a backup, if it is known; without a name, the row of the host's `.working`. The foreign key deletes
        its details.
        """
        with self._writing("backup row dropped") as session:
            for statement in (*_DROP_NOTED, _DROP):
                session.run(statement, {"host": host, "name": name})

    def replace_backups(self, pool_id: str, found: Iterable[Backup]) -> int:
        """Replaces all rows of backups in one transaction and returns their number. The history of runs stays.

        `found` is read completely before anything is locked or changed. Two backups with the same host and name are an error;
        nothing is changed then.
        """
        from btrkeep.catalogue.spool import spooled  # only `rebuild` needs it, and it brings tempfile and pickle

        count = 0
        with spooled(found, self._state) as lists, self._writing("all backup rows replaced") as session:
            self._put_fact(session, POOL_ID, pool_id)
            for statement in _DROP_ALL:
                session.run(statement)
            for some in lists:
                hosts.know_all(session, {one.host for one in some})
                _insert(session, some)
                count += len(some)
            for statement in _DROP_STRAY:
                session.run(statement)
        return count

    def backups(self, host: str | None = None, with_detail: bool = False) -> Iterator[Backup]:
        """Backups of one host or of all, by host and start, read as they are asked for: as they were when the first was."""
        query = f"{_DETAILED if with_detail else _SELECT}{_OF_HOST if host is not None else ''}{_ORDER}"
        return (Backup(*row) for row in self._reader.stream(query, {"host": host}))

    def names(self) -> Iterator[tuple[str, str | None]]:
        """Host and name of every backup, without the rest; None for a `.working`."""
        for host, found in self._reader.stream(_NAMES):
            for name in found.split("\n"):
                yield host, name or None

    def newest_backups(self, latest: datetime) -> list[Backup]:
        """The newest backup of each host, whatever its state, by host: one stamped after `latest` when it has no other."""
        return [Backup(*row) for row in self._reader.all(_NEWEST, {"latest": latest}) if row[0] is not None]


def put_final(session: Session, one: Backup) -> None:
    """Inserts or replaces a backup and deletes the row of the host's `.working`. The host's row exists, because a run of it has
    begun.
    """
    session.run(_DROP_WITH_WORKING, {"host": one.host, "name": one.name})
    _insert(session, [one])


def _insert(session: Session, many: Sequence[Backup]) -> None:
    backup.add(session, many)
    details = [{"host": one.host, "name": one.name, "detail": document_in(one.detail)} for one in many if one.detail]
    session.run_many(_INSERT_DETAIL, details)
