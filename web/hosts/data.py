"""The list of hosts: their states, searched, filtered, sorted and cut into pages.

Three SQL statements read all hosts, for any query; the strips of a page take two more.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import Field

from btrkeep.backup_states import Cause, CauseCode
from btrkeep.catalogue import BackupOutcome, Catalogue, HostFacts, HostRuns
from btrkeep.config import HostConfig, Window
from btrkeep.decisions.cause_words import error_words, short_cause
from btrkeep.decisions.copy_status import COPIES, copies_of
from btrkeep.decisions.due import latest
from btrkeep.decisions.host_state import (
    COPY,
    SKIPPED,
    STATES,
    UNKNOWN,
    HostStatus,
    UnknownSpans,
    copy_of_host,
    host_status,
    status_error,
)
from btrkeep.decisions.overall import NEVER, PROBLEM_STATES, is_about_first_backup
from btrkeep.serving.viewer import Viewer
from web import running
from web.alarms import active_alarms, silences
from web.api import OneOf, either_way
from web.copies import copies_behind
from web.hosts import nights
from web.hosts.nights import HostNight, KnownPeriod
from web.redaction import WITHHELD, host_error, host_line
from web.source import RequestContext

PER_PAGE = 100
UNCONFIGURED = "unconfigured"
"""The state of a host that has backups, but is not configured: it was removed, or was not added yet, as after an import."""
ALL_STATES = (*STATES, UNCONFIGURED, COPY)
NOT_OURS = (UNCONFIGURED, COPY)
FLAGS = ("damaged", "altered", "behind", "disabled", "silenced")
"""What a host may be besides its state: damaged or altered backups, a copy that is behind, not enabled, silenced until a date."""
PROBLEMS = "problems"
"""The filter for all hosts that need attention."""
_ALWAYS_SHOWN = frozenset(STATES) - {UNKNOWN}
_BAD = "bad flag"
_WORST_FIRST = {
    state: place for place, state in enumerate(("failing", "suspect", "never", "late", UNKNOWN, _BAD, "ok", UNCONFIGURED, COPY))
}
_LONGEST_QUERY = 200


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host. `size`, `files` and `new_bytes` are those of its newest complete backup."""

    host: str
    """Its name."""
    state: str
    """One of ALL_STATES."""
    group: str | None
    """Its group; null: none."""
    address: str | None
    """Its ssh address; null: it is this machine."""
    enabled: bool
    """Whether it is backed up."""
    optional: bool
    """Whether it may be absent."""
    last_complete: datetime | None
    """When its newest complete backup started; null: it has none."""
    age: float | None
    """Seconds since then; null: it has none."""
    next_due: datetime | None
    """When it is due next; null: it is not enabled."""
    size: int | None
    """The size of its files on the host; null, like the next two fields: unknown."""
    files: int | None
    """Number of regular files."""
    new_bytes: int | None
    """Bytes of new data."""
    backups: int
    """Number of its backups."""
    words: str
    """The error or the warning; "": there is none."""
    tone: str
    """Which of the two `words` is: error, warning, or ""."""
    flags: tuple[str, ...] = ()
    """Those of FLAGS that apply."""
    problem: bool = False
    """Whether the host needs attention: it is enabled, and its state is a problem; or it has damaged or altered backups, or a copy
    that is behind."""
    cause: str = ""
    """The cause, in the words that hosts with this cause share; "": its state needs no attention. Only for displayed hosts."""
    live_paths: int | None = None
    """Number of source paths that its newest complete backup did not read from snapshots; null: `snapshots` was off."""
    nights: tuple[HostNight, ...] = ()
    """Its last 30 nights, oldest first; only for displayed hosts."""
    strip: str = ""
    """The same in words."""


def _has_bad_flag(row: HostRow) -> bool:
    return any(flag not in ("disabled", "silenced") for flag in row.flags)


def _badness(row: HostRow) -> int:
    return min(_WORST_FIRST[row.state], _WORST_FIRST[_BAD] if _has_bad_flag(row) else len(_WORST_FIRST))


ORDERS: Mapping[str, Callable[[HostRow], Any]] = {
    "host": lambda row: row.host,
    "state": _badness,
    "last": lambda row: row.last_complete,
    "due": lambda row: row.next_due,
    "size": lambda row: row.size,
    "new": lambda row: row.new_bytes,
    "backups": lambda row: row.backups,
}


