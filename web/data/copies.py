"""Copies: what is fetched from other pools into this one, what other pools said that they have, and hosts that have no copy.

This server knows of other pools only what they noted here at the end of a replication: of each host the newest backup that both
have. To a viewer who is limited to hosts everything is of these hosts alone.
"""

from dataclasses import dataclass
from datetime import datetime

from btrkeep.decisions.copies import COPIES, REPLICATED, copies_of, session_of
from btrkeep.serving.viewer import Viewer
from btrkeep.units import counted, format_duration, parse_backup_name, parse_time
from web.source import RequestContext


@dataclass(frozen=True, slots=True)
class CopyElsewhere:
    """`backup`: the newest that both pools have. `from_there`: it is fetched from that pool; else that pool fetches it."""

    replica: str
    backup: str
    from_there: bool


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica. `fetches`: this pool fetches by it; else another pool fetches from this one, and all that follows but `hosts`
    is known there alone. `at`: when the newest replication of all hosts ended, `age` seconds since, `max_age` from when on that is
    overdue. `fetched`, `bytes`, `failed`: of that replication; None for who may not see all hosts.
    """

    name: str
    fetches: bool
    hosts: int
    at: datetime | None
    age: float | None
    max_age: float | None
    overdue: bool
    fetched: int | None
    bytes: int | None
    failed: int | None


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A host and a replica: the newest backup that both pools have, and how old it is, seconds."""

    host: str
    replica: str
    from_there: bool
    backup: str
    age: float | None


@dataclass(frozen=True, slots=True)
class CopiesPage:
    """All of it. `uncovered`: hosts backed up here of which no other pool said that it has a backup."""

    replicas: tuple[ReplicaView, ...]
    copies: tuple[HostCopy, ...]
    uncovered: tuple[str, ...]


def also_on(source: RequestContext, host: str) -> tuple[CopyElsewhere, ...]:
    """Where else a host's backups lie, as far as that is known here."""
    known = copies_of(source.catalogue.get_fact(COPIES))
    return tuple(
        CopyElsewhere(replica, of[host], known.fetched.get(host) == replica)
        for replica, of in sorted(known.common.items())
        if host in of
    )


def copies(source: RequestContext, viewer: Viewer) -> CopiesPage:
    """What the viewer may see of it; kept between requests."""
    return source.cached(("copies", viewer.hosts), lambda: _copies(source, viewer))


def _copies(source: RequestContext, viewer: Viewer) -> CopiesPage:
    known, site = copies_of(source.catalogue.get_fact(COPIES)), source.site
    found = tuple(
        HostCopy(host, replica, known.fetched.get(host) == replica, name, _age(name, source.now))
        for replica, of in sorted(known.common.items())
        for host, name in sorted(of.items())
        if viewer.may_see(host)
    )
    covered = {one.host for one in found}
    ours = sorted(name for name in site.hosts if viewer.may_see(name) and name not in known.fetched)
    names = {one.replica for one in found} if viewer.limited else {*known.common, *site.replicas}
    return CopiesPage(
        tuple(_replica(source, name, found, limited=viewer.limited) for name in sorted(names)),
        found,
        tuple(name for name in ours if name not in covered),
    )


def _replica(source: RequestContext, name: str, found: tuple[HostCopy, ...], *, limited: bool) -> ReplicaView:
    session, limit = session_of(source.catalogue.get_fact(REPLICATED + name)), source.site.replicas.get(name)
    at = parse_time(session.at) if session else None
    age = max(0.0, (source.now - at).total_seconds()) if at else None
    told = None if limited else session
    return ReplicaView(
        name=name,
        fetches=limit is not None,
        hosts=sum(one.replica == name for one in found),
        at=at,
        age=age,
        max_age=limit,
        overdue=limit is not None and (age is None or age > limit),
        fetched=told.fetched if told else None,
        bytes=told.bytes if told else None,
        failed=told.failed if told else None,
    )


def _age(name: str, now: datetime) -> float | None:
    started = parse_backup_name(name)
    return max(0.0, (now - started).total_seconds()) if started else None


def in_a_sentence(page: CopiesPage) -> str:
    """How it is, for the overview; "" where there is no replica."""
    if not page.replicas:
        return ""
    words = [_words(one) for one in page.replicas]
    if page.uncovered:
        words.append(f"{counted(len(page.uncovered), 'host')} without a copy in another pool")
    return "; ".join(words) + "."


def _words(one: ReplicaView) -> str:
    if not one.fetches:
        return f"{one.name} has {counted(one.hosts, 'host')} of here"
    when = f"last fetched {format_duration(one.age)} ago" if one.age is not None else "never fetched"
    return f"{one.name}: {counted(one.hosts, 'host')}, {when}{', which is overdue' if one.overdue else ''}"
