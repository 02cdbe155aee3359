"""Rows of verifications, of comparisons with hosts, and of damages."""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime

from btrkeep.catalogue.model_verification import ComparedBackup, Damage, VerificationFacts, VerifiedBackup
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.tables import comparison, damage, verification

_DROP = "DELETE FROM verification WHERE host = :host AND name = :name"
_DROP_COMPARED = "DELETE FROM comparison WHERE host = :host AND name = :name"
_STATE = "coalesce(backup.outcome, backup.state)"
_IS_EMPTY = f"coalesce({_STATE} = 'altered' OR ({_STATE} = 'failed' AND coalesce(backup.files, 0) = 0), 0)"
_NEWEST = f"""SELECT host, max(looked) AS "looked [moment]"
    FROM (SELECT host, CASE WHEN read > 0 THEN at
            WHEN EXISTS (SELECT 1 FROM backup
                WHERE backup.host = verification.host AND backup.name = verification.name AND {_IS_EMPTY})
            THEN NULL ELSE whole END AS looked FROM verification)
    WHERE looked <= :until GROUP BY host"""
# With max(), SQLite takes the other columns from the same row.
_NEWEST_COMPARED = """SELECT host, name, max(at) AS "at [moment]", files, alike, changed, differing FROM comparison
    WHERE at <= :until GROUP BY host"""
# One index seek for each host. Searching the lowest `finished` of all its backups would read every row of the table.
_OLDEST = """SELECT host.name,
        (SELECT one.finished FROM backup AS one WHERE one.host = host.name AND one.name <> '' AND one.finished IS NOT NULL
        ORDER BY one.started LIMIT 1) AS "finished [moment]"
    FROM host ORDER BY host.name"""
_HOSTS = f"""SELECT DISTINCT host FROM backup
    WHERE name <> '' AND finished < :finished AND subvolume_id <= :subvolume_id AND NOT {_IS_EMPTY}"""
_NEWEST_ID = "SELECT max(subvolume_id) FROM backup WHERE name <> ''"
_FACTS = f"""WITH damaged AS (SELECT DISTINCT host, name FROM damage WHERE fate IS NULL)
    SELECT backup.host, backup.name, damaged.host IS NOT NULL AS is_damaged, {_IS_EMPTY} AS is_empty,
        coalesce(backup.finished < :begun AND backup.subvolume_id <= :newest, 0)
            OR coalesce(verification.whole <= :until, 0) AS is_whole,
        coalesce(verification.read > 0, 0) OR coalesce(comparison.alike > 0 AND comparison.differing = 0, 0) AS is_begun
    FROM backup
    LEFT JOIN damaged ON damaged.host = backup.host AND damaged.name = backup.name
    LEFT JOIN verification ON verification.host = backup.host AND verification.name = backup.name AND verification.at <= :until
    LEFT JOIN comparison ON comparison.host = backup.host AND comparison.name = backup.name AND comparison.at <= :until
    WHERE backup.name <> ''"""
_COUNT_FACTS = f"""SELECT is_damaged, is_empty, is_whole, is_begun, count(*) FROM ({_FACTS})
    GROUP BY is_damaged, is_empty, is_whole, is_begun"""