@dataclass(frozen=True, slots=True)
class Query:
    """Which hosts are listed: the parameters of the page and of the API."""

    q: Annotated[str, Field(max_length=200, description="Words that must all occur in the name, group, address or cause.")] = ""
    state: Annotated[
        str,
        OneOf(("", PROBLEMS, *ALL_STATES, *FLAGS)),
        Field(
            description="`problems`: only hosts that need attention. A state: only hosts in that state. `damaged`, `altered`: only "
            "hosts with such backups. `behind`: only hosts of which a copy is behind. `disabled`, `silenced`: only such hosts."
        ),
    ] = ""
    group: Annotated[str, Field(max_length=255, description="Only hosts of this group.")] = ""
    cause: Annotated[str, Field(max_length=300, description="Only hosts that need attention for this cause.")] = ""
    sort: Annotated[str, either_way(ORDERS), Field(description="The sort order; a minus sign reverses it.")] = "host"
    page: Annotated[int, Field(ge=1, le=1_000_000, description="The page, of 100 hosts; beyond the end, the last page.")] = 1


@dataclass(frozen=True, slots=True)
class HostList:
    """One page of hosts."""

    query: Query
    """The query."""
    total: int
    """Number of hosts that the user may see."""
    matching: int
    """Number of those that match the query."""
    pages: int
    """Number of pages."""
    rows: tuple[HostRow, ...]
    """The hosts of this page."""
    states: tuple[tuple[str, int], ...]
    """Number of hosts by state, of those that match `q` and `group`."""
    groups: tuple[str, ...]
    """All groups."""
    orders: tuple[str, ...]
    """The possible orders."""
    flags: tuple[tuple[str, int], ...] = ()
    """Number of hosts with damaged or altered backups or copies that are behind, and of disabled ones, of those that match `q` and
    `group`."""
    problems: int = 0
    """Number of hosts that need attention, of those that match `q` and `group`."""
    causes: tuple[tuple[str, int], ...] = ()
    """Number of hosts by cause, of those that match `q`, `group` and `state`: the most frequent first."""


def every_row(source: RequestContext) -> tuple[HostRow, ...]:
    """Returns all hosts, configured or with backups, by name; cached between requests. The caller must filter them by viewer."""
    return source.cached("hosts", lambda: _rows(source))


def every_facts(source: RequestContext) -> Mapping[str, HostFacts]:
    """Returns the facts that `status` uses, of all hosts; cached between requests."""
    return source.cached("facts", lambda: source.catalogue.host_facts(latest(source.now)))


def _rows(source: RequestContext) -> tuple[HostRow, ...]:
    config, facts, counts = source.config, every_facts(source), source.catalogue.backup_counts()
    fetched, unknown = copies_of(source.catalogue.get_fact(COPIES)).fetched, source.catalogue.unknown_spans()
    rows = (
        row_of(
            name, config.hosts.get(name), facts.get(name), counts.get(name, 0), config.zone, source.now, fetched.get(name), unknown
        )
        for name in sorted({*config.hosts, *counts})
    )
    overdue = {alarm.about.name for alarm in active_alarms(source) if is_about_first_backup(alarm)}
    flags = _flags(source)
    return tuple(_flagged(row, flags(row), overdue) for row in rows)


def _flagged(row: HostRow, flags: tuple[str, ...], overdue: Collection[str]) -> HostRow:
    """Returns the row with its flags. `overdue`: hosts that should have a backup."""
    is_bad = row.enabled and row.state in PROBLEM_STATES and (row.state != NEVER or row.host in overdue)
    if not flags and not is_bad:
        return row
    flagged = replace(row, flags=flags)
    return replace(flagged, problem=(is_bad and "silenced" not in flags) or _has_bad_flag(flagged))


