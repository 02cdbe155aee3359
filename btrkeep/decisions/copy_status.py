"""Decides the state of a copy, a replica or an offsite repository: ok, late, failing, or never made; which copies can replace a
backup that is missing in this pool; and their words. Pure.

`backupd replicate` and `backupd offsite run` record each session in the catalogue; `status`, alarms, metrics and the dashboard read
it from there.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from btrkeep.config.config_model import CopySettings, OffsiteSettings
from btrkeep.decisions import FactReader, FactWriter, parse_fact
from btrkeep.decisions.due import latest
from btrkeep.units import counted, format_duration, format_size, format_time, names_in_words, parse_backup_name, parse_time

COPIES = "copies"
"""The fact of which hosts are copies, and which backups this pool and replicas share. Missing without replicas."""
REPLICA, PUSH, FETCHED_BY, OFFSITE = "replica", "push", "fetched_by", "offsite"
"""Kinds of copies: pools fetched into this one, servers to which this one is sent, pools that fetch from this one, and
repositories.
"""
OFFSITE_THERE = "offsite-there:"
"""Start of the name of the fact with the contents of a repository."""
COPIED = "copied:"
"""Start of the name of the fact with all backups that a replica or a repository has, as of the last replication or listing."""
_RUNNING = "replicating:"
_HISTORY, _KEPT_SESSIONS = "copy-history:", 30
_STORED = "offsite-size:"


class CopyState(StrEnum):
    """`failing`: the newest replication did not reach the other pool, or did not fetch all hosts. `late`: older than `max_age`."""

    OK = "ok"
    LATE = "late"
    FAILING = "failing"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class HostBehind:
    """A host of which some backups could not be fetched, pushed or sent to a repository."""

    host: str
    """Its name."""
    there: str | None
    """The name of its newest backup in the other pool or in the repository; None: there is none, or this is a push."""
    here: str | None
    """The name of its newest backup that both pools have; None: there is none, or this is a repository."""
    error: str
    """Why not."""


@dataclass(frozen=True, slots=True)
class PastSession:
    """One session of a copy over all hosts, in its history."""

    ended: datetime
    """When it ended."""
    error: str
    """Why it failed; "" if it did not."""
    behind: int
    """Number of hosts that were not copied completely."""
    fetched: int = 0
    """Number of copied backups."""
    bytes: int = 0
    """Bytes that it transferred."""
    seconds: float = 0.0
    """How long it took."""


@dataclass(frozen=True, slots=True)
class ReplicaSession:
    """The last sessions of a replica. Hosts are those of the other pool that the replica fetches."""

    tried: datetime
    """When the newest session over all hosts ended."""
    at: datetime | None = None
    """When the newest finished session started, from which the age of the copy counts. None: none was finished."""
    error: str = ""
    """Why the session of `tried` failed; "" if it did not."""
    pool: str = ""
    """The name of the other pool."""
    hosts: int = 0
    """Number of hosts."""
    fetched: int = 0
    """Number of backups that the newest session fetched."""
    bytes: int = 0
    """Bytes of the received streams."""
    seconds: float = 0.0
    """How long it took."""
    newest: datetime | None = None
    """The start of the newest backup of the other pool, without those in the future; None: it has none."""
    behind: tuple[HostBehind, ...] = ()
    """Hosts of which some backups could not be fetched, pushed or sent."""
    gone: tuple[str, ...] = ()
    """Hosts that were fetched earlier, and that the other pool no longer lists."""
    away: bool = False
    """True if the other pool could not be reached."""

    @property
    def rate(self) -> float | None:
        """Returns the bytes per second; None if nothing was received."""
        return self.bytes / self.seconds if self.bytes and self.seconds > 0 else None


class ReplicaTerms(Protocol):
    """The configured facts about a copy. `kind`: as above; `oldest`: seconds; `comes_and_goes`: the other pool may be absent until
    the copy is late.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def oldest(self) -> float: ...
    @property
    def comes_and_goes(self) -> bool: ...


