"""The copies: backups fetched from other pools into this one, the last known state of other pools, and hosts without a copy.

This server knows about another pool only what that pool recorded here at the end of a replication: the newest backup of each host
that both have. A viewer who is limited to hosts sees only these hosts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from flask import Blueprint, render_template, request

from btrkeep.decisions.copy_status import (
    COPIES,
    FETCHED_BY,
    OFFSITE,
    REPLICA,
    CopyState,
    HostBehind,
    PastSession,
    age_words,
    command_of,
    copies_of,
    copy_status,
    done_words,
    offsite_newest,
    read_history,
    read_running,
    read_session,
    read_stored,
    running_words,
)
from btrkeep.decisions.due import latest
from btrkeep.serving.viewer import Viewer
from btrkeep.units import counted, parse_backup_name
from web.alarms import open_alarms
from web.api import STATE, ApiRequest, Endpoint
from web.request_values import choice, rows_per_page
from web.running import is_alive
from web.source import RequestContext, source, viewer

_WITHHELD = "not all backups were copied; the administrator can see why"


@dataclass(frozen=True, slots=True)
class CopyElsewhere:
    """A copy of a host in another pool or repository."""

    replica: str
    """Its name in the configuration."""
    backup: str
    """The newest backup that both have."""
    from_there: bool
    """Whether this server fetches it from that pool; otherwise that pool fetches it from here, or it is sent to that repository."""
    kind: str = REPLICA
    """Its section in the configuration."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica or offsite repository. Fields about all of it are null for a user who may not see all hosts."""

    name: str
    """Its name in the configuration."""
    fetches: bool
    """Whether this server makes the copy: it fetches it, or sends to it. Otherwise another pool fetches from here, and of the next
    ten fields only `hosts` is known."""
    hosts: int
    """Number of hosts."""
    state: CopyState | None
    """As in `backupd status`; null: `fetches` is false."""
    at: datetime | None
    """The end of the newest replication of all hosts; null: never."""
    age: float | None
    """Seconds since then; of a repository, since its newest backup began; null: unknown."""
    max_age: float | None
    """The age at which it is late; null: `fetches` is false."""
    fetched: int | None
    """Number of backups that the newest replication fetched; null: unknown."""
    bytes: int | None
    """Bytes that it transferred; null: unknown."""
    rate: float | None
    """Its bytes per second; null: unknown."""
    error: str | None
    """Why the newest attempt failed; null: it did not."""
    behind: tuple[HostBehind, ...]
    """Hosts that were not copied completely."""
    gone: tuple[str, ...] = ()
    """Hosts that were fetched, and that the other pool no longer lists."""
    running: "FetchingNow | None" = None
    """The transfer in progress; null: none."""
    kind: str = REPLICA
    """Its section in the configuration."""
    size: int = 0
    """The size of all files in the newest backup of each host there, as far as this pool has these backups."""
    stored: int | None = None
    """Bytes that a repository takes, as of its newest run or check; null: unknown."""

    @property
    def done(self) -> str:
        """Returns the kind of transfer in one word."""
        return done_words(self.kind)

    @property
    def command(self) -> str:
        """Returns the command that brings it up to date, here or on the other server."""
        return command_of(self.kind, self.name)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A host and a replica."""

    host: str
    """The host's name."""
    replica: str
    """The replica's name."""
    from_there: bool
    """Whether it is fetched from there."""
    backup: str
    """The newest backup that both pools have."""
    age: float | None
    """Seconds since that backup began; null: unknown."""
    gone: bool = False
    """Whether it is fetched, and the other pool no longer lists it."""


@dataclass(frozen=True, slots=True)
class FetchingNow:
    """The progress of a replication."""

    done: int
    """Number of backups that are done."""
    planned: int
    """Number of backups to copy."""
    bytes: int
    """Transferred so far."""
    rate: float | None
    """Bytes per second; null: still unknown."""
    hosts: tuple[str, ...]
    """The hosts that are being copied."""
    words: str
    """The progress as a sentence."""


