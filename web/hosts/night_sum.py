"""A whole night of all hosts, in numbers and in one sentence. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from btrkeep.catalogue import HostFacts, HostRuns
from btrkeep.config import HostConfig, Window
from btrkeep.decisions.due import DAY, is_due, window_end
from btrkeep.decisions.findings import OK
from btrkeep.decisions.overall import night_level
from btrkeep.units import backup_name, counted
from web.hosts.nights import INSTANT, OUTCOMES, best, boundaries, end_of, explained, last_chance, outcome_of, usual_window

_ALL_NAMES, _SOME_NAMES = 8, 5  # up to the first number all are listed, of more only the second number
_PAUSE = timedelta(minutes=15)  # shorter pauses between two hosts of a night are normal
_PARTS = (*OUTCOMES[: OUTCOMES.index("none")], "waiting", "missed")
"""The outcomes of a host in a night: those of OUTCOMES, and without a run: waiting for its turn, or missed."""
_UNWELL = ("failed", "suspect", "partial", "missed")
_VERB = {"missed": "not tried", "waiting": "to come"}


@dataclass(frozen=True, slots=True)
class Part:
    """The hosts of a night with the same outcome."""

    outcome: str
    """The outcome."""
    count: int
    """Number of hosts."""
    names: tuple[str, ...] = ()
    """The first hosts, if an administrator should check them."""

    @property
    def words(self) -> str:
        """Returns "2 failed", "3 to come"."""
        return f"{self.count:,} {_VERB.get(self.outcome, self.outcome)}"


@dataclass(frozen=True, slots=True)
class NightSum:
    """One night."""

    begin: datetime
    """Its start."""
    end: datetime
    """Its end."""
    day: str
    """Its name."""
    first: datetime | None
    """When its first run started; null: none did."""
    last: datetime | None
    """When its last run ended; null: none has."""
    going_on: bool
    """Whether hosts are being backed up, or their window is open and they are not backed up yet."""
    expected: int
    """Number of hosts that were tried, or due."""
    complete: int
    """Number of complete backups."""
    parts: tuple[Part, ...]
    """The hosts by outcome, in the order of the bar."""
    new_bytes: int
    """Bytes that rsync wrote."""
    head: str
    """The sentence about it, without names."""
    about: str
    """The 24 hours, in words."""
    level: str = OK
    """ok, warning if hosts are not complete after the night, or error if too many are not; ok while it is in progress."""
    by_hand: bool = False
    """Whether it is not a night, but the manual runs since the last one; then no host counts as missing."""

    @property
    def sentence(self) -> str:
        """Returns all parts: "312 of 314 hosts complete between 22:00 and 03:41; 2 failed: db1, web7"."""
        other_outcomes = [f"{part.words}{_names_text(part)}" for part in self.parts if part.outcome != "complete"]
        return "; ".join([self.head, *other_outcomes])


def _names_text(part: Part) -> str:
    if not part.names:
        return ""
    more = f" and {part.count - len(part.names):,} more" if part.count > len(part.names) else ""
    return f": {', '.join(part.names)}{more}"


@dataclass(frozen=True, slots=True)
class NightFacts:
    """The input of the sums."""

    hosts: Mapping[str, HostConfig]
    """The hosts that the user may see, by name."""
    facts: Mapping[str, HostFacts]
    """The catalogue's data about them."""
    runs: Sequence[HostRuns]
    """Their runs since `since(...)`."""
    alive: frozenset[int]
    """Ids of runs whose process exists."""
    zone: ZoneInfo
    """The pool's time zone."""
    now: datetime
    """The moment."""
    began: Mapping[str, datetime] = field(default_factory=dict)
    """Since when a host exists, if known."""
    unknown: Sequence[tuple[datetime, datetime]] = ()
    """Times in which runs may be missing."""
    red: float = 0.1
    """The share of hosts without a complete backup from which a night is an error."""


def since(hosts: Iterable[HostConfig], zone: ZoneInfo, now: datetime) -> datetime:
    """Returns the start of the period for which runs are needed."""
    return boundaries(usual_window(hosts), zone, now, 2)[0]