Terms = TypeVar("Terms", bound=ReplicaTerms)


@dataclass(frozen=True, slots=True)
class HostLag:
    """The lag of a fetched host."""

    host: str
    """Its name."""
    newest: str
    """The name of its newest copy."""
    age: float
    """Seconds since that backup started."""
    gone: bool
    """True if the other pool no longer lists the host."""


@dataclass(frozen=True, slots=True)
class RunningFetch:
    """A running replication."""

    pid: int
    """The process that fetches."""
    pid_started: str | None
    """Its start time; None: unknown."""
    began: datetime
    """When it started."""
    updated: datetime
    """When this was written."""
    planned: int
    """Number of backups to fetch."""
    done: int = 0
    """Number of backups fetched so far."""
    bytes: int = 0
    """Bytes of the streams received since `began`."""
    hosts: tuple[str, ...] = ()
    """The hosts that are being fetched now."""
    announced: int = 0
    """`bytes` and the rest of the present streams, as far as the other server has announced it."""

    @property
    def left(self) -> float | None:
        """Returns an estimate of the seconds left, from the average duration of the finished backups. None before the first one."""
        seconds = (self.updated - self.began).total_seconds()
        return seconds / self.done * (self.planned - self.done) if self.done and seconds > 0 else None

    @property
    def rate(self) -> float | None:
        """Returns the bytes per second; None before the first byte."""
        seconds = (self.updated - self.began).total_seconds()
        return self.bytes / seconds if self.bytes and seconds > 0 else None


@dataclass(frozen=True, slots=True)
class CopyStatus(Generic[Terms]):
    """A copy and its state."""

    replica: Terms
    """Its settings."""
    state: CopyState
    """Whether it is up to date."""
    age: float | None
    """Seconds since the copied state was current, or since the newest backup in an offsite repository started; None: never."""
    session: ReplicaSession | None
    """Its last sessions; None: there was none."""
    lags: tuple[HostLag, ...] = ()
    """The lag of each of its hosts."""

    @property
    def behind(self) -> tuple[HostBehind, ...]:
        """Hosts of which backups are missing here."""
        return self.session.behind if self.session else ()

    @property
    def is_stale(self) -> bool:
        """Returns True if everything was fetched, but the newest backup in the other pool was older than `max_age`: that pool seems
        to make none.
        """
        session = self.session if self.replica.kind in (REPLICA, OFFSITE) else None
        limit = timedelta(seconds=self.replica.oldest)
        return bool(session and session.at and session.newest and session.at - session.newest > limit)

    @property
    def gone(self) -> tuple[HostLag, ...]:
        """Returns the hosts that the other pool no longer lists."""
        return tuple(lag for lag in self.lags if lag.gone)

    @property
    def error(self) -> str:
        """Returns why the newest attempt failed, or ""."""
        return self.session.error if self.session else ""


@dataclass(frozen=True, slots=True)
class KnownCopies:
    """The facts about copies of this pool, and of other pools in this one."""

    fetched: Mapping[str, str] = field(default_factory=dict)
    """The replica of each host that is fetched from another pool."""
    common: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By replica and host, the newest backup that both pools have."""
    fetch_times: Mapping[str, datetime] = field(default_factory=dict)
    """By replica, when the pool that fetches from this one last did so."""


def copy_status(
    replica: Terms, session: ReplicaSession | None, now: datetime, newest: Mapping[str, str] | None = None
) -> CopyStatus[Terms]:
    """Returns the state of a copy. A session with a time in the future, from a wrong clock, makes it late.

    `newest`: by host the newest backup there. An offsite repository is as old as the newest of these, whenever the last run was.
    """
    age = ran = max(0.0, (now - session.at).total_seconds()) if session and session.at else None
    if replica.kind == OFFSITE and (began := [moment for name in (newest or {}).values() if (moment := parse_backup_name(name))]):
        age = max(0.0, (now - max(began)).total_seconds())
    late = ran is None or ran > replica.oldest or bool(session and session.at and session.at > latest(now))
    if session and (session.behind or (session.error and (late or not (replica.comes_and_goes and session.away)))):
        state = CopyState.FAILING
    elif age is None:
        state = CopyState.NEVER
    else:
        state = CopyState.LATE if late else CopyState.OK
    return CopyStatus(replica, state, age, session)


def copy_statuses(replicas: Mapping[str, Terms], facts: FactReader, now: datetime) -> list[CopyStatus[Terms]]:
    """Returns the state of all copies from the catalogue's facts."""
    copies = copies_of(facts.get_fact(COPIES)) if replicas else KnownCopies()
    statuses = []
    for name, replica in replicas.items():
        newest = _newest(copies, replica, facts)
        status = copy_status(replica, read_session(facts, name, replica.kind), now, newest)
        statuses.append(replace(status, lags=_lags(newest, status, now)))
    return statuses