@dataclass(frozen=True, slots=True)
class CopiesPage:
    """All copies."""

    replicas: tuple[ReplicaView, ...]
    """The replicas and repositories."""
    copies: tuple[HostCopy, ...]
    """Each host with each of its copies."""
    uncovered: tuple[str, ...]
    """Hosts that are backed up here and of which no other pool is known to have a backup."""


def also_on(source: RequestContext, host: str) -> tuple[CopyElsewhere, ...]:
    """Returns the other places that have backups of a host, as far as this server knows."""
    known_copies = copies_of(source.catalogue.get_fact(COPIES))
    copy_elsewheres = [
        CopyElsewhere(name, of[host], known_copies.fetched.get(host) == name)
        for name, of in known_copies.common.items()
        if host in of
    ]
    copy_elsewheres += [CopyElsewhere(name, of[host], False, OFFSITE) for name, of in _offsite(source).items() if host in of]
    return tuple(sorted(copy_elsewheres, key=lambda copy_elsewhere: copy_elsewhere.replica))


def _offsite(source: RequestContext) -> dict[str, dict[str, str]]:
    """Returns, for each offsite repository, the newest backup of each host in it."""
    return {
        name: offsite_newest(source.catalogue, name)
        for name, published_replica in source.config.copies.items()
        if published_replica.kind == OFFSITE
    }


def copies(source: RequestContext, viewer: Viewer) -> CopiesPage:
    """Returns the copies that the viewer may see; cached between requests."""
    return source.cached(("copies", viewer.hosts), lambda: _copies(source, viewer))


def _copies(source: RequestContext, viewer: Viewer) -> CopiesPage:
    known_copies, config = copies_of(source.catalogue.get_fact(COPIES)), source.config
    gone = {name: session.gone for name in config.copies if (session := read_session(source.catalogue, name))}
    host_copies = tuple(
        HostCopy(host, replica, here, name, _age(name, source.now), here and host in gone.get(replica, ()))
        for replica, of in sorted({**known_copies.common, **_offsite(source)}.items())
        for host, name in sorted(of.items())
        if viewer.may_see(host)
        for here in (known_copies.fetched.get(host) == replica,)
    )
    covered = {host_copy.host for host_copy in host_copies}
    ours = sorted(name for name in config.hosts if viewer.may_see(name) and name not in known_copies.fetched)
    names = {host_copy.replica for host_copy in host_copies} if viewer.limited else {*known_copies.common, *config.copies}
    return CopiesPage(
        tuple(_replica(source, name, host_copies, viewer) for name in sorted(names)),
        host_copies,
        tuple(name for name in ours if name not in covered),
    )


def _replica(source: RequestContext, name: str, host_copies: tuple[HostCopy, ...], viewer: Viewer) -> ReplicaView:
    terms = source.config.copies.get(name)
    session = read_session(source.catalogue, name, terms.kind) if terms else None
    newest = offsite_newest(source.catalogue, name) if terms and terms.kind == OFFSITE else {}
    status = copy_status(terms, session, source.now, newest) if terms else None
    replica_session = None if viewer.limited or (terms and terms.kind == FETCHED_BY) else session
    return ReplicaView(
        name=name,
        fetches=terms is not None,
        hosts=sum(host_copy.replica == name for host_copy in host_copies),
        state=status.state if status else None,
        at=session.at if session else None,
        age=status.age if status else None,
        max_age=terms.oldest if terms else None,
        fetched=replica_session.fetched if replica_session else None,
        bytes=replica_session.bytes if replica_session else None,
        rate=replica_session.rate if replica_session else None,
        error=replica_session.error or None if replica_session else None,
        behind=_behind(status.behind, viewer) if status else (),
        gone=tuple(host_copy.host for host_copy in host_copies if host_copy.replica == name and host_copy.gone),
        running=_running(source, name) if terms and not viewer.limited else None,
        kind=terms.kind if terms else REPLICA,
        size=sum(
            source.catalogue.sizes(
                {host_copy.host: host_copy.backup for host_copy in host_copies if host_copy.replica == name}
            ).values()
        ),
        stored=read_stored(source.catalogue, name) if replica_session and terms and terms.kind == OFFSITE else None,
    )


