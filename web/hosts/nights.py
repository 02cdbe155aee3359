"""Nights: where one ends and the next starts, and its outcome for each host. Pure.

A night starts when a host's window opens, and lasts until it opens again: runs that an administrator starts in the next afternoon
still belong to it. Without a window it starts at noon of the pool's zone, so that a job of the evening is not split at midnight.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from btrkeep.backup_states import GOING
from btrkeep.catalogue import BackupOutcome, HostRuns
from btrkeep.config import HostConfig, Window
from btrkeep.decisions.due import DAY, period_after, period_start, window_end
from btrkeep.units import parse_backup_name

COUNT = 30
NOON = Window(time(12), time(12))
OUTCOMES = ("complete", "running", "suspect", "failed", "partial", "skipped", "none", "unknown", "before")
"""The outcomes of a night, the best first: its best run counts. none: there was no run; unknown: the catalogue was lost; before:
the host did not exist yet.
"""
KEPT, EXPIRED, GONE = "kept", "expired", "gone"
_RANK = {outcome: place for place, outcome in enumerate(OUTCOMES)}
_WORDS = {"none": "without a run", "unknown": "not known"}
INSTANT = timedelta(microseconds=1)
_HALF_A_DAY = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class HostNight:
    """One night of one host."""

    day: str
    """The local date of its evening, such as 2026-11-20."""
    outcome: str
    """One of OUTCOMES."""
    backup: str | None = None
    """The backup that it made; null: none."""
    now: str | None = None
    """The present state of that backup: kept, expired (it can be restored until its grace ends) or gone (deleted); null: none
    was made."""


def boundaries(window: Window | None, zone: ZoneInfo, now: datetime, count: int = COUNT) -> list[datetime]:
    """Returns when the last `count` nights started, including that of `now`, oldest first. Also correct on days when the clock
    changes.
    """
    shown = window or NOON
    begins = [_begin(shown, zone, now)]
    while len(begins) < count:
        begins.append(_begin(shown, zone, begins[-1] - INSTANT))
    return begins[::-1]


def _begin(window: Window, zone: ZoneInfo, moment: datetime) -> datetime:
    begin = period_start(DAY, window, zone, moment)
    assert begin is not None  # the step of one day always fits
    return begin


def end_of(begin: datetime, window: Window | None, zone: ZoneInfo) -> datetime:
    """Returns when the night that started then ends and the next one starts."""
    return period_after(begin, DAY, window or NOON, zone)


def last_chance(begin: datetime, window: Window | None, zone: ZoneInfo) -> datetime:
    """Returns the time before which a host must have existed to be backed up in the night that started then."""
    return (window and window_end(window, zone, begin)) or begin + _HALF_A_DAY


def usual_window(hosts: Iterable[HostConfig]) -> Window | None:
    """Returns the most common window of the enabled hosts, the earliest one of equally common ones: it defines "the night" of the
    pool.
    """
    counts = Counter(host.window for host in hosts if host.enabled)
    if not counts:
        return None
    most = max(counts.values())
    common = [window for window, count in counts.items() if count == most]
    return max((window for window in common if window), key=lambda window: window.start, default=None)


def outcome_of(run: HostRuns, *, alive: bool) -> str:
    """Returns the outcome of a run. A run without an end and without a process was killed, and its `.working` is continued:
    partial.
    """
    return run.outcome or ("running" if alive else "partial")


def best(outcomes: Iterable[str]) -> str:
    """Returns the outcome of a night with these runs; none without runs."""
    return min(outcomes, key=_RANK.__getitem__, default="none")


@dataclass(frozen=True, slots=True)
class KnownPeriod:
    """What the catalogue has about the past of a host."""

    since: datetime | None = None
    """When the host was first seen; None: unknown."""
    unknown: Sequence[tuple[datetime, datetime]] = ()
    """The periods whose runs are unknown."""
    window: Window | None = None
    """The host's window."""

    def without_a_run(self, begin: datetime, end: datetime, zone: ZoneInfo) -> str:
        """Returns the outcome of a night for which neither a run nor a backup is known."""
        if self.since and last_chance(begin, self.window, zone) <= self.since:
            return "before"
        return "unknown" if any(start < end and begin < until for start, until in self.unknown) else "none"


