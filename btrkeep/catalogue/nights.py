"""The nights that the runs of hosts make up: all runs of one process. A later id is a later run."""

from collections import Counter
from datetime import timedelta

from btrkeep.catalogue.model_summary import Night
from btrkeep.catalogue.session import CatalogueSession
from btrkeep.catalogue.tables import run

_APART = timedelta(hours=12)
"""Two runs of one process number that are further apart are of two nights: numbers come again, after a boot start times too."""
_NIGHTS = f"""
    SELECT min(id), max(id), min(started) AS "started [moment]", max(finished) AS "finished [moment]",
        {run.select("pid", "pid_started")}, coalesce(outcome, ''), count(*), coalesce(sum(literal_bytes), 0)
    FROM run WHERE night AND id BETWEEN :lowest AND :highest
    GROUP BY pid, pid_started, substr(started, 1, length('2026-11-20T22')), outcome ORDER BY min(id)"""
_LONGEST = 50_000  # runs of a night, with those of others between them
_NEWEST = "SELECT max(id) FROM run"
_NIGHT_BEFORE = "SELECT max(id) FROM run WHERE night AND id < :id"


class NightQueries(CatalogueSession):
    """Reads nights."""

    def nights(self, among: int = 100_000) -> list[Night]:
        """The nights among so many of the last runs of hosts, newest first; without one that may have begun before these."""
        newest = self._reader.value(_NEWEST) or 0
        found = self._nights(newest - among + 1, newest)
        return found if newest <= among else found[:-1]

    def night(self, first_run: int) -> Night | None:
        """Returns the night that began with this run, or None. Later nights are not read."""
        before = self._reader.value(_NIGHT_BEFORE, {"id": first_run})
        found = self._nights(first_run if before is None else before, first_run + _LONGEST)
        return next((one for one in found if one.first_run == first_run), None)

    def _nights(self, lowest: int, highest: int) -> list[Night]:
        """Made of pieces: runs of one process that began within one hour and ended alike."""
        parts: dict[tuple[int, str | None], list[list[Night]]] = {}
        for *row, outcome, runs, new in self._reader.all(_NIGHTS, {"lowest": lowest, "highest": highest}):
            piece = Night(*(*row, {outcome: runs}, new))
            found = parts.setdefault((piece.pid, piece.pid_started), [])
            if found and piece.started - (found[-1][-1].finished or found[-1][-1].started) <= _APART:
                found[-1].append(piece)
            else:
                found.append([piece])
        made = (_joined(pieces) for some in parts.values() for pieces in some)
        return sorted(made, key=lambda night: night.first_run, reverse=True)


def _joined(pieces: list[Night]) -> Night:
    outcomes: Counter[str] = Counter()
    for piece in pieces:
        outcomes.update(piece.outcomes)
    ends = [piece.finished for piece in pieces if piece.finished]
    return Night(
        min(piece.first_run for piece in pieces),
        max(piece.last_run for piece in pieces),
        min(piece.started for piece in pieces),
        max(ends) if ends and "" not in outcomes else None,
        pieces[0].pid,
        pieces[0].pid_started,
        dict(outcomes),
        sum(piece.literal_bytes for piece in pieces),
    )