def _newest(copies: KnownCopies, terms: ReplicaTerms, facts: FactReader) -> Mapping[str, str]:
    if terms.kind == OFFSITE:
        return offsite_newest(facts, terms.name)
    common = copies.common.get(terms.name, {})
    return {
        host: newest
        for host, newest in common.items()
        if terms.kind in (PUSH, FETCHED_BY) or copies.fetched.get(host) == terms.name
    }


def _lags(newest_of: Mapping[str, str], copy: CopyStatus[Terms], now: datetime) -> tuple[HostLag, ...]:
    """Returns the lag of each host, the oldest copy first."""
    gone = copy.session.gone if copy.session else ()
    host_lags = [
        HostLag(host, newest, max(0.0, (now - began).total_seconds()), host in gone)
        for host, newest in newest_of.items()
        if (began := parse_backup_name(newest))
    ]
    return tuple(sorted(host_lags, key=lambda host_lag: (-host_lag.age, host_lag.host)))


def note_session(facts: FactWriter, name: str, session: ReplicaSession, kind: str = REPLICA) -> None:
    """Stores the result of a replication, or of sending, of all hosts."""
    moments = {"tried": session.tried, "at": session.at, "newest": session.newest}
    times = {key: format_time(moment) if moment else None for key, moment in moments.items()}
    facts.set_fact(f"{kind}:{name}", json.dumps({**asdict(session), **times}))
    past = [asdict(row) | {"ended": format_time(row.ended)} for row in read_history(facts, name)]
    made = {} if session.error else {"fetched": session.fetched, "bytes": session.bytes, "seconds": session.seconds}
    row = {"ended": format_time(session.tried), "error": session.error[:300], "behind": len(session.behind), **made}
    facts.set_fact(_HISTORY + name, json.dumps([row, *past][:_KEPT_SESSIONS]))


def read_history(facts: FactReader, name: str) -> list[PastSession]:
    """Reads the last sessions of a copy that this server makes, the newest first; an empty list if the fact is invalid."""
    return parse_fact(
        facts.get_fact(_HISTORY + name), lambda rows: [PastSession(**row | {"ended": parse_time(row["ended"])}) for row in rows], []
    )


def note_failure(facts: FactWriter, name: str, now: datetime, error: str, kind: str = REPLICA, *, away: bool = False) -> None:
    """Stores that nothing could be copied; the time of the last copy remains. `away`: the other server, or the disk, is absent."""
    before = read_session(facts, name, kind) or ReplicaSession(now)
    note_session(facts, name, replace(before, tried=now, error=error, away=away), kind)


def read_session(facts: FactReader, name: str, kind: str = REPLICA) -> ReplicaSession | None:
    """Reads the last session of a replica; None if there was none or the fact is invalid. For a pool that fetches from this one,
    only the time of its last session is known.
    """
    if kind == FETCHED_BY:
        copies = copies_of(facts.get_fact(COPIES))
        last_fetch = copies.fetch_times.get(name)
        return ReplicaSession(last_fetch, last_fetch, hosts=len(copies.common.get(name, {}))) if last_fetch else None
    return parse_fact(facts.get_fact(f"{kind}:{name}"), _session, None)