def runs_of_backups(
    facts: Mapping[str, HostFacts], runs: Iterable[HostRuns], unknown: Sequence[tuple[datetime, datetime]]
) -> list[HostRuns]:
    """Returns the runs that must have made the newest complete backups, for the periods in which runs are unknown."""
    ended = {run.host: run.finished for run in runs if run.finished}
    return [
        HostRuns(
            host,
            0,
            last,
            host_facts.last_complete_finished,
            "complete",
            None,
            None,
            host_facts.last_complete_new_bytes,
            0,
            None,
            night=True,
        )
        for host, host_facts in facts.items()
        if (last := host_facts.last_complete)
        and any(start <= last < until for start, until in unknown)
        and not (host in ended and ended[host] >= last)
    ]


def nights_of(facts: NightFacts) -> tuple[NightSum, ...]:
    """Returns the night in progress, if any, and the one before; the newest first. A pool without hosts has none."""
    if not facts.hosts:
        return ()
    window = usual_window(facts.hosts.values())
    before, current = boundaries(window, facts.zone, facts.now, 2)
    newest = night_sum(facts, current, window) or by_hand(facts, current, window)
    earlier = night_sum(facts, before, window) if newest is None or newest.going_on or newest.by_hand else None
    return tuple(night for night in (newest, earlier) if night)


def night_sum(facts: NightFacts, begin: datetime, window: Window | None) -> NightSum | None:
    """Returns the night that started then; None if no host was due yet and none was tried."""
    end = end_of(begin, window, facts.zone)
    runs = [run for run in facts.runs if begin <= run.started < end and run.host in facts.hosts]
    over = facts.now >= end
    is_open = window is not None and not over and window_end(window, facts.zone, facts.now) is not None
    if not over and not is_open and not _is_a_night(runs, facts.hosts):
        return None
    outcomes = _outcomes(facts, runs, begin, end, window)
    if not outcomes or (not over and not is_open and not _has_a_night(facts, runs, begin, window)):
        return None
    going_on = not over and any(outcome in ("running", "waiting") for outcome in outcomes.values())
    return _sum(facts, (begin, end), runs, outcomes, window, going_on=going_on)


def by_hand(facts: NightFacts, begin: datetime, window: Window | None) -> NightSum | None:
    """Returns the runs since `begin` that belong to no night, or not yet to one; None if there are none."""
    end = end_of(begin, window, facts.zone)
    runs = [run for run in facts.runs if begin <= run.started < end and run.host in facts.hosts]
    outcomes = _tried(facts, runs)
    if not outcomes:
        return None
    night = _sum(facts, (begin, end), runs, outcomes, window, going_on="running" in outcomes.values())
    return replace(night, by_hand=True, day=min(run.started for run in runs).astimezone(facts.zone).date().isoformat())


def _has_a_night(facts: NightFacts, runs: Sequence[HostRuns], begin: datetime, window: Window | None) -> bool:
    """Returns True if a host was due or was backed up while the window was open; otherwise all runs since then were started by
    hand.
    """
    if window is None:
        return True
    closed = last_chance(begin, window, facts.zone)
    if any(run.started < closed for run in runs):
        return True
    # For a time outside of the catalogue's records, a host counts only if it certainly existed.
    hosts = facts.hosts if _is_known(facts, begin, closed) else facts.hosts.keys() & facts.began.keys()
    return any(_existed(facts, name, closed) for name in hosts)


def _is_known(facts: NightFacts, begin: datetime, end: datetime) -> bool:
    return not any(start < end and begin < until for start, until in facts.unknown)


def _existed(facts: NightFacts, name: str, moment: datetime) -> bool:
    return name not in facts.began or facts.began[name] < moment


def _is_a_night(runs: Sequence[HostRuns], hosts: Mapping[str, HostConfig]) -> bool:
    """Returns True if these runs are more than those of a few hosts that were backed up by hand in the afternoon."""
    return any(run.night for run in runs) or 2 * len({run.host for run in runs}) >= len(hosts)