class VerificationStore(CatalogueSession):
    """Each method that changes rows does so in one transaction."""

    def verifications(self, host: str) -> dict[str, VerifiedBackup]:
        """Returns the verified backups of a host by name."""
        return {
            verified_backup.name: verified_backup
            for verified_backup in verification.find(self._reader, "WHERE host = :host ORDER BY name", {"host": host})
        }

    def comparisons(self, host: str) -> dict[str, ComparedBackup]:
        """Returns the backups of a host that were compared with the host, by name."""
        return {
            compared_backup.name: compared_backup
            for compared_backup in comparison.find(self._reader, "WHERE host = :host ORDER BY name", {"host": host})
        }

    def newest_verifications(self, until: datetime) -> dict[str, datetime]:
        """Returns when a backup of each host was last read, partly or completely, not later than `until`. Verifications that read
        no file do not count; nor do those of failed backups without files.
        """
        return dict(self._reader.all(_NEWEST, {"until": until}))

    def newest_comparisons(self, until: datetime) -> dict[str, ComparedBackup]:
        """Returns the newest comparison with each host, not later than `until`."""
        return {row[0]: ComparedBackup(*row) for row in self._reader.all(_NEWEST_COMPARED, {"until": until})}

    def oldest_backups(self) -> dict[str, datetime]:
        """Returns when the oldest final backup of each host was finished."""
        return {host: finished for host, finished in self._reader.all(_OLDEST) if finished}

    def hosts_with_backups(self, finished: datetime, subvolume_id: int) -> set[str]:
        """Returns the hosts with a final backup that was finished before that time, whose subvolume's id is not higher, and of
        which some data arrived.
        """
        return {host for (host,) in self._reader.all(_HOSTS, {"finished": finished, "subvolume_id": subvolume_id})}

    def count_by_verification(
        self, until: datetime, begun: datetime | None, newest: int, in_doubt: Collection[tuple[str, str]]
    ) -> Counter[VerificationFacts]:
        """Counts final backups by their verification state.

        `until`: later verifications are ignored. `begun`, `newest`: of the scrub that read everything that existed; None: there was
        none. `in_doubt`: hosts and names of the backups that a crash may have damaged.
        """
        values = {"until": until, "begun": begun, "newest": newest}
        counts = Counter[VerificationFacts]()
        if not in_doubt:
            for is_damaged, *rest, count in self._reader.all(_COUNT_FACTS, values):
                counts[VerificationFacts(bool(is_damaged), False, *map(bool, rest))] += count
            return counts
        for host, name, is_damaged, *rest in self._reader.all(_FACTS, values):
            counts[VerificationFacts(bool(is_damaged), (host, name) in in_doubt, *map(bool, rest))] += 1
        return counts

    def newest_subvolume(self) -> int:
        """Returns the highest id of a final backup's subvolume; 0 without any."""
        return int(self._reader.value(_NEWEST_ID) or 0)

    def put_verifications(self, verified: Iterable[VerifiedBackup]) -> None:
        """Inserts verifications, or replaces those of the same backup."""
        rows = list(verified)
        with self._writing("verifications written") as session:
            session.run_many(_DROP, [{"host": row.host, "name": row.name} for row in rows])
            verification.add(session, rows)

    def put_comparisons(self, compared: Iterable[ComparedBackup]) -> None:
        """Inserts comparisons, or replaces those of the same backup."""
        rows = list(compared)
        with self._writing("comparisons written") as session:
            session.run_many(_DROP_COMPARED, [{"host": row.host, "name": row.name} for row in rows])
            comparison.add(session, rows)


_DROP_DAMAGE = "DELETE FROM damage WHERE host = :host AND name = :name AND path = :path AND start = :start"
_DROP_FOUND = f"{_DROP_DAMAGE} AND found_by = :found_by"
_DAMAGES_HERE = "WHERE (:host IS NULL OR host = :host) AND (:name IS NULL OR name = :name) ORDER BY host, name, path, start"
_FORGET = (
    "DELETE FROM damage WHERE host = :host AND name = :name",
    "DELETE FROM verification WHERE host = :host AND name = :name",
    "DELETE FROM comparison WHERE host = :host AND name = :name",
)
_COUNTS = "SELECT host, name, count(DISTINCT path) FROM damage WHERE fate IS NULL GROUP BY host, name"
# Few backups have damage, so few details are parsed. Invalid JSON must not fail the query.
_UNREPAIRED = f"""SELECT * FROM ({_COUNTS}) AS bad WHERE NOT EXISTS (
    SELECT 1 FROM backup AS old
    JOIN backup AS copy ON copy.host = old.host AND copy.base = old.name AND copy.name <> '' AND copy.expired IS NULL
    JOIN backup_detail AS detail ON detail.host = copy.host AND detail.name = copy.name
    WHERE old.host = bad.host AND old.name = bad.name AND old.expired IS NOT NULL
        AND CASE WHEN json_valid(detail.detail) THEN json_extract(detail.detail, '$.repaired.of_uuid') = old.uuid END)"""