def row_of(
    name: str,
    host: HostConfig | None,
    facts: HostFacts | None,
    backups: int,
    zone: ZoneInfo,
    now: datetime,
    replica: str | None = None,
    unknown: UnknownSpans = (),
) -> HostRow:
    """Returns a host as `backupd status` reports it. Of an unconfigured host (None) only the backups are known: none is due.

    `replica`: the replica that fetches it from another pool; then this pool does not back it up, configured or not.
    """
    if replica:
        status = copy_of_host(name, facts, replica, now)
    else:
        status = host_status(host, facts, zone, now, unknown) if host else _unconfigured(name, facts, now)
    return HostRow(
        host=name,
        state=status.state,
        group=host.group if host else None,
        address=host.address if host else None,
        enabled=host is not None and host.enabled,
        optional=host is not None and host.optional,
        last_complete=status.last_complete,
        age=status.age,
        next_due=status.next_due,
        size=facts.last_complete_bytes if facts else None,
        files=facts.last_complete_files if facts else None,
        new_bytes=facts.last_complete_new_bytes if facts else None,
        live_paths=facts.last_complete_live_paths if facts else None,
        backups=backups,
        words=_words(status),
        tone="error" if status.error else "warning" if status.warnings and not replica else "",
    )


def _words(status: HostStatus) -> str:
    if status.error or not status.warnings:
        return status.error or ""
    more = f" (and {len(status.warnings) - 1:,} more)" if len(status.warnings) > 1 else ""
    return f"{status.warnings[0]}{more}"


def _unconfigured(name: str, facts: HostFacts | None, now: datetime) -> HostStatus:
    """Returns the status of a host that is known only from its backups: no backup is due here."""
    last = facts.last_complete if facts else None
    age = max(0.0, (now - last).total_seconds()) if last else None
    words = "not configured: nothing is backed up, and its backups are kept"
    return HostStatus(name, UNCONFIGURED, last, age, None, None, (words,))


@dataclass(frozen=True, slots=True)
class BadBackups:
    """Faulty backups of a host."""

    damaged: int
    """Number of backups with damaged files."""
    altered: int
    """Number of backups that were changed after they became final."""


def bad_backups(source: RequestContext) -> Mapping[str, BadBackups]:
    """Returns the hosts with faulty backups; cached between requests. The caller must filter them by viewer."""
    return source.cached("bad", lambda: _bad_backups(source.catalogue))


def _bad_backups(catalogue: Catalogue) -> Mapping[str, BadBackups]:
    damaged = Counter(host for host, _ in catalogue.unrepaired_files())
    altered = Counter(host for host, _ in catalogue.altered_backups())
    return {host: BadBackups(damaged[host], altered[host]) for host in {*damaged, *altered}}


def causes(source: RequestContext, viewer: Viewer) -> Mapping[str, str]:
    """Returns why each host that the viewer may see needs attention, in words that hosts with the same problem share; cached
    between requests.
    """
    return source.cached(("causes", viewer.hosts), lambda: _causes(source, viewer))


def _causes(source: RequestContext, viewer: Viewer) -> Mapping[str, str]:
    facts, hosts = every_facts(source), source.config.hosts
    return {
        row.host: _cause(row, hosts.get(row.host), facts.get(row.host), limited=viewer.limited)
        for row in visible_to(viewer, every_row(source))
        if row.problem and row.state in PROBLEM_STATES
    }


def _cause(row: HostRow, config: HostConfig | None, facts: HostFacts | None, *, limited: bool) -> str:
    """Returns the cause; for a viewer who is limited to some hosts without texts that may name something of this server."""
    if config and config.fault:
        return "its configuration has a mistake"
    if row.state in ("failing", "suspect"):
        return _short(*status_error(facts), row.host, limited=limited) or "no reason is recorded"
    if row.state == "late" and facts and row.words.startswith(SKIPPED):
        return (
            f"{SKIPPED}: {_short(facts.last_run_error, facts.last_run_cause, row.host, limited=limited) or 'no reason is recorded'}"
        )
    if row.state == NEVER:
        return (_short(*status_error(facts), row.host, limited=limited) if facts else "") or "no complete backup yet"
    return "no complete backup in time" if row.state == "late" else "its runs are not recorded"


def _short(text: str | None, cause: Cause | None, host: str, *, limited: bool) -> str:
    if limited and text is not None and (cause is None or cause.code is CauseCode.POOL):
        return WITHHELD
    return short_cause(text, cause, host)


