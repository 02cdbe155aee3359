"""Nights: where one ends and the next begins, and how each went for each host. Pure.

A night begins when a host's window opens, and lasts until it opens again: what an administrator runs by hand the next afternoon
still belongs to it. Without a window it begins at noon of the pool's zone, so that a job of the evening is not cut at midnight.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from backupd.due import DAY, period_after, period_start
from btrkeep.catalogue import Fate, Tried
from btrkeep.config import HostConfig, Window

COUNT = 30
NOON = Window(time(12), time(12))
OUTCOMES = ("complete", "running", "suspect", "failed", "partial", "skipped", "none")
"""How a night went, the best first: the best of its runs stands for it."""
KEPT, EXPIRED, GONE = "kept", "expired", "gone"
_RANK = {outcome: place for place, outcome in enumerate(OUTCOMES)}
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Night:
    """How one night went for one host. `day`: the local date of its evening, 2026-11-20.

    `outcome` is one of OUTCOMES. `backup` is the name of what came of it, and `now` what became of that since: kept, expired
    (restorable until its grace ends), gone (deleted); both None where no backup came.
    """

    day: str
    outcome: str
    backup: str | None = None
    now: str | None = None


def boundaries(window: Window | None, zone: ZoneInfo, now: datetime, count: int = COUNT) -> list[datetime]:
    """When the last `count` nights began, the one of `now` included, oldest first. Days on which the clock changes too."""
    shown = window or NOON
    found = [_begin(shown, zone, now)]
    while len(found) < count:
        found.append(_begin(shown, zone, found[-1] - _INSTANT))
    return found[::-1]


def _begin(window: Window, zone: ZoneInfo, moment: datetime) -> datetime:
    begin = period_start(DAY, window, zone, moment)
    assert begin is not None  # a day is a whole number of days
    return begin


def end_of(begin: datetime, window: Window | None, zone: ZoneInfo) -> datetime:
    """When the night that began then gives way to the next."""
    return period_after(begin, DAY, window or NOON, zone)


def usual_window(hosts: Iterable[HostConfig]) -> Window | None:
    """The window that most enabled hosts have, of equally many the earliest in the evening: what "the night" means for the pool."""
    found = Counter(host.window for host in hosts if host.enabled)
    if not found:
        return None
    most = max(found.values())
    common = [window for window, count in found.items() if count == most]
    return max((window for window in common if window), key=lambda window: window.start, default=None)


def outcome_of(run: Tried, *, alive: bool) -> str:
    """What became of a run; one that has no end and no process any more was killed, and its `.working` is continued: partial."""
    return run.outcome or ("running" if alive else "partial")


def best(outcomes: Iterable[str]) -> str:
    """The one that stands for all of a night; none without any."""
    return min(outcomes, key=_RANK.__getitem__, default="none")


def strip(
    begins: Sequence[datetime], zone: ZoneInfo, runs: Iterable[Tried], backups: Mapping[str, Fate], alive: frozenset[int]
) -> tuple[Night, ...]:
    """A host's nights that began then, oldest first. `runs` and `backups` (by name) are its own, `alive` are ids of runs."""
    by_night: dict[int, list[Tried]] = {}
    for run in runs:
        place = bisect_right(begins, run.started) - 1
        if place >= 0:
            by_night.setdefault(place, []).append(run)
    return tuple(_night(begin, zone, by_night.get(place, ()), backups, alive) for place, begin in enumerate(begins))


def _night(begin: datetime, zone: ZoneInfo, runs: Sequence[Tried], backups: Mapping[str, Fate], alive: frozenset[int]) -> Night:
    day = begin.astimezone(zone).date().isoformat()
    if not runs:
        return Night(day, "none")
    found = [(_as_it_is_now(run, backups, alive), run) for run in runs]
    outcome, run = min(found, key=lambda pair: _RANK[pair[0]])
    return Night(day, outcome, run.backup, _fate(backups.get(run.backup)) if run.backup else None)


def _as_it_is_now(run: Tried, backups: Mapping[str, Fate], alive: frozenset[int]) -> str:
    """A suspect backup that was accepted is complete since, whatever its run ended with."""
    made = backups.get(run.backup) if run.backup else None
    if made and made.outcome in _RANK and run.outcome == "suspect":
        return str(made.outcome)
    return outcome_of(run, alive=run.id in alive)


def _fate(backup: Fate | None) -> str:
    if backup is None:
        return GONE
    return EXPIRED if backup.state in ("expired", "deleting") else KEPT


def words(nights: Sequence[Night]) -> str:
    """The strip for who cannot see it: how many went how, and which did not go well."""
    counts = Counter(night.outcome for night in nights)
    parts = []
    for outcome in OUTCOMES:
        if not counts[outcome]:
            continue
        days = [night.day for night in nights if night.outcome == outcome]
        named = outcome not in ("complete", "none") and len(days) <= 5
        parts.append(
            f"{counts[outcome]} {'without a run' if outcome == 'none' else outcome}" + (f" ({', '.join(days)})" if named else "")
        )
    return f"the last {len(nights)} nights: {', '.join(parts)}"