_NO_PAST = KnownPeriod()


def strip(
    begins: Sequence[datetime],
    zone: ZoneInfo,
    runs: Iterable[HostRuns],
    backups: Mapping[str, BackupOutcome],
    alive: frozenset[int],
    past: KnownPeriod = _NO_PAST,
) -> tuple[HostNight, ...]:
    """Returns the nights of a host that started then, oldest first. `runs` and `backups` (by name) are the host's, `alive` are ids
    of runs.

    A backup without a known run counts as a run.
    """
    by_night: dict[int, list[tuple[str, str | None]]] = {}
    made: set[str | None] = set()
    for run in runs:
        made.add(run.backup)
        place = bisect_right(begins, run.started) - 1
        if place >= 0:
            by_night.setdefault(place, []).append((_as_it_is_now(run, backups, alive), run.backup))
    for name, outcome in backups.items():
        started = parse_backup_name(name) if name not in made else None
        place = bisect_right(begins, started) - 1 if started else -1
        if place >= 0:
            by_night.setdefault(place, []).append((outcome.outcome if outcome.outcome in _RANK else "complete", name))
    ends = [*begins[1:], datetime.max.replace(tzinfo=begins[0].tzinfo)]
    nights = enumerate(zip(begins, ends, strict=True))
    return tuple(_night(begin, end, zone, by_night.get(place, ()), backups, past) for place, (begin, end) in nights)


def _night(
    begin: datetime,
    end: datetime,
    zone: ZoneInfo,
    pairs: Sequence[tuple[str, str | None]],
    backups: Mapping[str, BackupOutcome],
    past: KnownPeriod,
) -> HostNight:
    day = begin.astimezone(zone).date().isoformat()
    if not pairs:
        return HostNight(day, past.without_a_run(begin, end, zone))
    outcome, backup = min(pairs, key=lambda pair: _RANK[pair[0]])
    return HostNight(day, outcome, backup, _outcome_now(backups.get(backup)) if backup else None)


def _as_it_is_now(run: HostRuns, backups: Mapping[str, BackupOutcome], alive: frozenset[int]) -> str:
    """Returns the present state of a suspect run's backup (complete after it was accepted), else the outcome of the run."""
    made = backups.get(run.backup) if run.backup else None
    if made and made.outcome in _RANK and run.outcome == "suspect":
        return str(made.outcome)
    return outcome_of(run, alive=run.id in alive)


def _outcome_now(backup: BackupOutcome | None) -> str:
    if backup is None:
        return GONE
    return EXPIRED if backup.state in GOING else KEPT


def words(nights: Sequence[HostNight]) -> str:
    """Describes the strip for screen readers: the number of nights by outcome, and the nights that failed."""
    counts = Counter(night.outcome for night in nights)
    count = len(nights) - counts["before"]
    if not count:
        return "no night yet"
    parts = []
    for outcome in OUTCOMES[:-1]:
        if not counts[outcome]:
            continue
        days = [_day_words(night.day) for night in nights if night.outcome == outcome]
        named = outcome not in ("complete", "none", "unknown") and len(days) <= 5
        parts.append(f"{counts[outcome]} {_WORDS.get(outcome, outcome)}" + (f" ({', '.join(days)})" if named else ""))
    which = "the only night so far" if count == 1 else f"the last {count} nights" if count == len(nights) else f"all {count} nights"
    return f"{which}: {', '.join(parts)}"


def _day_words(day: str) -> str:
    """Formats a day of the last month as all pages do: "Fri 20 Nov"."""
    parsed = date.fromisoformat(day)
    return f"{parsed:%a} {parsed.day} {parsed:%b}"


def explained(window: Window | None) -> str:
    """Explains a night to the reader: which 24 hours it covers, and that it includes the runs of the day."""
    if window:
        return f"A night is the 24 hours from {window.start:%H:%M}, when the window opens, including manual runs of the next day."
    return "A night is the 24 hours from noon to noon, because there is no window."