def visible_to(viewer: Viewer, rows: Iterable[HostRow]) -> list[HostRow]:
    """Returns the rows that the viewer may see."""
    return [row for row in rows if viewer.may_see(row.host)]


def state_counts(rows: Iterable[HostRow]) -> tuple[tuple[str, int], ...]:
    """Returns the number of hosts in each state. Hosts in unusual states are only counted if there are any."""
    counts = Counter(row.state for row in rows)
    return tuple((state, counts[state]) for state in ALL_STATES if state in _ALWAYS_SHOWN or counts[state])


def host_list(source: RequestContext, viewer: Viewer, query: Query, per_page: int = PER_PAGE) -> HostList:
    """Returns the requested page, of the hosts that the viewer may see."""
    mine = visible_to(viewer, every_row(source))
    reasons = causes(source, viewer)
    wanted = [row for row in mine if _matches(row, query, reasons.get(row.host, ""))]
    in_state = [row for row in wanted if _is_in(row, query.state)]
    chosen = [row for row in in_state if not query.cause or reasons.get(row.host) == query.cause]
    by_cause = Counter(reasons[row.host] for row in in_state if row.host in reasons)
    ordered = in_order(chosen, query.sort)
    pages = max(1, -(-len(ordered) // per_page))
    page = min(max(query.page, 1), pages)
    shown = ordered[(page - 1) * per_page : page * per_page]
    return HostList(
        query=replace(query, page=page),
        total=len(mine),
        matching=len(ordered),
        pages=pages,
        rows=tuple(replace(row, cause=reasons.get(row.host, "")) for row in with_strips(source, shown)),
        states=state_counts(wanted),
        flags=flag_counts(wanted),
        problems=sum(row.problem for row in wanted),
        causes=tuple(sorted(by_cause.items(), key=lambda pair: (-pair[1], pair[0]))),
        groups=tuple(sorted({row.group for row in mine if row.group})),
        orders=tuple(ORDERS),
    )


def matching_rows(source: RequestContext, viewer: Viewer, query: Query) -> list[HostRow]:
    """Returns all hosts that the viewer may see and that match the query, in its order."""
    reasons = causes(source, viewer)
    rows = [
        replace(row, cause=reasons.get(row.host, ""))
        for row in visible_to(viewer, every_row(source))
        if _matches(row, query, reasons.get(row.host, "")) and _is_in(row, query.state)
    ]
    return in_order([row for row in rows if not query.cause or row.cause == query.cause], query.sort)


def is_disabled(row: HostRow) -> bool:
    """Returns True if the host is configured and not enabled."""
    return not row.enabled and row.state not in NOT_OURS


def flags_of(source: RequestContext, row: HostRow) -> tuple[str, ...]:
    """Returns those of FLAGS that apply to the host."""
    return _flags(source)(row)


def _flags(source: RequestContext) -> Callable[[HostRow], tuple[str, ...]]:
    """Returns a function that returns those of FLAGS that apply to a host."""
    bad_hosts, behind, silenced = bad_backups(source), copies_behind(source), silences(source)

    def flags(row: HostRow) -> tuple[str, ...]:
        bad = bad_hosts.get(row.host)
        is_silenced = bool(silenced.active) and silenced.of_host(row.host) is not None
        applies = (bool(bad and bad.damaged), bool(bad and bad.altered), row.host in behind, is_disabled(row), is_silenced)
        return tuple(flag for flag, applies_now in zip(FLAGS, applies, strict=True) if applies_now) if any(applies) else ()

    return flags


def flag_counts(rows: Iterable[HostRow]) -> tuple[tuple[str, int], ...]:
    """Returns the number of hosts with each of FLAGS, if there are any."""
    counts = Counter(flag for row in rows for flag in row.flags)
    return tuple((flag, counts[flag]) for flag in FLAGS if counts[flag])


def _is_in(row: HostRow, state: str) -> bool:
    return not state or row.state == state or state in row.flags or (state == PROBLEMS and row.problem)


def _matches(row: HostRow, query: Query, cause: str) -> bool:
    if query.group and row.group != query.group:
        return False
    if not query.q:
        return True
    text = f"{row.host}\n{row.group or ''}\n{row.address or ''}\n{cause}".casefold()
    return all(word in text for word in query.q[:_LONGEST_QUERY].casefold().split())


def in_order(rows: Sequence[HostRow], sort: str) -> list[HostRow]:
    """Sorts by one of ORDERS, with a - before it in reverse; unknown values are last in both. Equal rows are sorted by name."""
    key = ORDERS.get(sort.removeprefix("-"), ORDERS["host"])
    host_rows = [row for row in rows if key(row) is not None]
    unknown = [row for row in rows if key(row) is None]
    return [*sorted(host_rows, key=key, reverse=sort.startswith("-")), *unknown]


def with_strips(source: RequestContext, rows: Sequence[HostRow]) -> tuple[HostRow, ...]:
    """Returns the rows with their last nights, which are cached between requests, and with messages that the viewer may read."""
    names = tuple(row.host for row in rows)
    nights_by_host = source.cached(("strips", names), lambda: _strips(source, names))
    facts = every_facts(source)
    return tuple(
        replace(
            row,
            words=_visible_message(row, source.config.hosts.get(row.host), facts.get(row.host)),
            nights=nights_by_host[row.host],
            strip=nights.words(nights_by_host[row.host]),
        )
        for row in rows
    )


def _visible_message(row: HostRow, config: HostConfig | None, facts: HostFacts | None) -> str:
    """Returns the message as the viewer may read it: an error, or a warning with a number of files of the host and some of
    their names. A mistake of the configuration names a file, and is only for viewers who may read all alarms.
    """
    if config and config.fault:
        return "its configuration has a mistake: `backupd check` shows it"
    if row.tone == "error":
        return host_error(*status_error(facts), row.host) or ""
    if facts and row.words.startswith(SKIPPED):
        error = facts.last_run_error, facts.last_run_cause
        return row.words.replace(error_words(*error) or "", host_error(*error, row.host) or "", 1)
    return host_line(row.words, row.host)


def _strips(source: RequestContext, names: Sequence[str]) -> Mapping[str, tuple[HostNight, ...]]:
    """Returns the nights of each host. Uses a fixed number of SQL statements for all hosts."""
    if not names:
        return {}
    config, now = source.config, source.now
    begins = _begins(config.hosts, config.zone, now)
    earliest = min(begins(name)[0] for name in names)
    runs = _by_host(source.catalogue.runs_since(earliest, names))
    outcomes = _backup_outcomes(source.catalogue, names)
    alive = running.alive_runs(source.catalogue, now)
    pasts = past_of(source, names)
    return {
        name: nights.strip(begins(name), config.zone, runs.get(name, ()), outcomes.get(name, {}), alive, pasts[name])
        for name in names
    }


def past_of(source: RequestContext, names: Collection[str]) -> Mapping[str, KnownPeriod]:
    """Returns since when each host is known: since it was configured, first tried, or has its oldest backup, whichever
    is earliest.
    """
    first_seen, unknown, config = source.catalogue.first_seen(names), source.catalogue.unknown_spans(), source.config
    every = {name: [moment for moment in (first_seen.get(name), config.since.get(name)) if moment] for name in names}
    windows = {name: host.window for name, host in config.hosts.items()}
    return {name: KnownPeriod(min(moments, default=None), unknown, windows.get(name)) for name, moments in every.items()}


def _begins(hosts: Mapping[str, HostConfig], zone: ZoneInfo, now: datetime) -> Callable[[str], Sequence[datetime]]:
    """Returns a function that gives the start times of a host's nights. It caches them by window, because hundreds of hosts share a
    few.
    """

    @lru_cache
    def of_window(window: Window | None) -> Sequence[datetime]:
        return nights.boundaries(window, zone, now)

    return lambda name: of_window(hosts[name].window if name in hosts else None)


def _by_host(runs: Iterable[HostRuns]) -> dict[str, list[HostRuns]]:
    by_host: dict[str, list[HostRuns]] = {}
    for run in runs:
        by_host.setdefault(run.host, []).append(run)
    return by_host


def _backup_outcomes(catalogue: Catalogue, names: Sequence[str]) -> dict[str, dict[str, BackupOutcome]]:
    outcomes: dict[str, dict[str, BackupOutcome]] = {}
    for outcome in catalogue.backup_outcomes(names):
        outcomes.setdefault(outcome.host, {})[outcome.name] = outcome
    return outcomes