def _outcomes(facts: NightFacts, runs: Sequence[HostRuns], begin: datetime, end: datetime, window: Window | None) -> dict[str, str]:
    """Returns the outcome of each host that was tried, or should have been."""
    busy, outcomes = _is_busy(facts, runs), _tried(facts, runs)
    is_known = _is_known(facts, begin, end)
    for name, host in facts.hosts.items():
        if name in outcomes or not _was_expected(host, facts.facts.get(name), facts.zone, end):
            continue
        if facts.now < end and _may_come(host, facts, busy=busy):
            outcomes[name] = "waiting"
        elif is_known and _existed(facts, name, last_chance(begin, window, facts.zone)):
            outcomes[name] = "missed"
    return outcomes


def _tried(facts: NightFacts, runs: Iterable[HostRuns]) -> dict[str, str]:
    """Returns the outcome of each host that was tried."""
    tried: dict[str, list[str]] = {}
    for run in runs:
        outcome = "complete" if _is_accepted(run, facts.facts.get(run.host)) else outcome_of(run, alive=run.id in facts.alive)
        tried.setdefault(run.host, []).append(outcome)
    return {name: best(outcomes) for name, outcomes in tried.items()}


def _is_accepted(run: HostRuns, host: HostFacts | None) -> bool:
    """Returns True if the run's suspect backup was accepted: it is the host's newest complete one now."""
    newest = host.last_complete if host and run.outcome == "suspect" and run.backup else None
    return newest is not None and backup_name(newest) == run.backup


def _is_busy(facts: NightFacts, runs: Iterable[HostRuns]) -> bool:
    """Returns True if a host is being backed up, or was backed up some minutes ago."""
    return any(run.id in facts.alive or (run.finished and facts.now - run.finished < _PAUSE) for run in runs)


def _was_expected(host: HostConfig, facts: HostFacts | None, zone: ZoneInfo, end: datetime) -> bool:
    """Returns True if a host without a run should have had one before `end`. Later complete backups are ignored."""
    if not host.enabled or host.optional:
        return False
    last = facts.last_complete if facts else None
    if last is not None and last >= end:
        return host.every <= DAY
    return is_due(last, host.every, host.window, zone, end - INSTANT).due


def _may_come(host: HostConfig, facts: NightFacts, *, busy: bool) -> bool:
    """Returns True if the host may still get its turn: its window is open, it has no run, and others are being backed up."""
    return busy if host.window is None else window_end(host.window, facts.zone, facts.now) is not None


def _sum(
    facts: NightFacts,
    span: tuple[datetime, datetime],
    runs: Sequence[HostRuns],
    outcomes: Mapping[str, str],
    window: Window | None,
    *,
    going_on: bool,
) -> NightSum:
    counts = Counter(outcomes.values())
    parts = tuple(_part(outcome, outcomes, counts[outcome]) for outcome in _PARTS if counts[outcome])
    ends = [run.finished for run in runs if run.finished]
    first, last = min((run.started for run in runs), default=None), max(ends, default=None)
    complete = counts["complete"]
    return NightSum(
        begin=span[0],
        end=span[1],
        day=span[0].astimezone(facts.zone).date().isoformat(),
        first=first,
        last=last,
        going_on=going_on,
        expected=len(outcomes),
        complete=complete,
        parts=parts,
        new_bytes=sum(run.literal_bytes or 0 for run in runs),
        head=_head(complete, len(outcomes), first, None if going_on else last, facts.zone),
        about=explained(window),
        level=OK if going_on else night_level(sum(counts[outcome] for outcome in _UNWELL), len(outcomes), facts.red),
    )


def _part(outcome: str, outcomes: Mapping[str, str], count: int) -> Part:
    if outcome not in _UNWELL:
        return Part(outcome, count)
    names = sorted(name for name, host_outcome in outcomes.items() if host_outcome == outcome)
    return Part(outcome, count, tuple(names if count <= _ALL_NAMES else names[:_SOME_NAMES]))


def _head(complete: int, expected: int, first: datetime | None, last: datetime | None, zone: ZoneInfo) -> str:
    hosts = f"{complete:,} of {counted(expected, 'host')} complete"
    if first is None:
        return f"{hosts}: no run was attempted"
    if last is None:
        return f"{hosts} so far, since {_clock(first, zone)}"
    return f"{hosts} between {_clock(first, zone)} and {_clock(last, zone)}"


def _clock(moment: datetime, zone: ZoneInfo) -> str:
    return f"{moment.astimezone(zone):%H:%M}"
