"""Rows of verifications, and of comparisons with hosts."""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime

from btrkeep.catalogue.model_verification import ComparedBackup, VerifiedBackup
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.tables import comparison, verification

_DROP = "DELETE FROM verification WHERE host = :host AND name = :name"
_DROP_COMPARED = "DELETE FROM comparison WHERE host = :host AND name = :name"
_NEWEST = """SELECT host, max(looked) AS "looked [moment]"
    FROM (SELECT host, CASE WHEN read > 0 THEN at ELSE whole END AS looked FROM verification)
    WHERE looked <= :until GROUP BY host"""
# One index seek for each host. The least `finished` of all its backups would take reading every row of the table.
_OLDEST = """SELECT host.name,
        (SELECT one.finished FROM backup AS one WHERE one.host = host.name AND one.name <> '' AND one.finished IS NOT NULL
        ORDER BY one.started LIMIT 1) AS "finished [moment]"
    FROM host ORDER BY host.name"""
_HOSTS = "SELECT DISTINCT host FROM backup WHERE name <> '' AND finished < :finished AND subvolume_id <= :subvolume_id"
_NEWEST_ID = "SELECT max(subvolume_id) FROM backup WHERE name <> ''"
_OF_EACH = """WITH damaged AS (SELECT DISTINCT host, name FROM damage WHERE fate IS NULL), judged AS (
    SELECT backup.host, backup.name, CASE
        WHEN damaged.host IS NOT NULL THEN 'damaged'
        WHEN backup.finished < :begun AND backup.subvolume_id <= :newest THEN 'whole'
        WHEN verification.whole <= :until THEN 'whole'
        WHEN verification.read > 0 OR (comparison.alike > 0 AND comparison.differing = 0) THEN 'in part'
        ELSE 'never' END AS state
    FROM backup
    LEFT JOIN damaged ON damaged.host = backup.host AND damaged.name = backup.name
    LEFT JOIN verification ON verification.host = backup.host AND verification.name = backup.name AND verification.at <= :until
    LEFT JOIN comparison ON comparison.host = backup.host AND comparison.name = backup.name AND comparison.at <= :until
    WHERE backup.name <> '')"""
_STATES = f"{_OF_EACH} SELECT state, count(*) FROM judged GROUP BY state"
_STATE_OF_EACH = f"{_OF_EACH} SELECT host, name, state FROM judged"


class VerificationStore(CatalogueSession):
    """Each method that changes rows does so in one transaction."""

    def verifications(self, host: str) -> dict[str, VerifiedBackup]:
        """Returns the verified backups of a host by name."""
        return {one.name: one for one in verification.find(self._reader, "WHERE host = :host ORDER BY name", {"host": host})}

    def comparisons(self, host: str) -> dict[str, ComparedBackup]:
        """Returns the backups of a host that were compared with the host, by name."""
        return {one.name: one for one in comparison.find(self._reader, "WHERE host = :host ORDER BY name", {"host": host})}

    def newest_verifications(self, until: datetime) -> dict[str, datetime]:
        """Returns when a backup of each host was last read, partly or completely, not later than `until`. Verifications that read
        no file do not count.
        """
        return dict(self._reader.all(_NEWEST, {"until": until}))

    def oldest_backups(self) -> dict[str, datetime]:
        """Returns when the oldest final backup of each host was finished."""
        return {host: finished for host, finished in self._reader.all(_OLDEST) if finished}

    def hosts_with_backups(self, finished: datetime, subvolume_id: int) -> set[str]:
        """The hosts with a final backup that was finished before, and whose subvolume's id is not higher."""
        return {host for (host,) in self._reader.all(_HOSTS, {"finished": finished, "subvolume_id": subvolume_id})}

    def verification_states(
        self, until: datetime, begun: datetime | None, newest: int, in_doubt: Collection[tuple[str, str]]
    ) -> Counter[str]:
        """Counts final backups by verification state, as btrkeep.decisions.verification.verified has it.

        `until`: later verifications are ignored. `begun`, `newest`: of the scrub that read all of what there was; None: there was
        none. `in_doubt`: hosts and names of the backups that a crash may have damaged.
        """
        values = {"until": until, "begun": begun, "newest": newest}
        if not in_doubt:
            return Counter(dict(self._reader.all(_STATES, values)))
        every = self._reader.all(_STATE_OF_EACH, values)
        return Counter("in doubt" if state != "damaged" and (host, name) in in_doubt else state for host, name, state in every)

    def newest_subvolume(self) -> int:
        """The highest id of a final backup's subvolume; 0 without any."""
        return int(self._reader.value(_NEWEST_ID) or 0)

    def put_verifications(self, found: Iterable[VerifiedBackup]) -> None:
        """Insert them, or replace those of the same backup."""
        rows = list(found)
        with self._writing("verifications written") as session:
            session.run_many(_DROP, [{"host": one.host, "name": one.name} for one in rows])
            verification.add(session, rows)

    def put_comparisons(self, found: Iterable[ComparedBackup]) -> None:
        """Insert them, or replace those of the same backup."""
        rows = list(found)
        with self._writing("comparisons written") as session:
            session.run_many(_DROP_COMPARED, [{"host": one.host, "name": one.name} for one in rows])
            comparison.add(session, rows)
