"""The hosts in the catalogue, and the facts that `status` and `due` need about all of them at the same time."""

from datetime import datetime

from btrkeep.catalogue.model_backup import HostFacts
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.sqlite import Session
from btrkeep.catalogue.tables import backup, run

_HAS_HOST = "SELECT 1 FROM host WHERE name = :host"
_INSERT_HOST = "INSERT INTO host (name) VALUES (:host)"
_HAS_ROWS = "(EXISTS (SELECT 1 FROM backup WHERE backup.host = host.name) OR EXISTS (SELECT 1 FROM run WHERE run.host = host.name))"
_HOSTS = f"SELECT name FROM host WHERE {_HAS_ROWS} ORDER BY host.name"

# One index seek for each host, then back over the rows that do not fit. Rows with a time after :latest are ignored: a clock was
# wrong.
_BACKUPS_OF_HOST = "SELECT one.name FROM backup AS one WHERE one.host = host.name"
_NEWEST_FIRST = (
    "ORDER BY one.started DESC, one.name = '' DESC, one.name DESC LIMIT 1"  # at equal times .working first: it has no name
)
NEWEST = f"{_BACKUPS_OF_HOST} AND one.started <= :latest {_NEWEST_FIRST}"
"""The name of the newest backup of `host`'s row, in any state."""
NEWEST_OF_ANY_STAMP = f"{_BACKUPS_OF_HOST} {_NEWEST_FIRST}"
_NEWEST_COMPLETE = f"{_BACKUPS_OF_HOST} AND one.started <= :latest AND one.state = 'complete' {_NEWEST_FIRST}"
_NEWEST_ENDED_RUN = "SELECT id FROM run AS one WHERE one.host = host.name AND one.outcome IS NOT NULL ORDER BY one.id DESC LIMIT 1"
_AHEAD = f"SELECT one.started FROM backup AS one WHERE one.host = host.name AND one.started > :latest {_NEWEST_FIRST}"
# Few backups have any, so most details are not parsed. Invalid JSON must not fail the query.
_LASTING = """CASE WHEN instr(detail.detail, '"lasting"') AND json_valid(detail.detail)
        THEN coalesce(json_extract(detail.detail, '$.lasting'), '[]') ELSE '[]' END AS "lasting [conditions]\""""
# The columns in the order of HostFacts' fields, after the name.
_FACTS = f"""
    SELECT host.name, {backup.select("started", "finished", "files", "bytes", "new_bytes", of="good")},
        {backup.select("state", "error", "warnings", of="newest")}, {run.select("id", "started", "outcome", "error")},
        ({_AHEAD}) AS "ahead [moment]", {backup.select("cause", of="newest")}, {run.select("cause")}, {_LASTING},
        {backup.select("live_paths", of="good")}
    FROM host
    LEFT JOIN backup AS good ON good.host = host.name AND good.name = ({_NEWEST_COMPLETE})
    LEFT JOIN backup_detail AS detail ON detail.host = good.host AND detail.name = good.name
    LEFT JOIN backup AS newest ON newest.host = host.name AND newest.name = ({NEWEST})
    LEFT JOIN run ON run.id = ({_NEWEST_ENDED_RUN})
    WHERE {_HAS_ROWS.replace("run.", "any_run.").replace("FROM run", "FROM run AS any_run")}
    ORDER BY host.name"""  # in the order of the indexes: otherwise their pages are read repeatedly


def ensure_host(session: Session, name: str) -> None:
    """Makes the row of `host` if it is missing; the rows of backups and runs refer to it."""
    if session.first(_HAS_HOST, {"host": name}) is None:
        session.run(_INSERT_HOST, {"host": name})


def ensure_hosts(session: Session, names: set[str]) -> None:
    """Does the same for many hosts."""
    for name in sorted(names):
        ensure_host(session, name)


class HostStore(CatalogueSession):
    """Reads hosts. A host's row is created by its first backup or run."""

    def hosts(self) -> list[str]:
        """Returns every host that has a backup or a run, in order."""
        return [name for (name,) in self._reader.all(_HOSTS)]

    def host_facts(self, latest: datetime) -> dict[str, HostFacts]:
        """Returns the facts about each host that `status` and `due` need. A host without a backup or a run is missing.

        Times after `latest` are in the future, because a clock was wrong.
        """
        by_host = {row[0]: HostFacts(*row[1:]) for row in self._reader.all(_FACTS, {"latest": latest})}
        self._hosts_with_row.update(by_host)
        return by_host