def _behind(hosts_behind: tuple[HostBehind, ...], viewer: Viewer) -> tuple[HostBehind, ...]:
    """Returns the hosts that the viewer may see. The reason is text of a program of root or of ssh, and names servers and
    paths of this machine.
    """
    seen = (host_behind for host_behind in hosts_behind if viewer.may_see(host_behind.host))
    return tuple(replace(host_behind, error=_WITHHELD) if viewer.limited else host_behind for host_behind in seen)


def _running(source: RequestContext, name: str) -> FetchingNow | None:
    it = read_running(source.catalogue, name)
    if it is None or not is_alive(it.pid, it.pid_started, it.updated, source.now):
        return None
    return FetchingNow(it.done, it.planned, it.bytes, it.rate, it.hosts, running_words(it))


def _age(name: str, now: datetime) -> float | None:
    started = parse_backup_name(name)
    return max(0.0, (now - started).total_seconds()) if started else None


@dataclass(frozen=True, slots=True)
class CopyBehind:
    """A copy of a host without its newest backups."""

    replica: str
    """The name of the copy in the configuration."""
    age: float
    """Seconds since its newest backup began."""


def copies_behind(source: RequestContext) -> Mapping[str, tuple[CopyBehind, ...]]:
    """Returns the copies that are behind, by host; cached between requests. The caller must filter them by viewer.

    A copy is behind if its last run did not copy the host completely, or if it is older than the copy may be: a copy fetched from
    another pool by its age, one of a host of this pool by how much older it is than the newest complete backup here.
    """
    return source.cached("copies behind", lambda: _copies_behind(source))


def _copies_behind(source: RequestContext) -> Mapping[str, tuple[CopyBehind, ...]]:
    page = copies(source, Viewer("", "viewer"))
    facts = source.cached("facts", lambda: source.catalogue.host_facts(latest(source.now)))
    terms = {replica.name: replica.max_age for replica in page.replicas}
    unfinished = {(replica.name, behind.host) for replica in page.replicas for behind in replica.behind}
    by_host: dict[str, tuple[CopyBehind, ...]] = {}
    for copy in page.copies:
        newest, longest = facts.get(copy.host), terms.get(copy.replica)
        if copy.age is None or longest is None:
            continue
        missed = copy.age
        if not copy.from_there:
            last = newest.last_complete if newest else None
            missed -= max(0.0, (source.now - last).total_seconds()) if last else copy.age
        if missed > longest or (copy.replica, copy.host) in unfinished:
            by_host[copy.host] = (*by_host.get(copy.host, ()), CopyBehind(copy.replica, copy.age))
    return by_host


def in_a_sentence(page: CopiesPage) -> str:
    """Returns the state in one sentence, for the overview; "" without a replica."""
    if not page.replicas:
        return ""
    words = [_words(replica) for replica in page.replicas]
    if page.uncovered:
        words.append(f"{counted(len(page.uncovered), 'host')} without a copy elsewhere")
    return "; ".join(words) + "."


def _words(replica: ReplicaView) -> str:
    if not replica.fetches:
        return f"{replica.name} has copies of {counted(replica.hosts, 'host')}"
    when = age_words(replica.kind, replica.age)
    state = f", {replica.state}" if replica.state in (CopyState.LATE, CopyState.FAILING) else ""
    return f"{replica.name}: {counted(replica.hosts, 'host')}, {when}{state}"


@dataclass(frozen=True, slots=True)
class CopyRow:
    """A line of the list: a host and one of its copies, or a host without any."""

    host: str
    """The host's name."""
    replica: str
    """The copy's name; "": the host has none."""
    from_there: bool
    """Whether this server fetches the host from there."""
    backup: str
    """The newest backup that both pools have; "": none."""
    age: float | None
    """Seconds since that backup began; None: unknown."""
    states: tuple[str, ...]
    """Those of STATES that apply."""
    remark: str
    """Why it is behind; "": unknown, or it is not."""

    @property
    def began(self) -> datetime | None:
        """Returns when that backup began; None without one."""
        return parse_backup_name(self.backup)


