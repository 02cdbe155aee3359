"""Rows of backups. Functions take a session; whoever calls them has begun the transaction."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from btrkeep.catalogue import hosts
from btrkeep.catalogue.columns import document_in
from btrkeep.catalogue.model import Backup
from btrkeep.catalogue.sqlite import Session, Values
from btrkeep.catalogue.tables import backup

_DROP = "DELETE FROM backup WHERE host = :host AND name = coalesce(:name, '')"
_DROP_WITH_WORKING = "DELETE FROM backup WHERE host = :host AND name IN (:name, '')"
_DROP_ALL = ("DELETE FROM backup_detail", "DELETE FROM backup")
_INSERT = backup.insert()
_INSERT_DETAIL = "INSERT INTO backup_detail (host, name, detail) VALUES (:host, coalesce(:name, ''), :detail)"
_SELECT = f"SELECT {backup.select()} FROM backup"
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


def put(session: Session, one: Backup, *, known: bool = False) -> None:
    """Insert the row, or replace the one of the same host and name. `known`: the host has its row already."""
    if not known:
        hosts.know(session, one.host)
    drop(session, one.host, one.name)
    _insert(session, [one])


def finish(session: Session, one: Backup) -> None:
    """`put`, and the host's `.working` goes. The host is known, since a run of it has begun."""
    session.run(_DROP_WITH_WORKING, {"host": one.host, "name": one.name})
    _insert(session, [one])


def _insert(session: Session, many: Sequence[Backup]) -> None:
    session.run_many(_INSERT, [backup.values(one) for one in many])
    session.run_many(_INSERT_DETAIL, [_detail(one) for one in many if one.detail])


def _detail(one: Backup) -> Values:
    return {"host": one.host, "name": one.name, "detail": document_in(one.detail)}


def drop(session: Session, of_host: str, name: str | None) -> None:
    """Delete the row, if it is there; its detail goes by the foreign key."""
    session.run(_DROP, {"host": of_host, "name": name})


def drop_all(session: Session) -> None:
    """Delete every backup's row; hosts and runs stay."""
    for statement in _DROP_ALL:
        session.run(statement)


def put_many(session: Session, many: Sequence[Backup]) -> None:
    """Insert rows that are not there yet: at least one, some thousands at the most."""
    hosts.know_all(session, {one.host for one in many})
    _insert(session, many)


def stream(session: Session, of_host: str | None, with_detail: bool) -> Iterator[Backup]:
    """Backups by host and start, read as they are asked for."""
    query = f"{_DETAILED if with_detail else _SELECT}{_OF_HOST if of_host is not None else ''}{_ORDER}"
    return (Backup(*row) for row in session.stream(query, {"host": of_host}))


def names(session: Session) -> Iterator[tuple[str, str | None]]:
    """Host and name of every backup."""
    for host_name, found in session.stream(_NAMES):
        for name in found.split("\n"):
            yield host_name, name or None


def newest(session: Session, latest: datetime) -> list[Backup]:
    """The newest backup of each host, whatever its state, by host: one stamped after `latest` when it has no other."""
    return [Backup(*row) for row in session.all(_NEWEST, {"latest": latest}) if row[0] is not None]