def _session(fields: dict[str, Any]) -> ReplicaSession:
    behind, gone = tuple(HostBehind(**host_behind) for host_behind in fields.pop("behind", ())), tuple(fields.pop("gone", ()))
    at, newest = fields.pop("at"), fields.pop("newest", None)
    tried = fields.pop("tried")
    fields["fetched"] = int(fields.get("fetched", 0))
    at, newest = (parse_time(text) if text else None for text in (at, newest))
    return ReplicaSession(parse_time(tried), at, newest=newest, behind=behind, gone=gone, **fields)


def note_running(facts: FactWriter, name: str, running: RunningFetch | None) -> None:
    """Stores the progress of a replication; None: it has ended."""
    if running is None:
        facts.set_fact(_RUNNING + name, None)
        return
    times = {"began": format_time(running.began), "updated": format_time(running.updated)}
    facts.set_fact(_RUNNING + name, json.dumps({**asdict(running), **times}))


def read_running(facts: FactReader, name: str) -> RunningFetch | None:
    """Reads the progress of a running replication, or None. The caller must check that its process is alive."""
    return parse_fact(facts.get_fact(_RUNNING + name), _running, None)


def _running(fields: dict[str, Any]) -> RunningFetch:
    began, updated, hosts = (fields.pop(key) for key in ("began", "updated", "hosts"))
    return RunningFetch(began=parse_time(began), updated=parse_time(updated), hosts=tuple(hosts), **fields)


def offsite_newest(facts: FactReader, name: str) -> dict[str, str]:
    """Returns the newest backup of each host in the offsite repository when it was last listed."""
    newest = read_offsite(facts, name).get("newest", {})
    return {host: backup for host, backup in newest.items() if isinstance(backup, str)} if isinstance(newest, dict) else {}


def read_offsite(facts: FactReader, name: str) -> dict[str, Any]:
    """Reads the recorded contents of the repository (backupd.offsite.repository); empty if the fact is invalid."""
    fact: Any = parse_fact(facts.get_fact(OFFSITE_THERE + name), lambda value: value, {})
    return fact if isinstance(fact, dict) else {}


def copied_backups_text(hosts: Mapping[str, Iterable[str]]) -> str:
    """Encodes the names of the backups in another place, by host."""
    return json.dumps({"hosts": {host: sorted(names) for host, names in hosts.items()}}, separators=(",", ":"), sort_keys=True)


def copied_backups(facts: FactReader, name: str) -> Mapping[str, list[str]]:
    """Returns the names of all backups that a replica or a repository has, by host; empty if that is unknown."""
    return _copied_of(facts.get_fact(COPIED + name))


@lru_cache(maxsize=4)
def _copied_of(text: str | None) -> Mapping[str, list[str]]:
    def parse(fields: dict[str, Any]) -> Mapping[str, list[str]]:
        return {host: [name for name in names if isinstance(name, str)] for host, names in fields.get("hosts", {}).items()}

    return parse_fact(text, parse, {})


def note_stored(facts: FactWriter, name: str, size: int) -> None:
    """Stores the size of a repository in bytes, after compression and encryption."""
    facts.set_fact(_STORED + name, str(size))


def read_stored(facts: FactReader, name: str) -> int | None:
    """Returns that size; None if it was never recorded."""
    text = facts.get_fact(_STORED + name) or ""
    return int(text) if text.isdecimal() else None


def copies_text(copies: KnownCopies) -> str:
    """Encodes the fact."""
    fetch_texts = {name: format_time(moment) for name, moment in copies.fetch_times.items()}
    document = {"fetched": copies.fetched, "common": copies.common} | ({"told": fetch_texts} if fetch_texts else {})
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


@lru_cache(maxsize=4)
def copies_of(text: str | None) -> KnownCopies:
    """Decodes the fact; empty if it is missing or invalid."""
    return parse_fact(text, _known_copies, KnownCopies())


