"""The hosts that the catalogue knows, and what `status` and `due` ask about all of them at once."""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, and_, bindparam, exists, insert, or_, select

from btrkeep.catalogue.columns import Moment
from btrkeep.catalogue.model import HostFacts
from btrkeep.catalogue.tables import backup, host, run

_KNOWN = select(host.c.name).where(host.c.name == bindparam("host"))
_HOSTS = (
    select(host.c.name)
    .where(or_(exists().where(backup.c.host == host.c.name), exists().where(run.c.host == host.c.name)))
    .order_by(host.c.name)
)


def know(connection: Connection, name: str) -> None:
    """Make sure that `host` has its row, which the rows of backups and runs refer to."""
    if connection.scalar(_KNOWN, {"host": name}) is None:
        connection.execute(insert(host), {"name": name})


def know_all(connection: Connection, names: set[str]) -> None:
    """`know` for many at once; some thousands at the most, since a statement takes so many values."""
    missing = names.difference(connection.scalars(select(host.c.name).where(host.c.name.in_(names))))
    if missing:
        connection.execute(insert(host), [{"name": name} for name in sorted(missing)])


def known(connection: Connection) -> list[str]:
    """Every host with a backup or a run, in order."""
    return [name for (name,) in connection.execute(_HOSTS)]


LATEST = bindparam("latest", type_=Moment)
"""What is stamped later counts for nothing: a clock was wrong."""


def newest_name(state: str | None = None, *, any_stamp: bool = False) -> ScalarSelect[str | None]:
    """The name of the newest backup of `host`'s row that is not stamped after LATEST: one index seek, then as many rows back as are
    not in `state`. With `any_stamp` the newest by its stamp, whatever that is.
    """
    one = backup.alias()
    found = select(one.c.name).where(one.c.host == host.c.name)
    if not any_stamp:
        found = found.where(one.c.started <= LATEST)
    if state is not None:
        found = found.where(one.c.state == state)
    return found.order_by(one.c.started.desc(), one.c.name.desc()).limit(1).scalar_subquery()


def _newest_ended_run() -> ScalarSelect[int]:
    one = run.alias()
    ended = select(one.c.id).where(one.c.host == host.c.name, one.c.outcome.is_not(None))
    return ended.order_by(one.c.id.desc()).limit(1).scalar_subquery()


def _ahead() -> ScalarSelect[datetime | None]:
    """The latest stamp of a backup of `host`'s row that lies after LATEST."""
    one = backup.alias()
    ahead = select(one.c.started).where(one.c.host == host.c.name, one.c.started > LATEST)
    return ahead.order_by(one.c.started.desc()).limit(1).scalar_subquery()


_COMPLETE, _NEWEST = backup.alias("complete"), backup.alias("newest")
_ANY_BACKUP, _ANY_RUN = backup.alias("any_backup"), run.alias("any")
_FACTS_COLUMNS: tuple[ColumnElement[Any], ...] = (  # in the order of HostFacts' fields, after the name
    host.c.name,
    _COMPLETE.c.started,
    _COMPLETE.c.finished,
    _COMPLETE.c.files,
    _COMPLETE.c.bytes,
    _COMPLETE.c.new_bytes,
    _NEWEST.c.state,
    _NEWEST.c.error,
    _NEWEST.c.warnings,
    run.c.id,
    run.c.started,
    run.c.outcome,
    run.c.error,
    _ahead().label("ahead"),
)
_FACTS = (
    select(*_FACTS_COLUMNS)
    .select_from(
        host.outerjoin(_COMPLETE, and_(_COMPLETE.c.host == host.c.name, _COMPLETE.c.name == newest_name("complete")))
        .outerjoin(_NEWEST, and_(_NEWEST.c.host == host.c.name, _NEWEST.c.name == newest_name()))
        .outerjoin(run, run.c.id == _newest_ended_run())
    )
    .where(or_(exists().where(_ANY_BACKUP.c.host == host.c.name), exists().where(_ANY_RUN.c.host == host.c.name)))
)


def facts(connection: Connection, latest: datetime) -> dict[str, HostFacts]:
    """What is known of each host, by its name; of backups that are stamped after `latest` only that there are any.

    A host that the catalogue has never met is not there.
    """
    return {row[0]: HostFacts(*row[1:]) for row in connection.execute(_FACTS, {"latest": latest})}
