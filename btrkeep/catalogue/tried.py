"""Runs of many hosts since a moment, and what became of the backups of some: asked for whole lists, never host by host."""

import json
from collections.abc import Collection
from datetime import datetime

from btrkeep.catalogue.columns import Json, escape
from btrkeep.catalogue.model_tried import BackupFate, HostRuns
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import backup, run

# A later id is a later run: with the first id that can be meant all older rows are passed over, of one host and of all.
_FIRST = "SELECT min(id) FROM run WHERE finished >= :since OR finished IS NULL"
_TRIED = f"""
    SELECT {run.select(*HostRuns._fields)} FROM run WHERE id >= :first AND started >= :since"""
_COUNTS = """SELECT host, count(*) FROM backup WHERE name <> '' GROUP BY host"""
_AMONG = "host IN (SELECT value FROM json_each(:hosts))"
_FATES = f"SELECT {backup.select(*BackupFate._fields)} FROM backup WHERE name <> '' AND {_AMONG} ORDER BY host, started, name"
_FIRST_SEEN = """
    SELECT value, (SELECT started FROM backup WHERE host = value ORDER BY started, name LIMIT 1) AS "backup [moment]",
        (SELECT started FROM run WHERE host = value ORDER BY id LIMIT 1) AS "run [moment]"
    FROM json_each(:hosts)"""


def since(session: Session, moment: datetime, hosts: Collection[str] | None) -> list[HostRuns]:
    """Runs that began at `moment` or later, of all hosts or of these, in the order of their ids."""
    first = session.value(_FIRST, {"since": moment})
    if first is None:
        return []
    query = _TRIED if hosts is None else f"{_TRIED} AND {_AMONG}"
    values = {"since": moment, "first": first, "hosts": among(hosts or ())}
    return [HostRuns._make(row) for row in session.all(f"{query} ORDER BY id", values)]


def counts(session: Session) -> dict[str, int]:
    """How many final backups each host has; a host without any is not there."""
    return dict(session.all(_COUNTS))


def fates(session: Session, hosts: Collection[str]) -> list[BackupFate]:
    """What became of the final backups of these hosts, by host and start."""
    return [BackupFate._make(row) for row in session.all(_FATES, {"hosts": among(hosts)})]


def first_seen(session: Session, hosts: Collection[str]) -> dict[str, datetime]:
    """When the first run or the oldest backup of each of these hosts began; a host without any is not there."""
    rows = [(name, [one for one in moments if one]) for name, *moments in session.all(_FIRST_SEEN, {"hosts": among(hosts)})]
    return {name: min(moments) for name, moments in rows if moments}


def among(names: Collection[str]) -> Json:
    """Names for a query that looks for them with json_each: a statement takes only so many values one by one."""
    return Json(json.dumps([escape(name) for name in names]))