STATES = {"behind": "behind", "uncovered": "without a copy", "gone": "no longer listed"}
"""The filters of the list, with their words."""
ORDERS: Mapping[str, Callable[[CopyRow], Any]] = {
    "worst": lambda row: ([state in row.states for state in STATES], row.age or 0.0),
    "host": lambda row: row.host,
    "age": lambda row: row.age or 0.0,
}


def copy_rows(source: RequestContext, viewer: Viewer) -> tuple[CopyRow, ...]:
    """Returns a line for each copy of a host that the viewer may see, and for each host without one; cached between requests."""
    return source.cached(("copy rows", viewer.hosts), lambda: tuple(_copy_rows(source, viewer)))


def _copy_rows(source: RequestContext, viewer: Viewer) -> Iterator[CopyRow]:
    page, behind = copies(source, viewer), copies_behind(source)
    reasons = {(replica.name, host.host): _why_behind(replica, host) for replica in page.replicas for host in replica.behind}
    kinds = {replica.name: replica.kind for replica in page.replicas}
    for copy in page.copies:
        reason = reasons.pop((copy.replica, copy.host), "")
        is_behind = reason or any(copy.replica == name.replica for name in behind.get(copy.host, ()))
        states = tuple(state for state, applies in (("behind", is_behind), ("gone", copy.gone)) if applies)
        yield CopyRow(copy.host, copy.replica, copy.from_there, copy.backup, copy.age, states, reason)
    for (replica, host), reason in reasons.items():  # never copied completely
        yield CopyRow(host, replica, kinds[replica] == REPLICA, "", None, ("behind",), reason)
    for host in page.uncovered:
        yield CopyRow(host, "", False, "", None, ("uncovered",), "no copy is recorded")


def _why_behind(replica: ReplicaView, host: HostBehind) -> str:
    if not host.there or host.there == host.here:
        return host.error
    if replica.kind != REPLICA:
        return f"{host.error} (newest backup in the repository {host.there})"
    return f"{host.error} (newest backup on the other server {host.there}, on this server {host.here or 'none'})"


blueprint = Blueprint("copies", __name__, url_prefix="/copies")
_PER_PAGE = 100


@blueprint.get("")
def index() -> str:
    """Shows the copies, and a page of the list of hosts, by `q`, `state`, `copy`, `sort` and `page`: the worst first."""
    here, who = source(), viewer()
    rows, page = copy_rows(here, who), copies(here, who)
    words, state, copy = request.args.get("q", "").strip()[:200], choice("state", STATES) or "", request.args.get("copy", "")
    sort = choice("sort", (*ORDERS, *(f"-{order}" for order in ORDERS))) or "-worst"
    matching = [row for row in rows if all(word in row.host.casefold() for word in words.casefold().split())]
    chosen = [row for row in matching if (not state or state in row.states) and (not copy or row.replica == copy)]
    chosen.sort(key=lambda row: (row.host, row.replica))
    chosen.sort(key=ORDERS[sort.removeprefix("-")], reverse=sort.startswith("-"))
    per_page = rows_per_page(_PER_PAGE)
    pages = max(1, -(-len(chosen) // per_page))
    at = min(max(request.args.get("page", 1, int), 1), pages)
    return render_template(
        "copies/copies.html",
        page=page,
        rows=chosen[(at - 1) * per_page : at * per_page],
        total=len(rows),
        matching=len(chosen),
        at=at,
        pages=pages,
        asked={"q": words, "state": state, "copy": copy, "sort": sort},
        counts=[(name, text, sum(name in row.states for row in matching)) for name, text in STATES.items()],
        history={} if who.limited else {replica.name: _history(here, replica) for replica in page.replicas},
        alarms={alarm.subject: alarm for alarm in open_alarms(here, who)},
    )


def _history(here: RequestContext, replica: ReplicaView) -> list[PastSession]:
    return read_history(here.catalogue, replica.name) if replica.fetches else []


def _answer(asked: ApiRequest) -> CopiesPage:
    return copies(asked.source, asked.viewer)


ENDPOINTS = (
    Endpoint("GET", "/copies", "copies", STATE, "Copies in and from other pools, and hosts without a copy", CopiesPage, _answer),
)