def _known_copies(fields: dict[str, Any]) -> KnownCopies:
    common = {
        name: {host: newest for host, newest in of.items() if isinstance(newest, str)}
        for name, of in fields.get("common", {}).items()
    }
    fetch_times = {name: parse_time(moment) for name, moment in fields.get("told", {}).items()}
    return KnownCopies(dict(fields.get("fetched", {})), common, fetch_times)


@dataclass(frozen=True, slots=True)
class OtherCopy:
    """Another copy of a host's backups."""

    name: str
    """The copy's name in the configuration."""
    kind: str
    """Its section: replica, push, fetched_by or offsite."""
    place: str
    """Its location; "" if only the other server knows it."""
    newest: str | None
    """The name of its newest backup; None: unknown."""
    offsite: OffsiteSettings | None = None
    """The settings of an offsite repository; None for the other kinds."""


def other_copies(
    configured: Mapping[str, CopySettings],
    known_copies: KnownCopies | None,
    offsite: Mapping[str, Mapping[str, str]],
    host: str,
) -> tuple[OtherCopy, ...]:
    """Returns the copies of a host. `offsite`: by repository and host the newest backup there.

    With `known_copies` None the catalogue is lost: then a copy counts if its `hosts` in the configuration include the host.
    """
    candidates = [_configured(copy_settings, known_copies, offsite, host) for copy_settings in configured.values()]
    copies = [other_copy for other_copy in candidates if other_copy]
    if known_copies:
        others = {name: of[host] for name, of in known_copies.common.items() if host in of and name not in configured}
        copies += [OtherCopy(name, PUSH, "", newest) for name, newest in others.items()]
    return tuple(sorted(copies, key=lambda copy: (copy.kind == OFFSITE, copy.name)))


def _configured(
    settings: CopySettings, known_copies: KnownCopies | None, offsite: Mapping[str, Mapping[str, str]], host: str
) -> OtherCopy | None:
    name, kind = settings.name, settings.kind
    newest = (
        offsite.get(name, {}).get(host)
        if kind == OFFSITE
        else (known_copies.common.get(name, {}).get(host) if known_copies else None)
    )
    if known_copies is not None and newest is None and (kind != REPLICA or known_copies.fetched.get(host) != name):
        return None
    if known_copies is None and not any(fnmatchcase(host, pattern) for pattern in settings.hosts):
        return None
    return OtherCopy(name, kind, settings.source, newest, settings if isinstance(settings, OffsiteSettings) else None)


def done_words(kind: str) -> str:
    """Returns the verb for updating a copy of this kind."""
    return "fetched" if kind in (REPLICA, FETCHED_BY) else "sent to"


def age_words(kind: str, age: float | None) -> str:
    """Returns how old a copy is; `age` as in CopyStatus."""
    if age is None:
        return f"never {done_words(kind)}"
    return (
        f"its newest backup is {format_duration(age)} old"
        if kind == OFFSITE
        else f"last {done_words(kind)} {format_duration(age)} ago"
    )


def command_of(kind: str, name: str) -> str:
    """Returns the command that updates the copy; if another pool fetches from this one, the command for that server."""
    if kind == FETCHED_BY:
        return "backupd replicate"
    return f"backupd offsite run {name}" if kind == OFFSITE else f"backupd replicate {name}"


def remedy(kind: str, name: str) -> str:
    """Returns what to do about a copy that is late or failing."""
    command = f"`{command_of(kind, name)}`"
    if kind == FETCHED_BY:
        return f"run {command} on the server that has this copy, or with its disk connected: it prints the cause"
    return f"{command} copies the missing backups, or prints why it cannot"


def running_words(running: RunningFetch) -> str:
    """Describes the progress."""
    rate = f", {format_size(round(running.rate))}/s" if running.rate else ""
    of = f" of {format_size(running.announced)} announced" if running.announced > running.bytes else ""
    left = f", about {format_duration(running.left)} left" if running.left else ""
    at = f", at {names_in_words(running.hosts, 3)}" if running.hosts else ""
    return f"{running.done:,} of {counted(running.planned, 'backup')}, {format_size(running.bytes)}{of}{rate}{left}{at}"