# Only hosts with recorded damage: parsing the details of all backups would take seconds.
_REPAIRS = """SELECT backup.host, max(backup.finished) AS "finished [moment]"
    FROM backup JOIN backup_detail AS detail ON detail.host = backup.host AND detail.name = backup.name
    WHERE backup.host IN (SELECT DISTINCT host FROM damage) AND backup.finished <= :until
        AND CASE WHEN json_valid(detail.detail) THEN json_extract(detail.detail, '$.repaired.of_uuid') END IS NOT NULL
    GROUP BY backup.host"""
_FILES = "SELECT count(DISTINCT path) FROM damage WHERE host = :host AND fate IS NULL"
_PATHS = "SELECT DISTINCT path FROM damage WHERE host = :host AND fate IS NULL ORDER BY path LIMIT :most"
_FIRST = "SELECT host, name, min(path) FROM damage WHERE fate IS NULL GROUP BY host, name"


class DamageStore(CatalogueSession):
    """Each method that changes rows does so in one transaction."""

    def damages(self, host: str | None = None, name: str | None = None) -> list[Damage]:
        """Returns the damages of a backup, of a host or of all hosts, ordered by host, backup, path and offset, including resolved
        ones.
        """
        return damage.find(self._reader, _DAMAGES_HERE, {"host": host, "name": name})

    def damaged_files(self) -> dict[tuple[str, str], int]:
        """Returns the number of damaged files of each backup that has any, by host and name. Resolved damages are not counted."""
        return {(host, name): files for host, name, files in self._reader.all(_COUNTS)}

    def unrepaired_files(self) -> dict[tuple[str, str], int]:
        """Returns the same as `damaged_files`, without expired backups that a repaired copy replaces: they need no action."""
        return {(host, name): files for host, name, files in self._reader.all(_UNREPAIRED)}

    def newest_repairs(self, until: datetime) -> dict[str, datetime]:
        """Returns when the newest repaired copy of each host was made, not later than `until`; only of hosts with recorded damage,
        which lasts as long as the damaged backup.
        """
        return dict(self._reader.all(_REPAIRS, {"until": until}))

    def first_damaged(self) -> dict[tuple[str, str], str]:
        """Returns the path of one damaged file of each backup that has any, by host and name. Resolved damages are not counted."""
        return {(host, name): path for host, name, path in self._reader.all(_FIRST)}

    def damaged_paths(self, host: str, most: int) -> tuple[int, list[str]]:
        """Returns how many paths are damaged in any backup of the host, and the first of them, at most `most`. Resolved damages
        are not counted.
        """
        paths = [path for (path,) in self._reader.all(_PATHS, {"host": host, "most": most})]
        return self._reader.value(_FILES, {"host": host}) if len(paths) == most else len(paths), paths

    def put_damages(self, damages: Iterable[Damage]) -> None:
        """Inserts damages, or replaces those of the same backup, path and start."""
        self.change_damages((), damages)

    def change_damages(self, gone: Iterable[Damage], damages: Iterable[Damage]) -> None:
        """Deletes damages that are gone, unless another check has found them since, and inserts new ones like `put_damages`."""
        old, new = list(gone), list(damages)
        with self._writing("damages written") as session:
            session.run_many(_DROP_FOUND, [damage.values(row) for row in old])
            session.run_many(_DROP_DAMAGE, [damage.values(row) for row in new])
            damage.add(session, new)

    def delete_verification(self, host: str, name: str) -> None:
        """Deletes the damages and verification results of a backup, because another backup has replaced it."""
        with self._writing("looks forgotten") as session:
            for statement in _FORGET:
                session.run(statement, {"host": host, "name": name})
